"""A plan that is an order alone: the referee sees so, and then numbers no values."""

import pytest

from hlo import xla_pb2
from hlo.module import module_from_bytes
from olla_xla.check.executable import check_planned
from olla_xla.check.executable.verdict import is_reordered
from tests.check.test_executable import module
from tests.support.rewrites import with_schedule

ORDERS = """
ENTRY e {{
  a = f32[64] parameter(0)
  {lines}
  ROOT r = f32[64] add(s, c)
}}"""
TWO = ["s = f32[64] sine(a)", "c = f32[64] cosine(a)"]


def in_order(lines, **kwargs):
    return module(ORDERS.format(lines="\n  ".join(lines)), **kwargs)


def test_another_order_is_seen_to_be_nothing_else():
    data = in_order(TWO)
    view = module_from_bytes(data)
    order = [i.name for i in view.entry.schedule or ()]
    s, c = (next(k for k, name in enumerate(order) if name[0] == n) for n in "sc")
    order[s], order[c] = order[c], order[s]
    notes = {name: {"note": "1"} for name in order}
    other = with_schedule(data, {view.entry.name: order}, notes)
    assert is_reordered(data, data) and is_reordered(data, other)
    assert check_planned(data, other, "cpu").is_reordered


@pytest.mark.parametrize(
    "change",
    [
        lambda p, i: setattr(i["s"], "opcode", "tan"),
        lambda p, i: i["r"].operand_ids.__setitem__(1, i["s"].id),
        lambda p, i: setattr(p.computations[-1], "root_id", i["s"].id),
        lambda p, i: i["s"].shape.layout.minor_to_major.append(0),
        lambda p, i: p.input_output_alias.entries.add(),
        lambda p, i: p.buffer_donor.entries.add(),
        lambda p, i: setattr(p, "entry_computation_id", p.computations[0].id),
        lambda p, i: i["s"].MergeFromString(b"\xf8\x3f\x01"),  # a field that is not known
        lambda p, i: p.computations.pop(0),
    ],
)
def test_anything_else_is_no_other_order(change):
    data = in_order(TWO)
    proto = xla_pb2.HloModuleProto.FromString(data)
    change(proto, {i.name.split(".")[0]: i for i in proto.computations[-1].instructions})
    assert not is_reordered(data, proto.SerializeToString())


@pytest.mark.parametrize(
    "effect",
    [
        's = f32[64] custom-call(a), custom_call_target="s", custom_call_has_side_effect=true',
        "s = f32[64] all-reduce(a), replica_groups={}, to_apply=sum",
    ],
)
def test_what_others_see_is_not_reordered(effect):
    data = in_order([effect, TWO[1]])
    assert not is_reordered(data, data)


def test_more_control_edges_are_no_other_module():
    data = in_order(TWO)
    proto = xla_pb2.HloModuleProto.FromString(data)
    found = {i.name.split(".")[0]: i for i in proto.computations[-1].instructions}
    found["c"].control_predecessor_ids.append(found["s"].id)
    kept = proto.SerializeToString()
    assert is_reordered(data, kept) and is_reordered(kept, kept)
    assert not is_reordered(kept, data)
