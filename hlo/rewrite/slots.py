"""Arrays of few slices, for fusions that put results into scan residuals that are gone.

A fusion that computes several things is other code without one of them. So that all of it can stay
as it is, it puts what nothing reads any more into an array of few slices: XLA clamps the index.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo import xla_pb2
from hlo.module import HloError
from hlo.rewrite.loop_edit import SLOTS

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


def shorten(shape: _Shape, axis: int, slices: int) -> None:
    """Reduces a shape's extent along `axis` to at most `slices`, in place."""
    shape.dimensions[axis] = min(shape.dimensions[axis], slices)


def parameter_of(body: _Computation, number: int) -> _Instruction:
    """The parameter of a computation with this parameter number."""
    return next(
        i for i in body.instructions if i.opcode == "parameter" and i.parameter_number == number
    )


def casts_of(body: _Computation, parameter: _Instruction) -> set[int]:
    """The ids of a parameter, and of all bitcasts that follow it."""
    found = {parameter.id}
    for i in body.instructions:
        if i.opcode == "bitcast" and i.operand_ids[0] in found:
            found.add(i.id)
    return found


def shorten_reads(
    computations: Mapping[int, _Computation],
    body: _Computation,
    parameter: _Instruction,
    axis: int,
    slices: int,
) -> None:
    """Reduces a fused computation's parameter to `slices` along `axis`, in place.

    So are its bitcasts, and the parameters of nested fusions that it is given to.
    """
    behind = casts_of(body, parameter)
    body.ClearField("program_shape")
    for i in body.instructions:
        if i.id in behind:
            shorten(i.shape, axis, slices)
        elif i.opcode == "fusion":
            inner = computations[i.called_computation_ids[0]]
            for k, operand in enumerate(i.operand_ids):
                if operand in behind:
                    shorten_reads(computations, inner, parameter_of(inner, k), axis, slices)


def update_of(fusion: _Instruction, body: _Computation, operand: int) -> _Instruction:
    """The dynamic-update-slice that alone reads the fusion's parameter number `operand`.

    Raises:
      HloError: something else reads it.
    """
    parameter = parameter_of(body, operand)
    readers = [i for i in body.instructions if parameter.id in i.operand_ids]
    if len(readers) != 1 or readers[0].opcode != "dynamic-update-slice":
        raise HloError(f"{fusion.name} does more than write a result into a scan residual")
    return readers[0]


def counts_slices(body: _Computation, update: _Instruction) -> int:
    """The dimension in which a dynamic-update-slice writes one slice; 0 if it writes all."""
    part = next(i for i in body.instructions if i.id == update.operand_ids[1])
    pairs = zip(part.shape.dimensions, update.shape.dimensions, strict=True)
    return next((k for k, (one, whole) in enumerate(pairs) if one != whole), 0)


def put_into_slots(
    fusion: _Instruction, body: _Computation, operand: int, axis: int, slices: int = SLOTS
) -> _Instruction:
    """Reduces an array into which a fusion writes a slice to few slices; returns its parameter.

    Args:
      fusion: changed in place, as is its computation `body`. operand: number of the array among its
        operands. axis: the dimension that counts slices. slices: how many are left.

    Raises:
      HloError: the fusion does something else with that operand.
    """
    update, parameter = update_of(fusion, body, operand), parameter_of(body, operand)
    root = next(i for i in body.instructions if i.id == body.root_id)
    shapes = [parameter.shape, update.shape]
    if root.id == update.id:
        shapes.append(fusion.shape)
    elif root.opcode == "tuple" and list(root.operand_ids).count(update.id) == 1:
        k = list(root.operand_ids).index(update.id)
        shapes += [root.shape.tuple_shapes[k], fusion.shape.tuple_shapes[k]]
    else:
        raise HloError(f"{fusion.name} does not return the scan residual that it writes to")
    for shape in shapes:
        shorten(shape, axis, slices)
    body.ClearField("program_shape")
    return parameter
