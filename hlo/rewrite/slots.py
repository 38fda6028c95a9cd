"""Cuts scan residuals that nothing reads to few slices, for fusions that go on writing them.

A fusion that computes several things is other code without one of them. So that all of it can stay
as it is, it puts what nothing reads any more into an array of few slices: XLA clamps the index.
"""

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.module import HloError
from hlo.rewrite.loop_edit import SLOTS
from hlo.shapes import Shape
from hlo.strides import same_dimension

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


def shorten(shape: _Shape, axis: int, slices: int) -> None:
    """Reduces a shape's extent along `axis` to at most `slices`, in place."""
    shape.dimensions[axis] = min(shape.dimensions[axis], slices)


def casts_of(body: MutableComputation, parameter: _Instruction) -> set[int]:
    """Finds a fused computation's parameter and the bitcasts and copies that follow it: ids."""
    ids = {parameter.id}
    for i in body.instructions():
        if i.opcode in ("bitcast", "copy") and i.operand_ids[0] in ids:
            ids.add(i.id)
    return ids


def shorten_reads(
    module: MutableModule, body: MutableComputation, parameter: _Instruction, axis: int, slices: int
) -> None:
    """Reduces an array parameter of a fused computation to few slices along `axis`, in place.

    So are its bitcasts and copies, the parameters of nested fusions that it is given to, and the
    results of those that only copy it, as XLA:TPU does of booleans, to other tiles.
    """
    behind = casts_of(body, parameter)
    body.computation.ClearField("program_shape")
    for i in body.instructions():
        if i.id in behind:
            shorten(i.shape, axis, slices)
        elif i.opcode == "fusion":
            inner = module.called(i)
            for k, operand in enumerate(i.operand_ids):
                if operand in behind:
                    shorten_reads(module, inner, inner.parameter(k), axis, slices)
                    if inner.root.id in casts_of(inner, inner.parameter(k)):
                        shorten(i.shape, axis, slices)
                        behind |= casts_of(body, i)


def update_of(fusion: _Instruction, body: MutableComputation, operand: int) -> _Instruction:
    """Returns the dynamic-update-slice that is the only reader of a fusion's parameter `operand`.
    It may read a nested fusion's copy of it. Raises HloError if something else reads it.
    """
    readers = body.readers(body.parameter(operand))
    if len(readers) == 1 and readers[0].opcode == "fusion":
        readers = body.readers(readers[0])
    if len(readers) != 1 or readers[0].opcode != "dynamic-update-slice":
        raise HloError(f"{fusion.name} does more than write a result into a scan residual")
    return readers[0]


def row_axes(old: Shape, rows: Shape, part: Shape, whole: Shape) -> dict[int, int] | None:
    """Maps the dimensions in which an update of a slice is smaller to dimensions of the array.

    Args:
      old: the slice that is updated, a bitcast of `part`. rows: the update. part: of `whole`.

    Returns:
      Dimension of `old` -> of `whole`; None where the rows' place there is not that in the slice,
      or `rows` and `old` differ in layout.
    """
    axes: dict[int, int] = {}
    for k, extent in enumerate(rows.dimensions):
        if extent != old.dimensions[k]:
            axis = same_dimension(old, k, part)
            if axis is None or part.dimensions[axis] != whole.dimensions[axis]:
                return None
            axes[k] = axis
    return axes if rows.minor_to_major == old.minor_to_major else None


def counts_slices(body: MutableComputation, update: _Instruction) -> int:
    """Finds the first dimension that a dynamic-update-slice does not write as a whole, or 0."""
    part = body.operands(update)[1]
    pairs = zip(part.shape.dimensions, update.shape.dimensions, strict=True)
    return next((k for k, (one, whole) in enumerate(pairs) if one != whole), 0)


def put_into_slots(
    module: MutableModule, fusion: _Instruction, operand: int, axis: int, slices: int = SLOTS
) -> _Instruction:
    """Reduces an array into which a fusion writes a slice to few slices; returns its parameter.
    Raises HloError if the fusion does something else with that operand.

    Args:
      module: of the fusion. fusion: changed in place, as is its computation.
      operand: number of the array among its operands. axis: the dimension that counts slices.
      slices: how many are left.
    """
    body = module.called(fusion)
    update, parameter, root = update_of(fusion, body, operand), body.parameter(operand), body.root
    shapes = [update.shape]
    if root.id == update.id:
        shapes.append(fusion.shape)
    elif root.opcode == "tuple" and list(root.operand_ids).count(update.id) == 1:
        k = list(root.operand_ids).index(update.id)
        shapes += [root.shape.tuple_shapes[k], fusion.shape.tuple_shapes[k]]
    else:
        raise HloError(f"{fusion.name} does not return the scan residual that it writes to")
    for shape in shapes:
        shorten(shape, axis, slices)
    shorten_reads(module, body, parameter, axis, slices)
    return parameter
