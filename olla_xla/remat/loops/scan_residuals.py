"""Scan residuals: elements of one loop's state that it writes, and a later loop reads, slice by
slice.
"""

import dataclasses
from collections.abc import Sequence

from hlo.module import Instruction
from hlo.shapes import Shape, cut_dimensions
from hlo.strides import same_dimension
from olla_xla.remat.loops.body import Affine, LoopBody
from olla_xla.remat.loops.counted_loops import CountedLoop
from olla_xla.remat.loops.nodes import Node


@dataclasses.dataclass(frozen=True, eq=False)
class ScanResidual:
    """An element of the forward loop's state that the backward loop reads slice by slice.

    Attributes:
      written, read: the element's number in the two states.
      update: the dynamic-update-slice of each iteration. value: what it writes.
      reads: the dynamic-slices of it in the backward loop's body.
      whole: shape of all slices together, as they are read. axis: its dimension that counts them.
      moves: instructions between the loops that only move bytes within slices, the first one first.
      axes: for each of them, the dimensions that count slices (`NewInstruction.slice_axes`).
    """

    written: int
    read: int
    update: Node
    value: Node
    reads: tuple[Node, ...]
    whole: Shape
    axis: int = 0
    moves: tuple[Instruction, ...] = ()
    axes: tuple[tuple[int, ...], ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of the slices of all iterations on the device: 0 if they lie in host memory."""
        return 0 if self.whole.is_host else self.whole.bytes


class NotAResidual(Exception):
    """Raised for a state element that is no scan residual, or none that can be recomputed."""


def residual_of(
    writer: CountedLoop, reader: CountedLoop, w: int, readers: list[int]
) -> tuple[ScanResidual, Affine, Affine | None]:
    """Describes element `w` of the forward loop's state: (ScanResidual, index written, index read).
    The indices of slices are affine in the iteration; the second is None if nothing reads it.

    Args:
      writer, reader: the loops. w: an element of the writer's state.
      readers: elements of the reader's state that begin as `w` ends, moved or not.

    Raises:
      NotAResidual: the element could not be recomputed.
    """
    if len(readers) > 1:
        raise NotAResidual("the backward loop's state contains the array twice")
    (r,) = readers
    _only_between(writer, reader, w, r)
    update, at, axis = written_slice(writer, w)
    value, whole, end = update.operands[1].behind, update.shape, reader.start[r].shape
    first, moves = before_moves(reader.start[r])
    followed = None if reader.body.exact else _followed(whole, axis, moves, end)
    if followed is not None:
        axes, here = followed
        reads, place = _read(reader, r, here, end)
        if moves:
            whole, axis = end, here
        return ScanResidual(w, r, update, value, reads, whole, axis, moves, axes), at, place
    reads, place = _read(reader, r, axis, whole)
    _contiguous_between(first, moves, end, axis, reader.iterations)
    axes = tuple((0, 0, *(0 for k in _steps(i) if k is not i)) for i in moves)
    whole = end if moves else whole
    return ScanResidual(w, r, update, value, reads, whole, axis, moves, axes), at, place


def _contiguous_between(
    first: Instruction, moves: Sequence[Instruction], end: Shape, axis: int, iterations: int
) -> None:
    """Raises NotAResidual unless slices stay contiguous where they are moved between the loops.

    Args:
      first, moves: the array before the moves, and these. end: the backward loop's initial shape.
      axis: along which slices are written. iterations: of the loops.
    """
    if first.shape.key != end.key and not moves:
        if not all(_leading(shape, iterations) for shape in (first.shape, end)):
            raise NotAResidual("the array's shape is changed between the loops")
    if axis and (moves or first.shape.key != end.key):
        raise NotAResidual("the array's slices are not contiguous, and are moved between loops")
    if moves and not _leading(end, iterations):
        raise NotAResidual("between the loops elements move from slice to slice")
    if not all(_moves_within_slices(i, iterations) for i in moves):
        raise NotAResidual("between the loops elements move from slice to slice")


def _followed(
    shape: Shape, axis: int, moves: Sequence[Instruction], end: Shape
) -> tuple[tuple[tuple[int, ...], ...], int] | None:
    """Follows the dimension that counts slices through moves between the loops: (of each move, that
    of its operand, its result and its inner instructions; that of `end`); None if it is mixed, or a
    CPU divides a move among threads. `shape`, `axis`: as slices are written. `moves`: from there to
    `end`, with bitcasts between them.
    """
    axes = []
    for i in moves:
        here = same_dimension(shape, axis, i.operands[0].shape)
        if here is None or _is_divided(i):
            return None
        known = {i.operands[0]: here}
        for k in _steps(i):
            after = here if k.opcode == "parameter" else _passed_on(k, known[k.operands[0]])
            if after is None:
                return None
            known[k] = after
        inside = [known[k] for k in _steps(i) if k is not i]
        shape, axis = i.shape, next(known[k] for k in _steps(i) if k is i or k.is_root)
        axes.append((here, axis, *inside))
    place = same_dimension(shape, axis, end)
    return None if place is None else (tuple(axes), place)


def _passed_on(move: Instruction, axis: int) -> int | None:
    """The dimension of a move's result that `axis` of its operand becomes; None if it is mixed."""
    if move.opcode == "transpose":
        return move.dimensions.index(axis)
    return (
        axis if move.opcode == "copy" else same_dimension(move.operands[0].shape, axis, move.shape)
    )


def _steps(i: Instruction) -> list[Instruction]:
    """The instructions inside a fusion; else the instruction itself."""
    return i.called[0].instructions if i.opcode == "fusion" else [i]


def _is_divided(i: Instruction) -> bool:
    """Whether a CPU divides an instruction among threads, in a way that is made for its shape."""
    return b"partitions" in i.backend_config


def before_moves(start: Instruction) -> tuple[Instruction, tuple[Instruction, ...]]:
    """Follows copies, transposes and bitcasts before a loop back: (the array before them, the
    copies and transposes in order).
    """
    moves: list[Instruction] = []
    while start.opcode == "bitcast" or _moves(start):
        if start.opcode != "bitcast":
            moves.append(start)
        (start,) = start.operands
    return start, tuple(reversed(moves))


def _moves(i: Instruction) -> bool:
    """Whether an instruction only copies or transposes its one operand."""
    if i.opcode == "fusion":
        kinds = {k.opcode for k in _steps(i)} - {"parameter", "bitcast", "copy", "transpose"}
        return len(i.operands) == 1 and not kinds and not i.shape.is_tuple
    return i.opcode in ("transpose", "copy")


def _moves_within_slices(i: Instruction, iterations: int) -> bool:
    """Whether a copy or transpose of an array of slices keeps elements in their slice, of the first
    dimension, and can be made for a single one.
    """
    if _is_divided(i):
        return False
    return _leading(i.operands[0].shape, iterations) and all(
        _leading(k.shape, iterations) and (k.opcode != "transpose" or k.dimensions[0] == 0)
        for k in _steps(i)
    )


def _only_between(writer: CountedLoop, reader: CountedLoop, w: int, r: int) -> None:
    """Raises NotAResidual if anything but both bodies, and moves between, uses an element."""
    outside = [u for u in writer.site.users if u.tuple_index == w]
    last, begin = reader.start[r], reader.site.operands[0]
    while len(outside) == 1 and outside[0] is not last and outside[0].users != [begin]:
        if outside[0].is_root:
            break
        outside = outside[0].users
    if len(outside) != 1 or outside[0] is not last or last.users != [begin] or last.is_root:
        raise NotAResidual("the array is read outside the backward loop")
    if any(u.tuple_index == r and (u.users or u.is_root) for u in reader.site.users):
        raise NotAResidual("the array is read after the backward loop")
    for loop, k in ((writer, w), (reader, r)):
        (parameter,) = loop.i.called[1].parameters
        if any(u.tuple_index == k and u.users for u in parameter.users):
            raise NotAResidual("a loop's condition reads the array")


def written_slice(writer: CountedLoop, w: int) -> tuple[Node, Affine, int]:
    """What each iteration writes into element `w`: (the update, the index, its dimension). Raises
    NotAResidual unless each writes just its own slice, which nothing else in the loop reads.
    """
    body = writer.body
    element = body.leaves(body.computation.parameters[0])[(w,)]
    update = body.root[(w,)].behind
    if update.i.opcode != "dynamic-update-slice" or update.operands[0].behind is not element:
        raise NotAResidual("the forward loop does not write the array slice by slice")
    if any(n is not update for n in readers_of(body, element)):
        raise NotAResidual("the forward loop reads the array too")
    states = sum(n.behind is update for n in body.root.values())
    if states + len(readers_of(body, update)) > 1:
        raise NotAResidual("the forward loop also reads the array after writing a slice")
    whole = update.shape
    axis = axis_of(element.shape, whole, update.operands[1].shape, writer.iterations)
    if axis is None:
        raise NotAResidual("an iteration does not write exactly one slice of the array")
    if axis in update.shape.tiled_dimensions:
        raise NotAResidual("tiles of the device's layout contain parts of several slices")
    at = body.affine(update.operands[2 + axis], whole=True)
    if at is None or at not in own_iteration(writer):
        raise NotAResidual("an iteration of the forward loop writes another iteration's slice")
    return update, at, axis


def _read(
    reader: CountedLoop, r: int, axis: int, written: Shape
) -> tuple[tuple[Node, ...], Affine | None]:
    """The dynamic-slices that read a scan residual, and which slice each iteration reads (or None).

    Args:
      reader: the loop. r: number of the element. axis: along which slices are written.
      written: the shape of the scan residual there.

    Raises:
      NotAResidual: other slices are read, or in another way.
    """
    body = reader.body
    element = body.leaves(body.computation.parameters[0])[(r,)]
    reads, places = [], set()
    for node in readers_of(body, element):
        if node.i.opcode != "dynamic-slice":
            raise NotAResidual(f"the backward loop reads the array by {node.i.opcode}")
        whole = node.operands[0].shape
        here = axis_of(element.shape, whole, node.shape, reader.iterations)
        alike = not body.exact and same_dimension(written, axis, whole) == here
        if here is None or not (alike or here == axis):
            raise NotAResidual("the backward loop does not read the forward loop's slices")
        leads = axis == 0 and _leading(written, reader.iterations)
        if not alike and whole.key != written.key and not leads:
            raise NotAResidual("the array's slices are not contiguous, and its shape changes")
        if not _is_replaceable(body, node):
            raise NotAResidual("an asynchronous or nested fusion computes with the array")
        places.add(body.affine(node.operands[1 + here], whole=True))
        reads.append(node)
    if len(places) > 1 or not places <= set(own_iteration(reader)):
        raise NotAResidual("an iteration of the backward loop reads another iteration's slice")
    return tuple(reads), next(iter(places), None)


def own_iteration(loop: CountedLoop) -> tuple[Affine, Affine]:
    """Indices by which each iteration reads or writes its own slice: counted up, and down."""
    up = Affine((loop.counter,), 1, 0)
    return up, Affine((loop.counter,), -1, loop.iterations - 1)


def _is_replaceable(body: LoopBody, node: Node) -> bool:
    """Whether an instruction that takes a slice can read another operand instead, or be removed."""
    owner = node.owner
    if only_hands_on(node, body.root_of(owner)):
        return True
    if owner.opcode != "fusion" or any(o.shape.is_tuple for o in owner.operands):
        return False
    # In a nested fusion it stays a slice of an array, of fewer slices.
    return body.exact or node.i.computation is owner.called[0]


def only_hands_on(node: Node, result: Node | None) -> bool:
    """Whether `result` is `node` itself, or a chain of bitcasts of it."""
    while result is not None and result is not node and result.i.opcode == "bitcast":
        result = result.operands[0]
    return result is node


def readers_of(body: LoopBody, node: Node) -> list[Node]:
    """The nodes that read a node, through bitcasts and copies that change no layout."""
    readers, waiting = [], [node]
    while waiting:
        for user in body.used.get(waiting.pop(), ()):
            if user.behind is not user:
                waiting.append(user)
            else:
                readers.append(user)
    return readers


def axis_of(element: Shape, whole: Shape, part: Shape, iterations: int) -> int | None:
    """The dimension of `whole` along which `part` is one of `iterations` slices; None if it is not.
    `element` may be bitcast to `whole`; slices that are not contiguous are slices of that shape,
    and of no other.
    """
    if not _is_slice(part, whole):
        return None
    if _is_residual(whole, iterations) and part.dimensions == (1, *whole.dimensions[1:]):
        return 0 if _leading(element, iterations) or not _leading(whole, iterations) else None
    axes = cut_dimensions(part.dimensions, whole.dimensions)
    if whole.element_bits < 8 or len(axes) != 1:
        return None
    (axis,) = axes
    is_one = (part.dimensions[axis], whole.dimensions[axis]) == (1, iterations)
    return axis if is_one else None


def _is_residual(shape: Shape, iterations: int) -> bool:
    return shape.dimensions[:1] == (iterations,) and shape.element_bits >= 8


def _leading(shape: Shape, iterations: int) -> bool:
    return _is_residual(shape, iterations) and shape.minor_to_major[-1] == 0


def _is_slice(part: Shape, whole: Shape) -> bool:
    return (
        len(part.dimensions) == len(whole.dimensions)
        and part.minor_to_major == whole.minor_to_major
        and part.element_type == whole.element_type
    )


_TILED = 2  # dimensions that a TPU's tiles cut, of an array that has as many


def can_be_stored(shape: Shape) -> bool:
    """Whether an array of one iteration can be one slice of a scan residual."""
    if shape.tiles and len(shape.dimensions) < _TILED:
        return False  # with one dimension more it has other tiles
    return shape.is_array and shape.element_bits >= 8 and shape.memory_space == 0
