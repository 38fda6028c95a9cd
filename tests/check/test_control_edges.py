"""Control edges, channels and donated arguments of modules as they are handed back."""

import pytest

from hlo import xla_pb2
from hlo.parse import from_hlo_text
from olla_xla.check.executable import (
    check_control,
    check_executable,
    check_rewrite,
    results_digest,
)
from olla_xla.check.executable.verdict import check_places, check_planned
from olla_xla.errors import CheckError, ResultsError

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
    with pytest.raises(CheckError, match=r"b\S* must run after a\S*, but that dependency is"):
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


def test_results_that_are_others_are_refused():
    before = steps()
    after = changed(before, lambda named: setattr(named["b"], "opcode", "cosine"))
    with pytest.raises(CheckError, match="results are not those"):
        check_rewrite(before, after, "cpu")
    with pytest.raises(ResultsError):
        check_executable(after, "cpu", results=results_digest(before, "cpu"))


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


def placed(data, **offsets):
    """A buffer assignment that puts what instructions give at these bytes of one allocation."""
    proto = xla_pb2.HloModuleProto.FromString(data)
    found = xla_pb2.BufferAssignmentProto()
    allocation = found.buffer_allocations.add(index=7, size=1 << 10)
    for c in proto.computations:
        for i in c.instructions:
            name = i.name.split(".")[0]
            if name in offsets:
                number = len(found.logical_buffers) + 1
                where = found.logical_buffers.add(id=number, size=16).defined_at
                where.instruction_id = i.id
                allocation.assigned.add(logical_buffer_id=number, offset=offsets[name], size=16)
    return found.SerializeToString()


@pytest.mark.parametrize("planned", [False, True])
def test_what_is_written_over_where_it_lies_is_found(planned):
    data = steps()

    def check(assignment):
        if planned:
            accepted = check_planned(data, data, "cpu")
            check_places(accepted, data, "cpu", assignment=assignment)
        else:
            check_executable(data, "cpu", assignment=assignment)

    check(placed(data, x=0, y=16, a=32, b=48, r=64))
    with pytest.raises(CheckError, match="an argument that was not donated"):
        check(placed(data, x=0, y=16, a=0, b=48, r=64))
    with pytest.raises(CheckError, match="written over"):
        check(placed(data, x=0, y=16, a=20, b=48, r=64))  # over y, which b reads
    with pytest.raises(CheckError, match="not a buffer assignment"):
        check(b"\x01nothing")
