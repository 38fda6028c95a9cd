"""Finds instructions that move arrays only for loops, where loops can slice the originals.

An array that is transposed before a loop is in memory twice while the loop runs. A slice of it is a
slice of the original, perhaps with its elements in another order.
"""

import dataclasses
from collections.abc import Iterator

from hlo.backend import platform
from hlo.module import Computation, Instruction, Module
from hlo.shapes import WIDER, Shape
from hlo.strides import Steps, moved, permutation, sliced, sliced_axis, within

_RUN = 64
"""Bytes of a slice that must be contiguous in the source: shorter runs are slow to read."""

_FREE = frozenset("parameter constant bitcast copy transpose convert dynamic-slice".split())
_INDEX = frozenset("add subtract compare select clamp multiply minimum maximum and or not".split())
"""Opcodes of a fusion that gives the same bits by whatever code; the second, on integers."""

_INTEGERS = frozenset(range(1, 10))

_FLOATS = frozenset({10, 11, 12, 16})

Slices = dict[Instruction, tuple[int, Instruction]]
"""A dynamic-slice -> along which dimension, and the fusion that it is in."""

Loops = list[tuple[Instruction, int]]
"""Each while, and an element of its state."""


@dataclasses.dataclass(frozen=True, eq=False)
class Taken:
    """A dynamic-slice in a loop's body, and how to take its slice from an earlier array instead.

    Attributes:
      slice: the dynamic-slice. fusion: that it is in; it may run asynchronously, as a contiguous
        copy does, which is then given up. cut: the dimension that it slices.
      axis: the dimension of the source that is sliced instead.
      extents, dimensions: of a transpose that follows: its operand is a bitcast of the new slice,
        and a bitcast of its result is the old one; empty where a bitcast alone is enough.
    """

    slice: Instruction
    fusion: Instruction
    cut: int
    axis: int
    extents: tuple[int, ...]
    dimensions: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Sink:
    """An instruction that transposes or converts an array only for loops, and could be removed.

    Attributes:
      move: the instruction. gone: `move`, and those before it that only this chain reads.
      source: the array before `gone`. kinds: element types to which it is converted, in order.
      code: the kind of the fusion that rounds in converting, which must stay the same; or "".
      loops: each while that gets the array, and which element of its state it is.
      slices: the slices that fusions of their bodies take of it.
    """

    move: Instruction
    gone: tuple[Instruction, ...]
    source: Instruction
    kinds: tuple[int, ...]
    code: str
    loops: tuple[tuple[Instruction, int], ...]
    slices: tuple[Taken, ...]

    @property
    def in_order(self) -> bool:
        """Whether each slice has its elements in the same order in the original array."""
        return not any(taken.extents for taken in self.slices)


def sinks(module: Module, target: str) -> list[Sink]:
    """Finds all transposes and converts that `sink_moves` can remove, in the module's order.
    On a TPU there are none: slices lie in tiles, and not every fusion can be compiled.
    """
    removable: list[Sink] = []
    if not platform(target).emits_any_fusion:
        return removable
    for computation in module.control_computations:
        for i in computation.instructions:
            sink = _sink(i, target)
            if sink is not None:
                removable.append(sink)
    return removable


def _sink(move: Instruction, target: str) -> Sink | None:
    if not _moves(move) or not move.users or any(_moves(u) for u in move.users):
        return None
    loops: Loops = []
    slices: Slices = {}
    if not all(_is_passed(move, start, loops, slices) for start in move.users):
        return None
    farthest = None
    gone: list[Instruction] = []
    i = move
    while _moves(i) and (i is move or len(i.users) == 1):
        gone.append(i)
        (i,) = i.operands
        if (changed := _changed(move, i)) is None:
            continue
        steps, kinds = changed
        code = _code(gone, kinds, i, slices, target) if kinds else ""
        if code is None:
            continue
        if (taken := _from_source(slices, steps, i.shape)) is not None:
            farthest = Sink(move, tuple(gone), i, kinds, code, tuple(loops), taken)
    return farthest


def _moves(i: Instruction) -> bool:
    """Whether `i` may move or convert the elements of its one operand and nothing else."""
    if i.opcode not in ("fusion", "transpose", "copy", "bitcast") or len(i.operands) != 1:
        return False
    return not (i.shape.is_tuple or i.is_root or i.control_predecessors)


def _changed(move: Instruction, source: Instruction) -> tuple[Steps, tuple[int, ...]] | None:
    """Describes how `move` reorders and converts `source`: (strides, types), as `strides.moved`.
    None if it does neither, or more, or the source is no array of whole bytes in device memory.
    """
    if not source.shape.is_array or source.shape.element_bits < 8 or source.shape.memory_space:
        return None
    changed = moved(move, source)
    return changed if changed is not None and (len(changed[0]) > 1 or changed[1]) else None


def _code(
    gone: list[Instruction],
    kinds: tuple[int, ...],
    source: Instruction,
    slices: Slices,
    target: str,
) -> str | None:
    """Finds the kind of fusion that may convert slices one by one: "" is any kind, None is none.
    What rounds is to have the same code as before, which on a CPU is another one beside a slice.
    """
    (kind, *others), before = kinds, source.shape.element_type
    if others or not {kind, before} <= _FLOATS:
        return None
    converted = gone[0].shape.element_type
    if any(i.operands[0].shape.element_type != converted for i in slices):
        return None
    if (before, kind) in WIDER:
        return ""
    if (
        platform(target).keeps_code or source.opcode != "parameter"
    ):  # which is there as long as it runs
        return None
    readers = [fusion for _, fusion in slices.values()]
    if any(k.opcode == "convert" for i in readers for k in i.called[0].instructions):
        return None
    (rounding,) = (i for i in gone if any(k.opcode == "convert" for k in (i, *_inside(i))))
    same = all(rounding.backend_config == i.backend_config for i in readers)
    return rounding.fusion_kind if rounding.opcode == "fusion" and same else None


def _inside(i: Instruction) -> list[Instruction]:
    return (within(i) or []) if i.opcode == "fusion" else []


def _from_source(slices: Slices, steps: Steps, source: Shape) -> tuple[Taken, ...] | None:
    """Describes slices of a moved array as slices of its source; None if some are none of it, or
    lie there in runs that are too short (`_RUN`).

    Args:
      slices: of the moved array. source: the source's shape.
      steps: loops (count, stride in elements) over the source, in the moved array's order.
    """
    taken = []
    for i, (cut, fusion) in slices.items():
        there = sliced(steps, i.operands[0].shape, cut, source)
        if there is None:
            return None
        axis, inner = there
        if _run(source, axis) < _RUN:
            return None
        is_moved = len(inner) > 1
        taken.append(Taken(i, fusion, cut, axis, *(permutation(inner) if is_moved else ((), ()))))
    return tuple(taken)


def _run(shape: Shape, axis: int) -> int:
    """Counts the bytes of one slice along dimension `axis` that are contiguous in memory."""
    inner = shape.minor_to_major[: shape.minor_to_major.index(axis)]
    elements = 1
    for k in inner:
        elements *= shape.dimensions[k]
    return elements * shape.element_bits // 8


def _is_passed(array: Instruction, start: Instruction, loops: Loops, slices: Slices) -> bool:
    """Whether a tuple passes an array to a loop whose iterations do nothing but slice the array.

    Args:
      start: reads the array; the tuple, if it is one.
      loops, slices: the loop, those inside it and its slices are added, before a False, too.
    """
    places = [k for k, o in enumerate(start.operands) if o is array]
    if start.opcode != "tuple" or len(start.users) != 1 or len(places) != 1:
        return False
    (loop,), (k,) = start.users, places
    if loop.opcode != "while" or loop.is_root:
        return False
    loops.append((loop, k))
    body, condition = loop.called
    if any(u.opcode != "get-tuple-element" or u.tuple_index == k for u in loop.users):
        return False
    root = body.root
    if root is None or root.opcode != "tuple" or root.control_predecessors:
        return False
    elements = list(parts(body, k))
    if _is_read(condition, k) or root.operands[k] not in elements:
        return False
    for element in elements:
        for user in element.users:
            if user is root:
                if [n for n, o in enumerate(root.operands) if o is element] != [k]:
                    return False
            elif user.opcode == "tuple":
                if not _is_passed(element, user, loops, slices):
                    return False
            elif (inner := _slices(user, element)) is None:
                return False
            else:
                slices |= inner
    return True


def parts(computation: Computation, k: int) -> Iterator[Instruction]:
    """Yields the get-tuple-elements of element `k` of the state in a loop's body or condition."""
    (state,) = computation.parameters
    return (u for u in state.users if u.opcode == "get-tuple-element" and u.tuple_index == k)


def _is_read(condition: Computation, k: int) -> bool:
    (state,) = condition.parameters
    plain = all(u.opcode == "get-tuple-element" for u in state.users)
    return not plain or any(p.users or p.is_root for p in parts(condition, k))


def _slices(reader: Instruction, part: Instruction) -> Slices | None:
    """Maps dynamic-slices that take single slices of `part` in a fusion to (dimension, fusion).
    None if the operand is read otherwise, or another body might change how the fusion rounds.
    `reader` is the fusion, or an async-start of it.
    """
    if reader.opcode == "async-start":
        return _slices_in_async(reader, part)
    return _slices_in_fusion(reader, part)


def _slices_in_async(start: Instruction, part: Instruction) -> Slices | None:
    body = start.called[0]
    fusion = body.root
    if fusion is None or list(fusion.operands) != body.parameters:
        return None
    if [u.opcode for u in start.users] != ["async-done"]:
        return None
    slices: Slices = {}
    for number, operand in enumerate(start.operands):
        if operand is part:
            inner = _slices_in_fusion(fusion, body.parameters[number])
            if inner is None:
                return None
            slices |= inner
    return slices


def _slices_in_fusion(fusion: Instruction, part: Instruction) -> Slices | None:
    if fusion.opcode != "fusion" or fusion.fusion_kind == "kCustom":
        return None
    if b'"kind"' in fusion.backend_config:
        return None  # XLA has code of its own for it, such as a copy of bytes that lie in one piece
    body = fusion.called[0]
    if not all(_is_free(i) for i in body.instructions):
        return None
    slices: Slices = {}
    for number, operand in enumerate(fusion.operands):
        waiting = [body.parameters[number]] if operand is part else []
        while waiting:
            i = waiting.pop()
            if i.is_root:
                return None
            for user in i.users:
                if user.opcode == "bitcast":
                    if user.shape.element_bits != i.shape.element_bits:
                        return None
                    waiting.append(user)
                elif user.opcode == "dynamic-slice" and user.operands[0] is i:
                    cut = sliced_axis(user.shape, i.shape)
                    if cut is None:
                        return None
                    slices[user] = cut, fusion
                else:
                    return None
    return slices


def _is_free(i: Instruction) -> bool:
    if i.opcode in _INDEX:
        return all(o.shape.element_type in _INTEGERS for o in (i, *i.operands))
    return i.opcode in _FREE
