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
    """Lets an array have so many slices."""
    shape.dimensions[axis] = min(shape.dimensions[axis], slices)


def parameter_of(body: _Computation, number: int) -> _Instruction:
    """A parameter, by its number."""
    return next(
        i for i in body.instructions if i.opcode == "parameter" and i.parameter_number == number
    )


def casts_of(body: _Computation, parameter: _Instruction) -> set[int]:
    """The ids of a parameter and of bitcasts of it."""
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
    """Lets a parameter of a fusion that takes slices be of so many, with its casts, in nested
    fusions too.
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
    """The dynamic-update-slice of a fusion's operand, which nothing else in the fusion reads.

    Raises:
      HloError: there is none.
    """
    parameter = parameter_of(body, operand)
    readers = [i for i in body.instructions if parameter.id in i.operand_ids]
    if len(readers) != 1 or readers[0].opcode != "dynamic-update-slice":
        raise HloError(f"{fusion.name} does more than write a result into a scan residual")
    return readers[0]


def counts_slices(body: _Computation, update: _Instruction) -> int:
    """The dimension along which a slice is put into an array."""
    part = next(i for i in body.instructions if i.id == update.operand_ids[1])
    pairs = zip(part.shape.dimensions, update.shape.dimensions, strict=True)
    return next((k for k, (one, whole) in enumerate(pairs) if one != whole), 0)


def put_into_slots(
    fusion: _Instruction, body: _Computation, operand: int, axis: int, slices: int = SLOTS
) -> _Instruction:
    """Lets a fusion put a result into an array of few slices; gives the parameter that is this.

    Args:
      fusion: it is changed, as is its computation: body. operand: number of the array among what it
        is given. axis: the dimension of it that counts slices. slices: that it has then.

    Raises:
      HloError: it does something else with that operand.
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
