"""What is made in the body of a backward loop: parts of fusions, the iteration."""

import pytest

from hlo import xla_pb2
from hlo.rewrite.loop_edit import LoopEdit, NewInstruction, ValueRef
from hlo.rewrite.loop_module import LoopModule
from hlo.rewrite.loop_values import Maker
from hlo.text import from_hlo_text
from tests.support.two_loops import two_loops

pytestmark = pytest.mark.quick

FUSED = """

squared {
  p = f32[4] parameter(0)
  q = f32[4] multiply(p, p)
  ROOT r = f32[4] sine(q)
}

write {"""


def _named(computation, start):
    return next(i.name for i in computation.instructions if i.name.split(".")[0] == start)


class Bodies:
    """The bodies of both loops, and what changes the later one."""

    def __init__(self, target="cuda", **parts):
        text = two_loops(**parts).replace("\n\nwrite {", FUSED)
        self.proto = xla_pb2.HloModuleProto.FromString(from_hlo_text(text))
        computations = {c.name.split(".")[0]: c for c in self.proto.computations}
        whiles = {i.name.split(".")[0]: i.name for i in computations["main"].instructions}
        edit = LoopEdit(
            writer=whiles["first"], reader=whiles["second"], dropped=(), added=(),
            counter=_named(computations["read"], "n"), iterations=5, written=(1, 0), place=(-1, 4),
            iteration=(-1, 4), made=(), taken=(), target=target,
        )  # fmt: skip
        self.module = LoopModule(self.proto, edit)
        self.writer, self.reader = self.module.forward, self.module.backward
        self.maker = Maker(self.module)

    def name(self, start, body=None):
        """The reader's instruction that is called so; XLA numbers equal names."""
        return _named((body or self.reader).computation, start)

    def operands(self, i):
        return [k.name for k in self.reader.operands(i)]


def test_part_of_a_fusion():
    """Cut before its root: what it gives is the square alone."""
    bodies = Bodies(more="f = f32[4] fusion(h), kind=kLoop, calls=squared")
    original = bodies.name("f", bodies.writer)
    called = bodies.module.called(bodies.writer.named(original))
    names = {i.opcode: i.name for i in called.computation.instructions}
    given = ((names["parameter"], ValueRef(element=1)),)
    bodies.maker.make(NewInstruction("f.part", original, names["multiply"], given))
    made = bodies.maker.made("f.part")
    inner = bodies.module.called(made)
    assert sorted(i.opcode for i in inner.instructions()) == ["multiply", "parameter"]
    assert bodies.operands(made) == [bodies.name("h")]


@pytest.mark.parametrize("target", ["cpu", "cuda", "tpu"])
def test_the_iteration_of_the_forward_loop_is_four_less_the_counter(target):
    bodies = Bodies(target)
    made = bodies.maker.value(ValueRef(iteration=True))
    assert bodies.maker.value(ValueRef(iteration=True)) is made, "once"
    instructions = [made]
    if made.opcode == "fusion":
        instructions = list(bodies.module.called(made).instructions())
        assert bodies.operands(made) == [bodies.name("n")]
    else:
        instructions += bodies.reader.operands(made)
    assert "subtract" in {i.opcode for i in instructions}
    (constant,) = (i for i in instructions if i.opcode == "constant")
    assert xla_pb2.LiteralProto.FromString(constant.literal).s32s == [4]
