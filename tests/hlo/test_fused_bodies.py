"""Fused computations while they are made: parameters, slices, indices and shapes of stacks."""

import pytest

from hlo import xla_pb2
from hlo.module import HloError
from hlo.rewrite.bodies import Names
from hlo.rewrite.fused_body import FusedBody, Part, slice_shape, stack_shape

Instruction = xla_pb2.HloInstructionProto
F32, S32, S64, BF16 = 11, 4, 5, 16


def shape(*dimensions, kind=F32, layout=None):
    found = xla_pb2.ShapeProto(element_type=kind, dimensions=dimensions)
    found.is_dynamic_dimension[:] = [False] * len(dimensions)
    order = reversed(range(len(dimensions))) if layout is None else layout
    found.layout.minor_to_major[:] = list(order)
    found.layout.SetInParent()
    return found


def value(number, *dimensions, kind=F32):
    return Instruction(id=number, name=f"v{number}", shape=shape(*dimensions, kind=kind))


class Made:
    """A body and what came into it."""

    def __init__(self):
        module = xla_pb2.HloModuleProto()
        self.computation = xla_pb2.HloComputationProto(id=7, name="f")
        self.body = FusedBody(self.computation, Names(module))

    def operands(self, i):
        by_id = {k.id: k for k in self.computation.instructions}
        return [by_id[k] for k in i.operand_ids]

    def opcodes(self):
        return [i.opcode for i in self.computation.instructions]

    def literal(self, i):
        found = xla_pb2.LiteralProto.FromString(i.literal)
        return [*found.s32s, *found.s64s]


def test_a_value_has_one_parameter():
    made = Made()
    one, other = value(3, 4), value(9, 4)
    first = made.body.parameter(one)
    assert made.body.parameter(other).parameter_number == 1
    assert made.body.parameter(one).id == first.id and first.parameter_number == 0
    assert made.body.value_of(first) == 3
    assert len({i.name for i in made.computation.instructions}) == 2


def test_parameters_are_numbered_as_another_fusion_has_them():
    made = Made()
    for number in (3, 5, 8, 9):
        made.body.parameter(value(number, 4))
    made.body.arrange({9: 0, 5: 1})
    numbers = {made.body.value_of(i): i.parameter_number for i in made.computation.instructions}
    assert numbers == {9: 0, 5: 1, 3: 2, 8: 3}
    root = made.body.copied(
        Instruction(name="sum", opcode="sum", shape=shape(4), control_predecessor_ids=[1]),
        list(made.computation.instructions),
    )
    assert not root.control_predecessor_ids
    fusion = made.body.fusion("fused", root, "kLoop", Instruction(fusion_kind="kInput"))
    assert list(fusion.operand_ids) == [9, 5, 3, 8]
    assert (fusion.opcode, fusion.fusion_kind, fusion.name) == ("fusion", "kLoop", "fused")
    assert list(fusion.called_computation_ids) == [7] and made.computation.root_id == root.id


def test_what_nothing_reads_is_refused():
    made = Made()
    made.body.parameter(value(1, 4))
    root = made.body.parameter(value(2, 4))
    with pytest.raises(HloError, match="nothing reads .* in fused"):
        made.body.fusion("fused", root, "kLoop", Instruction())


def test_a_slice_is_taken_along_its_axis():
    made = Made()
    at = made.body.parameter(value(1, kind=S32))
    found = made.body.sliced(value(2, 3, 20), shape(3, 4, 5), at, axis=1)
    assert list(found.shape.dimensions) == list(found.dynamic_slice_sizes) == [3, 1, 5]
    stack, *indices = made.operands(found)
    assert stack.opcode == "bitcast" and list(stack.shape.dimensions) == [3, 4, 5]
    assert indices[1].id == at.id
    assert [made.literal(i) for i in (indices[0], indices[2])] == [[0], [0]]
    assert indices[0].id == indices[2].id, "one zero"


def test_a_part_of_a_concatenation_is_its_range():
    made = Made()
    part = Part(shape(6, 9).SerializeToString(), shape(6, 4).SerializeToString(), 1, 5)
    found = made.body.part(made.body.parameter(value(2, 54)), part)
    ranges = [(d.start, d.limit, d.stride) for d in found.slice_dimensions]
    assert ranges == [(0, 6, 1), (5, 9, 1)]
    assert list(found.shape.dimensions) == [6, 4]
    assert list(made.operands(found)[0].shape.dimensions) == [6, 9]


def test_one_slice_is_updated():
    made = Made()
    at = made.body.parameter(value(1, kind=S64))
    found = made.body.update(value(2, 3, 5), value(3, 3), at, axis=1)
    stack, part, *indices = made.operands(found)
    assert made.body.value_of(stack) == 2 and list(part.shape.dimensions) == [3, 1]
    assert made.literal(indices[0]) == [0] and indices[1].id == at.id
    assert found.shape == stack.shape


@pytest.mark.parametrize(
    ("form", "opcode"), [((1, 0), "parameter"), ((1, -3), "add"), ((-1, 8), "subtract")]
)
def test_an_index_is_a_counter_times_one_or_minus_one_and_a_constant(form, opcode):
    made = Made()
    counter = value(1, kind=S64)
    found = made.body.index(counter, form)
    assert found.opcode == opcode and made.body.index(counter, form).id == found.id
    if form != (1, 0):
        constant, here = made.operands(found)  # 8 - i, not i - 8
        assert made.literal(constant) == [form[1]] and here.opcode == "parameter"
        assert constant.shape.element_type == S64


def test_zeros_of_any_type():
    made = Made()
    assert made.opcodes() == []
    made.body.zeros(shape(2, 3, kind=BF16))
    assert made.opcodes() == ["constant", "convert", "broadcast"]
    assert made.computation.instructions[1].shape.element_type == BF16
    made.body.zeros(shape(2, 3, kind=S32))
    assert made.opcodes()[3:] == ["broadcast"]


def test_what_an_operator_makes_of_integers():
    made = Made()
    one = made.body.parameter(value(1, kind=S32))
    found = made.body.integer("remainder", one, 5)
    first, second = made.operands(found)
    assert (found.opcode, first.id, made.literal(second)) == ("remainder", one.id, [5])


def test_each_slice_of_what_is_spread_is_the_value():
    made = Made()
    whole = shape(2, 3, 5, layout=(0, 2, 1))
    found = made.body.spread(made.body.parameter(value(1, 10)), whole, axis=1)
    (one,) = made.operands(found)
    assert list(found.dimensions) == [0, 2] and found.shape == whole
    assert list(one.shape.dimensions) == [2, 5]
    assert list(one.shape.layout.minor_to_major) == [0, 1]


def test_shapes_of_slices_and_of_stacks():
    assert list(slice_shape(shape(3, 4, 5)).dimensions) == [1, 4, 5]
    assert list(slice_shape(shape(3, 4, 5), 2).dimensions) == [3, 4, 1]
    part = shape(4, 5, layout=(0, 1))
    stack = xla_pb2.ShapeProto.FromString(stack_shape(part.SerializeToString(), 9))
    assert stack == shape(9, 4, 5, layout=(1, 2, 0))
    assert part == shape(4, 5, layout=(0, 1))
