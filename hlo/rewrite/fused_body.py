"""Writes the computation of a new fusion: slices of arrays, casts, indices, copied operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation
from hlo.instructions import copied, scalar_constant
from hlo.module import HloError

_S32 = 4

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


@dataclasses.dataclass(frozen=True)
class Part:
    """One operand of a concatenate, described as the range of the result that it fills.

    Attributes:
      whole: serialized shape of the result. shape: of the operand. dimension: the concatenated one.
      start: index in that dimension at which the operand begins.
    """

    whole: bytes
    shape: bytes
    dimension: int
    start: int


class FusedBody:
    """Builds the computation of a new fusion, instruction by instruction, from an empty one.

    Most methods add an instruction to it and return that. Values "outside" are instructions that
    the fusion will have as operands; a parameter stands for each.
    """

    def __init__(self, body: MutableComputation) -> None:
        self._body = body
        self._parameters: dict[int, _Instruction] = {}
        self._iterations: dict[tuple[int, int], _Instruction] = {}
        self._zeros: dict[int, _Instruction] = {}
        """By element type."""

    def copied(self, i: _Instruction, operands: Sequence[_Instruction]) -> _Instruction:
        """Adds a copy of `i` without control predecessors that reads `operands`, also in here."""
        return self._body.add(copied(i, self._body.names.new(f"{i.name}.loop"), operands))

    def parameter(self, value: _Instruction) -> _Instruction:
        """Returns the parameter through which the fusion reads `value`; adds it if missing."""
        if value.id not in self._parameters:
            number = len(self._parameters)
            made = self._body.make("parameter", "param.loop", value.shape, parameter_number=number)
            self._parameters[value.id] = made
        return self._parameters[value.id]

    def value_of(self, parameter: _Instruction) -> int:
        """Returns the id of the instruction that the fusion reads through a parameter."""
        return next(k for k, i in self._parameters.items() if i.id == parameter.id)

    def arrange(self, numbers: Mapping[int, int]) -> None:
        """Renumbers parameters, from 0, and so operands: in another fusion's order, others last.

        Args:
          numbers: id of an outside instruction -> its parameter number in another fusion.
        """
        last = max(numbers.values(), default=-1) + 1
        arranged = sorted(self._parameters, key=lambda k: numbers.get(k, last))  # stable
        self._parameters = {k: self._parameters[k] for k in arranged}
        for number, i in enumerate(self._parameters.values()):
            i.parameter_number = number

    def cast(self, i: _Instruction, shape: _Shape) -> _Instruction:
        """Adds a bitcast of `i` to a shape; returns `i` itself if it has that shape."""
        return i if i.shape == shape else self._body.make("bitcast", "bitcast.loop", shape, i)

    def converted(self, i: _Instruction, element_type: int) -> _Instruction:
        """Adds a convert of `i` to an element type, given as XLA's PrimitiveType number."""
        made = self._body.make("convert", "convert.loop", i.shape, i)
        made.shape.element_type = element_type
        return made

    def sliced(
        self, stack: _Instruction, whole: _Shape, at: _Instruction, axis: int
    ) -> _Instruction:
        """Adds a dynamic-slice of extent 1 along `axis` of `stack`, an array outside the fusion.
        The array is bitcast to shape `whole` first; `at` is the index, inside the fusion.
        """
        stack = self.cast(self.parameter(stack), whole)
        part = slice_shape(whole, axis)
        indices = [
            at if k == axis else self._constant(0, at.shape) for k in range(len(part.dimensions))
        ]
        sizes = part.dimensions
        name = "slice.loop"
        return self._body.make(
            "dynamic-slice", name, part, stack, *indices, dynamic_slice_sizes=sizes
        )

    def part(self, whole: _Instruction, part: Part) -> _Instruction:
        """Adds a slice of `whole`, the value of a concatenate: the range of one operand, `part`."""
        shape = _Shape.FromString(part.shape)
        whole = self.cast(whole, _Shape.FromString(part.whole))
        starts = [part.start if k == part.dimension else 0 for k in range(len(shape.dimensions))]
        made = self._body.make("slice", "part.loop", shape, whole)
        for start, extent in zip(starts, shape.dimensions, strict=True):
            made.slice_dimensions.add(start=start, limit=start + extent, stride=1)
        return made

    def update(
        self, stack: _Instruction, value: _Instruction, at: _Instruction, axis: int = 0
    ) -> _Instruction:
        """Adds a dynamic-update-slice of array `stack` by slice `value`, both outside the fusion.
        `at` is the slice's index along `axis`, inside the fusion.
        """
        return self.put(stack, self.parameter(value), at, axis)

    def put(
        self, stack: _Instruction, value: _Instruction, at: _Instruction, axis: int = 0
    ) -> _Instruction:
        """Adds a dynamic-update-slice of `stack`, outside the fusion, by slice `value` inside it.
        `at` is the slice's index along `axis`, inside the fusion.
        """
        part = self.cast(value, slice_shape(stack.shape, axis))
        indices = [
            at if k == axis else self._constant(0, at.shape)
            for k in range(len(stack.shape.dimensions))
        ]
        return self.put_at(stack, part, indices)

    def part_at(
        self, array: _Instruction, part: _Shape, indices: Sequence[_Instruction]
    ) -> _Instruction:
        """Adds a dynamic-slice of `array`, outside the fusion, with the extents of shape `part`.
        Its `indices` are instructions inside, one for each dimension.
        """
        shape = _Shape()
        shape.CopyFrom(array.shape)
        shape.dimensions[:] = part.dimensions
        read = self.parameter(array), *indices
        sizes = part.dimensions
        return self._body.make(
            "dynamic-slice", "part.loop", shape, *read, dynamic_slice_sizes=sizes
        )

    def put_at(
        self, array: _Instruction, part: _Instruction, indices: Sequence[_Instruction]
    ) -> _Instruction:
        """Adds a dynamic-update-slice of `array`, outside the fusion; other operands are inside."""
        operands = self.parameter(array), part, *indices
        return self._body.make("dynamic-update-slice", "update.loop", array.shape, *operands)

    def zeros(self, shape: _Shape) -> _Instruction:
        """Adds an array of this shape that is filled with zeros."""
        number = _Shape(element_type=_S32)
        number.layout.SetInParent()
        zero = self._constant(0, number)
        if shape.element_type != _S32:
            zero = self.converted(zero, shape.element_type)
        return self._body.make("broadcast", "zeros.loop", shape, zero)

    def index(self, counter: _Instruction, form: tuple[int, int]) -> _Instruction:
        """Adds factor * counter + offset, once for each `form`, which is (factor, offset).
        The counter is an integer outside the fusion, the same in each call; factor is 1 or -1.
        """
        if form not in self._iterations:
            here = self.parameter(counter)
            factor, offset = form
            result = here
            if form != (1, 0):
                constant = self._constant(offset, here.shape)
                opcode = "add" if factor == 1 else "subtract"
                result = self._body.make(opcode, "turn.loop", here.shape, constant, here)
            self._iterations[form] = result
        return self._iterations[form]

    def integer(self, opcode: str, one: _Instruction, *others: _Instruction | int) -> _Instruction:
        """Adds operation `opcode` on scalar integers; Python integers become constants."""
        read = [self._constant(o, one.shape) if isinstance(o, int) else o for o in others]
        return self._body.make(opcode, f"{opcode}.loop", one.shape, one, *read)

    def spread(self, value: _Instruction, shape: _Shape, axis: int) -> _Instruction:
        """Adds a broadcast to `shape` in which each slice along `axis` is equal to `value`."""
        extents = [n for k, n in enumerate(shape.dimensions) if k != axis]
        one = _Shape(element_type=shape.element_type, dimensions=extents, layout=shape.layout)
        one.is_dynamic_dimension[:] = [False] * len(extents)
        one.layout.minor_to_major[:] = [
            k - (k > axis) for k in shape.layout.minor_to_major if k != axis
        ]
        others = [k for k in range(len(shape.dimensions)) if k != axis]
        made = self.cast(value, one)
        return self._body.make("broadcast", "slots.loop", shape, made, dimensions=others)

    def scalar(self, i: _Instruction) -> _Instruction:
        """Adds a bitcast of an array of one element to a scalar; returns a scalar as it is."""
        shape = _Shape(element_type=i.shape.element_type)
        shape.layout.SetInParent()
        return i if not i.shape.dimensions else self._body.make("bitcast", "scalar.loop", shape, i)

    def zero(self, shape: _Shape) -> _Instruction:
        """Returns a scalar 0 of the integer type of `shape`, added at the first call for it."""
        return self._constant(0, shape)

    def _constant(self, value: int, shape: _Shape) -> _Instruction:
        """Adds a scalar integer constant; zeros are added once for each element type."""
        kind = shape.element_type
        if value == 0 and kind in self._zeros:
            return self._zeros[kind]
        made = self._body.add(scalar_constant(self._body.names.new("constant.loop"), value, shape))
        if value == 0:
            self._zeros[kind] = made
        return made

    def fusion(self, name: str, root: _Instruction, kind: str, like: _Instruction) -> _Instruction:
        """Makes a fusion that calls this computation, with root `root`; the caller must add it.
        Raises HloError if nothing reads some instruction inside, which XLA does not accept.

        Args:
          name, kind: of the fusion. like: an instruction whose other fields are copied.
        """
        made = self._body.instructions()
        read = {k for i in made for k in i.operand_ids} | {root.id}
        if unread := [i.name for i in made if i.id not in read]:
            raise HloError(f"nothing reads {unread[0]} in {name}")
        self._body.computation.root_id = root.id
        fusion = _Instruction()
        fusion.CopyFrom(like)
        fusion.name, fusion.opcode, fusion.fusion_kind = name, "fusion", kind
        fusion.called_computation_ids[:] = [self._body.computation.id]
        fusion.operand_ids[:] = list(self._parameters)
        fusion.shape.CopyFrom(root.shape)
        return fusion


def slice_shape(shape: _Shape, axis: int = 0) -> _Shape:
    """Copies `shape`, with an extent of 1 in dimension `axis`."""
    part = _Shape()
    part.CopyFrom(shape)
    part.dimensions[axis] = 1
    return part


def stack_shape(shape: bytes, iterations: int) -> bytes:
    """Makes the shape of `iterations` arrays stacked in dimension 0; both shapes are serialized."""
    part = _Shape.FromString(shape)
    whole = _Shape(element_type=part.element_type, dimensions=[iterations, *part.dimensions])
    whole.layout.CopyFrom(part.layout)
    whole.layout.minor_to_major[:] = [*(k + 1 for k in part.layout.minor_to_major), 0]
    whole.is_dynamic_dimension[:] = [False] * len(whole.dimensions)  # as XLA writes it
    return whole.SerializeToString()
