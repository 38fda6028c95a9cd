"""What is made in the body of a backward loop, and what its readers are given instead."""

import pytest

from hlo import xla_pb2
from hlo.module import HloError
from hlo.parse import from_hlo_text
from hlo.rewrite.loop_edit import LoopEdit, NewInstruction, OperandReplacement, ValueRef
from hlo.rewrite.loop_module import LoopModule
from hlo.rewrite.loop_readers import Readers
from hlo.rewrite.loop_values import Maker
from tests.support.two_loops import two_loops

pytestmark = pytest.mark.quick

FUSED = """

squared {
  p = f32[4] parameter(0)
  q = f32[4] multiply(p, p)
  ROOT r = f32[4] sine(q)
}

write {"""


class Bodies:
    """The bodies of both loops, and what changes the later one."""

    def __init__(self, target="cuda", **parts):
        text = two_loops(**parts).replace("\n\nwrite {", FUSED)
        self.proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(text))
        self.module = LoopModule(self.proto)
        computations = {c.name.split(".")[0]: c for c in self.proto.computations}
        self.writer, self.reader, self.parent = (
            self.module.body(computations[name]) for name in ("write", "read", "main")
        )
        edit = LoopEdit(
            writer="first", reader="second", dropped=(), added=(), counter=self.name("n"),
            iterations=5, written=(1, 0), place=(-1, 4), iteration=(-1, 4), made=(), taken=(),
            target=target,
        )  # fmt: skip
        self.maker = Maker(self.module, edit, self.reader, self.writer, self.parent)
        self.readers = Readers(self.module, self.reader, self.maker)

    def name(self, start):
        """The reader's instruction that is called so; XLA numbers equal names."""
        found = [i.name for i in self.reader.computation.instructions]
        return next(name for name in found if name.split(".")[0] == start)

    def original(self, start):
        """The same of the writer."""
        found = [i.name for i in self.writer.computation.instructions]
        return next(name for name in found if name.split(".")[0] == start)

    def operands(self, i):
        return [k.name for k in self.reader.operands(i)]


def test_a_copy_of_an_instruction_of_the_forward_loop():
    bodies = Bodies()
    original = bodies.original("g")
    bodies.maker.make(NewInstruction("g.again", original, operands=((0, ValueRef(element=1)),)))
    made = bodies.maker.made("g.again")
    assert (made.opcode, bodies.operands(made)) == ("tanh", [bodies.name("h")])
    assert made in bodies.reader.instructions()
    follows = NewInstruction("g.twice", original, operands=((0, ValueRef(made="g.again")),))
    bodies.maker.make(follows)
    assert bodies.operands(bodies.maker.made("g.twice")) == ["g.again"]


def test_a_name_that_is_taken():
    bodies = Bodies()
    taken = NewInstruction(bodies.name("flat"), bodies.original("g"))
    with pytest.raises(HloError, match="plan it again"):
        bodies.maker.make(taken)


def test_a_copied_fusion_has_a_computation_of_its_own():
    bodies = Bodies(more="f = f32[4] fusion(h), kind=kLoop, calls=squared")
    original = bodies.original("f")
    bodies.maker.make(NewInstruction("f.again", original, operands=((0, ValueRef(element=1)),)))
    made, source = bodies.maker.made("f.again"), bodies.writer.named(original)
    assert made.called_computation_ids[0] != source.called_computation_ids[0]
    (inner,) = (c for c in bodies.module._fused if c.id == made.called_computation_ids[0])
    before = bodies.module.computations[source.called_computation_ids[0]]
    assert [i.opcode for i in inner.instructions] == [i.opcode for i in before.instructions]
    names = {i.name for c in bodies.proto.computations for i in c.instructions}
    assert not names & {i.name for i in inner.instructions}
    ids = {i.id for i in inner.instructions}
    assert inner.root_id in ids and all(k in ids for i in inner.instructions for k in i.operand_ids)


def test_part_of_a_fusion():
    """Cut before its root: what it gives is the square alone."""
    bodies = Bodies(more="f = f32[4] fusion(h), kind=kLoop, calls=squared")
    original = bodies.original("f")
    called = bodies.writer.named(original).called_computation_ids[0]
    names = {i.opcode: i.name for i in bodies.module.computations[called].instructions}
    given = ((names["parameter"], ValueRef(element=1)),)
    bodies.maker.make(NewInstruction("f.part", original, names["multiply"], given))
    made = bodies.maker.made("f.part")
    (inner,) = (c for c in bodies.module._fused if c.id == made.called_computation_ids[0])
    assert sorted(i.opcode for i in inner.instructions) == ["multiply", "parameter"]
    assert bodies.operands(made) == [bodies.name("h")]


def test_values_of_the_body():
    bodies = Bodies()
    assert bodies.maker.value(ValueRef(own=bodies.name("flat"))).name == bodies.name("flat")
    assert bodies.maker.value(ValueRef(element=0)).name == bodies.name("n")
    with pytest.raises(HloError, match="read before it is made"):
        bodies.maker.value(ValueRef(element=2, whole=b"shape"))


def test_copies_are_arrays_of_their_own():
    bodies = Bodies()
    one, same, two = (bodies.maker.value(ValueRef(element=1, copy=k)) for k in (1, 1, 2))
    assert one is same and one is not two
    assert one.opcode == two.opcode == "copy" and bodies.operands(one) == [bodies.name("h")]


@pytest.mark.parametrize("target", ["cpu", "cuda", "tpu"])
def test_the_iteration_of_the_forward_loop_is_four_less_the_counter(target):
    bodies = Bodies(target)
    made = bodies.maker.value(ValueRef(iteration=True))
    assert bodies.maker.value(ValueRef(iteration=True)) is made, "once"
    instructions = [made]
    if made.opcode == "fusion":
        (inner,) = (c for c in bodies.module._fused if c.id == made.called_computation_ids[0])
        instructions = list(inner.instructions)
        assert bodies.operands(made) == [bodies.name("n")]
    else:
        instructions += bodies.reader.operands(made)
    assert "subtract" in {i.opcode for i in instructions}
    (constant,) = (i for i in instructions if i.opcode == "constant")
    assert xla_pb2.LiteralProto.FromString(constant.literal).s32s == [4]


def test_a_reader_is_replaced_by_what_is_made():
    bodies = Bodies()
    original = bodies.original("g")
    bodies.maker.make(NewInstruction("g.again", original, operands=((0, ValueRef(element=1)),)))
    row, flat = bodies.name("row"), bodies.name("flat")
    bodies.readers.take(OperandReplacement(row, 0, ValueRef(made="g.again"), replaced=True))
    (cast,) = bodies.reader.operands(bodies.reader.named(flat))
    assert cast.opcode == "bitcast" and bodies.operands(cast) == ["g.again"]
    left = {i.name for i in bodies.reader.instructions()}
    assert row not in left and bodies.name("g") in left


def test_only_fusions_read_something_else():
    bodies = Bodies()
    with pytest.raises(HloError, match="cannot read anything but the scan residual"):
        bodies.readers.take(OperandReplacement(bodies.name("row"), 0, ValueRef(element=1)))
