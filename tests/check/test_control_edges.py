"""Control edges, channels and donated arguments of modules as they are handed back."""

import pytest

from hlo import xla_pb2
from hlo.text import from_hlo_text
from olla_xla.check.executable import check_control, check_executable, check_rewrite
from olla_xla.check.executable.verdict import check_places, check_planned
from olla_xla.errors import CheckError

STEPS = """HloModule m, is_scheduled=true{}
ENTRY e {{
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  a = f32[4] negate(x)
  b = f32[4] sine(y), control-predecessors={{a}}
  ROOT r = (f32[4], f32[4]) tuple(a, b)
}}"""
DONATED = ", input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }"

ADD = "add { p = f32[] parameter(0)\n q = f32[] parameter(1)\n ROOT s = f32[] add(p, q) }"
SUMS = f"""HloModule m, is_scheduled=true
{ADD}
ENTRY e {{
  x = f32[4] parameter(0)
  a = f32[4] all-reduce(x), channel_id=1, to_apply=add
  b = f32[4] all-reduce(a), channel_id=2, to_apply=add
  c = f32[4] all-reduce(b), channel_id=2, to_apply=add
  ROOT r = f32[4] negate(c)
}}"""


def changed(data, change):
    """A module after a change of its instructions, which is given them by name."""
    proto = xla_pb2.HloModuleProto.FromString(data)
    change({i.name.split(".")[0]: i for c in proto.computations for i in c.instructions})
    return proto.SerializeToString()


def steps(attributes=""):
    return from_hlo_text(STEPS.format(attributes))


def test_an_edge_that_is_lost_is_named():
    before = steps()
    after = changed(before, lambda named: named["b"].ClearField("control_predecessor_ids"))
    check_control(before, before)
    with pytest.raises(CheckError, match=r"b\S* must run after a\S*, but the plan lost that"):
        check_control(before, after)
    with pytest.raises(CheckError, match="must run after"):
        check_planned(before, after, "cpu")
    with pytest.raises(CheckError, match="must run after"):
        check_rewrite(before, after, "cpu")
    check_control(after, before)  # more are no harm


def test_an_edge_of_what_is_gone_is_no_loss():
    def without(named):
        named["b"].ClearField("control_predecessor_ids")
        named["a"].name = "another"

    before = steps()
    check_control(before, changed(before, without))


def test_what_is_new_has_a_channel_of_its_own():
    before = from_hlo_text(SUMS)
    check_control(before, before)  # two were on one channel already

    for name, channel in ("a", 2), ("b", 1):
        after = changed(before, lambda named, n=name, c=channel: setattr(named[n], "channel_id", c))
        with pytest.raises(CheckError, match=r"shares a channel with \w+\S*, but must have"):
            check_control(before, after)

    def apart(named):
        named["c"].channel_id = 3

    check_control(before, changed(before, apart))
    check_control(before, changed(before, lambda named: setattr(named["c"], "opcode", "copy")))


def test_donated_arguments_must_be_taken_over():
    plain, donated = steps(), steps(DONATED)
    wanted = frozenset({(0, ()), (1, ())})
    check_executable(donated, "cpu", donated=wanted)
    with pytest.raises(CheckError, match="memory of 2 of 2 donated arguments, the first of them"):
        check_executable(plain, "cpu", donated=wanted)
    accepted = check_planned(plain, plain, "cpu")
    assert accepted.is_reordered
    assert check_places(accepted, plain, "cpu") == {}
    with pytest.raises(CheckError, match=r"argument 1, part \[3\]"):
        check_places(accepted, plain, "cpu", donated=frozenset({(1, (3,))}))
