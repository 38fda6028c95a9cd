"""Writes rows into an array in place, where a program slices, updates and stacks it again.

As layers do with a cache, each with its own slice: `jnp.stack` makes a second array. Where all that
reads the first one can run before, the rows are written into it instead.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hlo import xla_pb2
from hlo.backend import platform
from hlo.cpu_code import one_function
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import copied, scalar_constant
from hlo.module import HloError, Instruction, Module, module_from_proto
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.fused_body import slice_shape
from hlo.rewrite.placing import operands_first
from hlo.rewrite.slots import row_axes
from hlo.rewrite.trim import sweep_fusion
from hlo.rounding import MOVED, may_depend_on_others
from hlo.strides import same_dimension, sliced_axis
from hlo.walk import after_needs

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto

_INDICES = (4, 5)
"""XLA's numbers of s32 and s64."""

_INTEGERS = frozenset(range(1, 10))


class _Rows(NamedTuple):
    """Rows that a dynamic-update-slice (`update`, in `fusion`) replaces in slice number `slice`."""

    update: Instruction
    fusion: Instruction
    slice: int
    axes: dict[int, int]
    """As `row_axes` gives them."""


class Restack(NamedTuple):
    """An array of which rows of slices are replaced, and the slices then concatenated to an array.

    Attributes:
      stack: the fusion that concatenates. whole: the concatenate in it.
      array: that the slices are of, maybe in another shape than `whole`.
      rows: that are replaced, in order. between: instructions that compute slices for `stack`.
      readers: what else reads `array`.
    """

    stack: Instruction
    array: Instruction
    whole: Instruction
    rows: list[_Rows]
    between: list[Instruction]
    readers: list[Instruction]


def restacks(module: Module, target: str) -> Iterator[Restack]:
    """Yields fusions that concatenate slices of one array in which only rows were replaced.
    Those rows could be written into the array in place. None on a TPU, and in computations where
    other results could round otherwise then (`may_depend_on_others`).
    """
    together = one_function(module) if platform(target).joins_calls else {}
    for c in module.control_computations if platform(target).emits_any_fusion else ():
        if c not in together or not may_depend_on_others(together[c]):  # else it is other code
            for i in c.instructions:
                if i.opcode == "fusion" and (description := _restack(module, i)):
                    yield description


def _restack(module: Module, stack: Instruction) -> Restack | None:
    """Describes a fusion that concatenates one array's slices, each with rows replaced; or None."""
    whole = stack.called[0].root
    if whole is None or (whole := whole.behind("bitcast")).opcode != "concatenate":
        return None
    (axis,), chains, arrays = whole.dimensions, list[list[_Rows]](), set[Instruction]()
    between: dict[Instruction, None] = {}
    for n, part in enumerate(whole.operands):
        if sliced_axis(part.shape, whole.shape) != axis:
            return None
        chains.append([])
        i, fusion = _source(part, stack, between)
        while i.opcode == "dynamic-update-slice" and fusion is not None and _is_moved(i):
            axes = row_axes(*(o.shape for o in (*i.operands[:2], part, whole)))
            if axes is None:
                return None
            chains[-1].insert(0, _Rows(i, fusion, n, axes))
            i, fusion = _source(i.operands[0], fusion, between)
        if i.opcode != "slice" or i.proto is None:
            return None
        at = sliced_axis(i.shape, i.operands[0].shape)
        if at is None or at != same_dimension(whole.shape, axis, i.operands[0].shape):
            return None
        if i.proto.slice_dimensions[at].start != n:
            return None
        inner, (i, fusion) = fusion, _source(i.operands[0], fusion, between)
        if fusion is not None and fusion is inner:
            return None
        arrays.add(fusion or i)
    (array, *others), between = arrays, {i: None for i in between if i is not stack}
    given = array.opcode == "parameter" and array.computation is not module.entry
    if others or given or not chains[0] or len({*map(len, chains)}) > 1:
        return None
    readers = [i for i in _readers(array, between) if i is not stack]
    first = after_needs(readers, lambda i: (*i.operands, *i.control_predecessors))
    if stack in first or any(i.called_control or i.opcode in _LATER for i in readers):
        return None
    rows = [one for several in zip(*chains, strict=True) for one in several]
    return Restack(stack, array, whole, rows, list(between), readers)


_LATER = frozenset({"tuple", "copy-start"})
"""What reads an array may be read later still."""


def _source(
    i: Instruction, fusion: Instruction | None, between: dict[Instruction, None]
) -> tuple[Instruction, Instruction | None]:
    """Follows a value back through bitcasts, copies and fusions, which it adds to `between`.

    Args:
      fusion: that `i` is in; None: none.

    Returns:
      What makes the value, and the fusion that this is in, or None.
    """
    while True:
        if i.opcode == "parameter" and fusion is not None:
            between[fusion] = None
            i, fusion = fusion.operands[i.parameter_number], None
        elif i.opcode == "fusion" and fusion is None and i.called[0].root is not None:
            i, fusion = i.called[0].root, i
        elif i.opcode == "bitcast" or (
            i.opcode == "copy" and i.shape.key == i.operands[0].shape.key
        ):
            if fusion is None:
                between[i] = None
            (i,) = i.operands
        else:
            return i, fusion


def _is_moved(update: Instruction) -> bool:
    """Whether `update` writes rows that are only moved, or integers, at indices of s32 or s64."""
    for i in after_needs(update.operands[1:], lambda i: i.operands):
        if i.called or (i.opcode not in MOVED and i.shape.element_type not in _INTEGERS):
            return False
    return all(i.shape.element_type in _INDICES for i in update.operands[2:])


def _readers(array: Instruction, own: dict[Instruction, None]) -> Iterator[Instruction]:
    """Yields readers of an array, also of its bitcasts, and of its copies among `own`."""
    for i in array.users:
        if i.opcode == "bitcast" or (i.opcode == "copy" and i in own):
            yield from _readers(i, own)
        else:
            yield i


def restack(proto: xla_pb2.HloModuleProto, names: Sequence[str], target: str) -> None:
    """Writes rows into arrays in place, instead of concatenating the arrays' slices again.
    Raises HloError if `restacks` does not find a name.

    Args:
      proto: a scheduled module, changed in place. names: of fusions that `restacks` finds.
      target: "cpu" or "cuda", whose in-place rules say what must be copied all the same.
    """
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    for name in names:
        by_name = {r.stack.name: r for r in restacks(module_from_proto(proto), target)}
        if name not in by_name:
            raise HloError(f"{name} does not stack an array's slices; plan it again")
        module = MutableModule(proto)
        _write(module, by_name[name])
        module.finish(prune=True)
    keep_apart(before, proto, target)


def _write(module: MutableModule, found: Restack) -> None:
    """Replaces the fusion that concatenates slices by updates of the array in place.
    The array is bitcast so that the concatenated dimension comes first.
    """
    body = module.body(found.stack.computation.id)
    stack, array = (body.named(i.name) for i in (found.stack, found.array))
    assert found.whole.proto is not None
    shape = found.whole.proto.shape
    order = sorted(range(len(shape.dimensions)), key=lambda k: k not in found.whole.dimensions)
    made = [body.cast(array, _turned(shape, order))]
    for rows in found.rows:
        made.append(body.add(_update(module, body, found, rows, made[-1]), before=stack))
    result = body.cast(made[-1], stack.shape)
    earlier = {*stack.control_predecessor_ids, *(body.named(i.name).id for i in found.readers)}
    made[1].control_predecessor_ids[:] = sorted(earlier)
    for i in body.instructions():
        if stack.id in i.control_predecessor_ids:
            i.control_predecessor_ids.append(made[-1].id)
    body.replace(stack, result)
    between = [body.named(i.name) for i in found.between]
    of_result = [i for i in body.readers(result) if i.opcode == "copy" and i.shape == result.shape]
    is_given = result.id in (body.root.id, *body.root.operand_ids)
    copies = [i for i in between if i.opcode == "copy"] + of_result[: not is_given]
    for copy in copies:  # which kept both arrays apart
        body.replace(copy, *body.operands(copy))
    body.reorder()
    body.sweep([stack, *copies, *between])
    late = {i.id for i in between}
    listed = [*body.order, *(i.id for i in body.added())]
    body.place(operands_first(body, sorted(listed, key=late.__contains__)))


def _turned(shape: _Shape, order: Sequence[int]) -> _Shape:
    """Permutes a shape's dimensions to this order; elements stay where they are in memory."""
    transposed = _Shape()
    transposed.CopyFrom(shape)
    transposed.dimensions[:] = [shape.dimensions[k] for k in order]
    transposed.layout.minor_to_major[:] = [order.index(k) for k in shape.layout.minor_to_major]
    return transposed


def _update(
    module: MutableModule,
    body: MutableComputation,
    found: Restack,
    rows: _Rows,
    whole: _Instruction,
) -> _Instruction:
    """Makes a fusion that writes rows into the whole array, as `rows.fusion` does into a slice.
    Adds its computation; the caller adds the fusion.
    """
    fusion, inner = body.named(rows.fusion.name), module.body(rows.fusion.called[0].id)
    new = xla_pb2.HloComputationProto(
        name=module.names.new(f"{found.stack.name}.rows"),
        is_fusion_computation=True,
        execution_thread=inner.computation.execution_thread,
    )
    made, names = module.new_computation(new), dict[str, str]()
    made.copy_from(inner, lambda name: names.setdefault(name, module.names.new(name)))
    _, part, *within = made.operands(made.named(names[rows.update.name]))
    number, shape = len(fusion.operand_ids), slice_shape(whole.shape)
    array = made.make("parameter", "array", whole.shape, parameter_number=number)
    indices = [
        made.add(scalar_constant(module.names.new("at"), rows.slice * (k == 0), within[0].shape))
        for k in range(len(shape.dimensions))
    ]
    for k, axis in rows.axes.items():
        axis += axis < found.whole.dimensions[0]
        indices[axis], shape.dimensions[axis] = within[k], part.shape.dimensions[k]
    part = made.cast(part, shape)
    root = made.make("dynamic-update-slice", "rows", whole.shape, array, part, *indices)
    made.computation.root_id = root.id
    update = copied(fusion, module.names.new(new.name), [*body.operands(fusion), whole])
    update.shape.CopyFrom(whole.shape)
    update.fusion_kind, update.backend_config = "kLoop", b""
    update.called_computation_ids[:] = [made.computation.id]
    sweep_fusion(update, made)
    made.reorder()
    return update
