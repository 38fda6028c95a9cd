"""Where the elements of an array that was transposed or reshaped lie in the original, as strides.

Steps are (count, stride in elements), the outermost first. Contiguous steps are merged, steps of
one element left out. So equal steps mean the same bytes in the same order, whatever the shapes are.
"""

import math
from collections.abc import Iterable, Sequence

from hlo.module import Instruction
from hlo.shapes import Shape, cut_dimensions

Steps = tuple[tuple[int, int], ...]

_MOVING = ("bitcast", "convert", "copy", "transpose")


def contiguous(shape: Shape) -> Steps:
    """Returns the loops (count, stride in elements) that visit a whole array in memory order."""
    return joined([(shape.num_elements, 1)])


def extents(shape: Shape) -> tuple[int, ...]:
    """Returns an array's extents in its layout's order, most major dimension first."""
    return tuple(shape.dimensions[k] for k in reversed(shape.minor_to_major))


def sliced_outermost(part: Shape, whole: Shape) -> int | None:
    """Returns the most major dimension of `whole` if `part` is a slice of extent 1 along it, of the
    same type and layout; else None. Dimensions of extent 1 do not count.
    """
    if part.minor_to_major != whole.minor_to_major or part.element_type != whole.element_type:
        return None
    outer = [k for k in reversed(whole.minor_to_major) if whole.dimensions[k] != 1]
    cut = [k for k in outer if part.dimensions[k] != whole.dimensions[k]]
    return cut[0] if cut and cut == outer[:1] and part.dimensions[cut[0]] == 1 else None


def sliced_axis(part: Shape, whole: Shape) -> int | None:
    """Returns the one dimension along which `part` is a slice of extent 1 of `whole`, with the same
    type and layout; else None.
    """
    if part.minor_to_major != whole.minor_to_major or part.element_type != whole.element_type:
        return None
    cut = cut_dimensions(part.dimensions, whole.dimensions)
    return cut[0] if len(cut) == 1 and part.dimensions[cut[0]] == 1 else None


def sliced(steps: Steps, whole: Shape, cut: int, source: Shape) -> tuple[int, Steps] | None:
    """Finds of which slice of the original array one slice of a transposed array is made.

    Args:
      steps: loops (count, stride) over the original, in the order of the transposed array.
      whole: the transposed shape. cut: the dimension of it that is sliced. source: the original's.

    Returns:
      The dimension along which the original is sliced, and loops over that slice in the order of
      the transposed one; None if the elements are no slice of the original.
    """
    by_extent = _divided(steps, extents(whole))
    if by_extent is None:
        return None
    outer_first = tuple(reversed(whole.minor_to_major))
    count, distance = whole.dimensions[cut], by_extent[outer_first.index(cut)]
    axis = _dimension(source, count, distance)
    if axis is None:
        return None
    within = [
        (whole.dimensions[k], step if step < distance else step // count)
        for k, step in zip(outer_first, by_extent, strict=True)
        if k != cut
    ]
    return axis, joined(within)


def same_dimension(a: Shape, axis: int, b: Shape) -> int | None:
    """Returns which dimension of `b`, a bitcast of `a`, is the dimension `axis` of `a`. None if no
    dimension has its extent and stride, if its extent is 1, or if a shape has tiles.
    """
    first, second = ((s.element_type, s.memory_space, s.num_elements) for s in (a, b))
    if first != second or a.tiles or b.tiles:
        return None
    inner = a.minor_to_major[: a.minor_to_major.index(axis)]
    return _dimension(b, a.dimensions[axis], math.prod(a.dimensions[k] for k in inner))


def _dimension(shape: Shape, count: int, distance: int) -> int | None:
    """Returns the dimension of extent `count`, over 1, and stride `distance`, or None."""
    here = 1
    for k in shape.minor_to_major:
        if shape.dimensions[k] == count > 1 and here == distance:
            return k
        here *= shape.dimensions[k]
    return None


def permutation(steps: Steps) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Describes loops (count, stride) over an array as a transpose: operand extents, dimensions."""
    outer_first = sorted(range(len(steps)), key=lambda k: -steps[k][1])
    dimensions = tuple(outer_first.index(k) for k in range(len(steps)))
    return tuple(steps[k][0] for k in outer_first), dimensions


def joined(steps: Iterable[tuple[int, int]]) -> Steps:
    """Simplifies loops (count, stride): merges contiguous ones and drops those of count 1."""
    merged: list[tuple[int, int]] = []
    for count, distance in steps:
        if count == 1:
            continue
        if merged and merged[-1][1] == count * distance:
            merged[-1] = merged[-1][0] * count, distance
        else:
            merged.append((count, distance))
    return tuple(merged)


def moved(i: Instruction, source: Instruction) -> tuple[Steps, tuple[int, ...]] | None:
    """Finds how an array that was transposed, reshaped or converted from `source` lies in it.

    Args:
      i: a bitcast, convert, copy or transpose, a fusion of such, or a chain of them that begins at
        `source`. source: an array.

    Returns:
      The steps: (count, stride in elements of `source`), outermost first; and the element types of
      the converts, first one first. None where `i` does something else, has no such steps, or both
      converts elements and takes their bytes for another type.
    """
    chain: list[Instruction] = []
    while i is not source:
        if i.opcode == "fusion" and len(i.operands) == 1 and i.called[0].root is not None:
            inner = within(i)
            if inner is None:
                return None
            chain += inner
        elif i.opcode in _MOVING and not i.shape.is_tuple:
            chain.append(i)
        else:
            return None
        i = i.operands[0]
    steps: Steps | None = contiguous(source.shape)
    for step in reversed(chain):
        steps = None if steps is None else _after(step, steps)
    kinds = tuple(k.shape.element_type for k in reversed(chain) if k.opcode == "convert")
    if steps is None or (kinds and any(_is_read_otherwise(k) for k in chain)):
        return None
    return steps, kinds


def _is_read_otherwise(i: Instruction) -> bool:
    """Whether `i` is a bitcast to another element type."""
    return i.opcode == "bitcast" and i.shape.element_type != i.operands[0].shape.element_type


def within(fusion: Instruction) -> list[Instruction] | None:
    """Returns the instructions of a fusion that only moves or converts an array, from root back.
    None if one of them is not a bitcast, convert, copy or transpose. The parameter is left out.
    """
    chain: list[Instruction] = []
    i = fusion.called[0].root
    while i is not None and i.opcode != "parameter":
        if i.opcode not in _MOVING:
            return None
        chain.append(i)
        i = i.operands[0]
    return chain


def _after(i: Instruction, steps: Steps) -> Steps | None:
    """Finds loops (count, stride in the source) for the result of `i`, from its operand's `steps`.
    None if it has none, as of a bitcast that changes the size of elements.
    """
    old, new = i.operands[0].shape, i.shape
    if i.opcode == "bitcast":
        return steps if old.element_bits == new.element_bits else None
    by_extent = _divided(steps, extents(old))
    if by_extent is None:
        return None
    outer_first = tuple(reversed(old.minor_to_major))
    distance = dict(zip(outer_first, by_extent, strict=True))
    order = tuple(reversed(new.minor_to_major))
    taken = [i.dimensions[k] for k in order] if i.opcode == "transpose" else order
    return joined([(old.dimensions[k], distance[k]) for k in taken])


def _divided(steps: Steps, parts: Sequence[int]) -> list[int] | None:
    """Splits loops (count, stride) into a stride for each extent, major first; 0 for extents of 1.
    None if the loops do not divide so.
    """
    left = list(steps)
    strides: list[int] = []
    for extent in reversed(parts):
        if extent == 1:
            strides.append(0)
            continue
        if not left or left[-1][0] % extent:
            return None
        count, distance = left.pop()
        strides.append(distance)
        if count > extent:
            left.append((count // extent, distance * extent))
    return None if left else strides[::-1]
