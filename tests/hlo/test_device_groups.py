"""Groups of devices are one list however XLA writes them."""

import pytest

from hlo.device_groups import device_groups, groups_listed
from hlo.module import parse_module_proto
from hlo.text import from_hlo_text
from hlo.wire import Message, varint

pytestmark = pytest.mark.quick

GATHER = """HloModule m, is_scheduled=true, num_partitions=8

ENTRY e {
  p = f32[8] parameter(0)
  ROOT g = f32[32] all-gather(p), dimensions={0}, channel_id=1, use_global_device_ids=true, GROUPS
}
"""
BY_TWOS = ((0, 2, 4, 6), (1, 3, 5, 7))


def written(groups):
    """An all-gather over groups, serialized."""
    module = parse_module_proto(from_hlo_text(GATHER.replace("GROUPS", f"replica_groups={groups}")))
    (gather,) = (i for c in module.computations for i in c.instructions if i.opcode != "parameter")
    return gather.SerializeToString(deterministic=True)


def field(number, value):
    """A field of a message: bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def over_axes(sizes, grouped, *more):
    """mesh_axes_replica_group_list, with further fields of the mesh."""
    axes = b"".join(field(1, field(1, b"axis") + field(2, size)) for size in sizes)
    mesh = field(1, axes + b"".join(more))
    taken = b"".join(field(2, field(1, k) if k else b"") for k in grouped)
    return Message(written("{}")).without({49, 87, 92}).encode() + field(93, mesh + taken)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,2,4,6},{1,3,5,7}}", BY_TWOS),
        ("{{1,3,5,7},{0,2,4,6}}", BY_TWOS),
        ("[2,4]<=[4,2]T(1,0)", BY_TWOS),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("{{2,0,4,6},{1,3,5,7}}", ((1, 3, 5, 7), (2, 0, 4, 6))),
    ],
)
def test_lists_and_extents(groups, expected):
    assert device_groups(Message(written(groups))) == expected


def test_axes_of_a_mesh():
    assert device_groups(Message(over_axes((4, 2), (0,)))) == BY_TWOS
    assert device_groups(Message(over_axes((2, 2, 2), (2, 0)))) == ((0, 4, 1, 5), (2, 6, 3, 7))
    of_others = over_axes((4, 2), (0,), field(2, varint(3)))
    assert device_groups(Message(of_others)) is None
    assert groups_listed(of_others) == of_others


def test_only_how_they_are_written_is_no_difference():
    listed, extents = written("{{0,2,4,6},{1,3,5,7}}"), written("[2,4]<=[4,2]T(1,0)")
    assert listed != extents
    assert groups_listed(listed) == groups_listed(extents) == groups_listed(over_axes((4, 2), (0,)))
    assert groups_listed(listed) != groups_listed(written("[2,4]<=[8]"))
    other = listed.replace(b"all-gather", b"all-reduce")
    assert groups_listed(other) != groups_listed(listed)
