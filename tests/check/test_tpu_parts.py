"""What XLA:TPU adds after its scheduler: slices that are brought to VMEM and joined there."""

from types import SimpleNamespace as Op

import pytest

from hlo import xla_pb2
from hlo.shapes import Shape
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.expressions import _FusionNumbering
from olla_xla.check.executable.program import nowhere
from olla_xla.check.executable.tpu import Parts, decisive_config, joined_at


def shape(*dimensions, space=0, layout=(1, 0)):
    return Shape(11, dimensions, (), layout, space, 32, repr((dimensions, space)).encode())


def row_of(count):
    """The shape of so many bytes."""
    return Shape(6, (count,), (), (0,), 0, 8, b"bytes %d" % count)


ARRAY = shape(8, 6)


def cut(*ranges, stride=1, source=ARRAY):
    proto = xla_pb2.HloInstructionProto(opcode="slice")
    for start, limit in ranges:
        proto.slice_dimensions.add(start=start, limit=limit, stride=stride)
    dimensions = tuple(b - a for a, b in ranges)
    return Op(opcode="slice", proto=proto, shape=shape(*dimensions), operands=[Op(shape=source)])


def joining(made=ARRAY, operands=(), target="ConcatBitcast"):
    proto = xla_pb2.HloInstructionProto(opcode="custom-call", custom_call_target=target)
    return Op(opcode="custom-call", proto=proto, shape=made, operands=operands)


def joined(cuts, made=ARRAY, sources=None, numbers=None, more=(), target="ConcatBitcast"):
    """The shape of the array whose memory a call joins that is given these slices; else None."""
    parts, sources, found = Parts(), sources or [b"array"] * len(cuts), []

    def cast(number, old, new):
        assert (number, new) == (b"array", made)
        found.append(old)
        return b"cast"

    read = [b"slice %d" % k for k in range(len(cuts))] if numbers is None else numbers
    for one, source, number in zip(cuts, sources, read, strict=True):
        assert parts.of(one, [source], number, cast) == number
    others = [Op(opcode="copy") for _ in more]
    result = parts.of(joining(made, [*cuts, *others], target), [*read, *more], b"call", cast)
    assert result == (b"cast" if found else b"call")
    return found[0] if found else None


FIRST, SECOND, THIRD = cut((0, 3), (0, 6)), cut((3, 5), (0, 6)), cut((5, 8), (0, 6))


def test_slices_that_are_all_of_an_array_are_it_in_any_order():
    assert joined([FIRST, SECOND, THIRD]) and joined([THIRD, FIRST, SECOND])
    assert joined([FIRST, SECOND, THIRD], made=shape(8, 6, space=1)), "whatever the memory"


@pytest.mark.parametrize(
    "cuts",
    [
        [FIRST, THIRD],  # a gap
        [FIRST, SECOND],  # not to the end
        [SECOND, THIRD],  # not from the start
        [FIRST, SECOND, SECOND, THIRD],  # one twice
        [cut((0, 4), (0, 6)), cut((3, 8), (0, 6))],  # they overlap
        [cut((0, 4), (0, 3)), cut((4, 8), (3, 6))],  # along two dimensions
        [cut((0, 8), (0, 6))],  # nothing is cut
        [cut((0, 3), (0, 6)), cut((3, 8), (0, 6), stride=2)],
        [],
    ],
)
def test_what_is_not_all_of_an_array_is_not_it(cuts):
    assert not joined(cuts)


def test_parts_of_two_arrays_or_in_another_layout_are_none_of_them():
    both = [FIRST, cut((3, 8), (0, 6))]
    assert joined(both)
    assert not joined(both, sources=[b"array", b"other"])
    assert not joined(both, made=shape(8, 6, layout=(0, 1)))
    assert not joined(both, made=shape(48))
    assert not joined(both, more=[b"no slice"])
    assert not joined(both, target="mine")


def test_parts_of_a_row_of_bytes_are_an_array_of_any_shape_with_as_many():
    """XLA for a TPU v6e brings a bitcast of an array to VMEM in parts, and joins the array."""
    row = row_of(192)
    parts = [cut((100, 192), source=row), cut((0, 100), source=row)]
    assert joined(parts) == row == joined(parts, made=shape(6, 8, layout=(0, 1)))
    assert not joined(parts, made=shape(8, 7)), "other bytes"
    assert not joined(parts[1:]), "not all of the row"


@pytest.mark.parametrize("numbering", [_FusionNumbering, ElementExpressions])
def test_a_row_that_is_an_array_seen_as_bytes_is_joined_as_that_array(numbering):
    row, other = row_of(192), shape(6, 8)
    numbers, parts = numbering("tpu"), Parts()
    seen = numbers.cast(b"array", ARRAY, row)
    assert seen != b"array"
    cuts, read = [cut((100, 192), source=row), cut((0, 100), source=row)], [b"slice 0", b"slice 1"]
    for one, number in zip(cuts, read, strict=True):
        assert parts.of(one, [seen], number, numbers.cast) == number
    for made, expected in ((ARRAY, b"array"), (other, numbers.cast(b"array", ARRAY, other))):
        assert parts.of(joining(made, cuts), read, b"call", numbers.cast) == expected
    assert parts.of(joining(operands=cuts[:1]), read[:1], b"call", numbers.cast) == b"call"


def test_slices_of_equal_rows_are_told_by_their_places():
    rows, equal = [cut((0, 4), (0, 6)), cut((4, 8), (0, 6))], [b"slice", b"slice"]
    assert joined(rows, numbers=equal) == ARRAY
    assert not joined([rows[0], rows[0]], numbers=equal)
    parts = [FIRST, cut((3, 6), (0, 6)), cut((6, 8), (0, 6))]
    assert joined(parts, numbers=[*equal, b"last"])
    assert not joined([FIRST, FIRST, parts[2]], numbers=[*equal, b"last"])


def test_an_array_is_joined_of_its_single_rows_that_are_followed():
    """Loops' elements are such rows (`llama_scan_saved` on a v5e was refused)."""
    array, numbers = shape(4, 6), ElementExpressions("tpu")
    rows = [cut((k, k + 1), (0, 6), source=array) for k in range(4)]
    read = [numbers.part(row, [{(): b"array"}], [])[()] for row in rows]
    assert len(set(read)) == 4
    assert numbers._parts.of(joining(array, rows), read, b"call", numbers.cast) == b"array"
    assert numbers._parts.of(joining(array, rows[1:]), read[1:], b"call", numbers.cast) == b"call"


def test_where_each_slice_begins_behind_what_runs_beside():
    start = Op(opcode="async-start", called=[Op(result=THIRD)])
    done = Op(opcode="async-done", operands=[Op(opcode="async-update", operands=[start])])
    assert joined_at(joining(operands=[FIRST, done])) == [(0, 0), (5, 0)]
    assert joined_at(joining(operands=[FIRST, Op(opcode="copy")])) is None
    assert joined_at(joining(operands=[FIRST], target="mine")) is None


@pytest.mark.parametrize(
    ("opcode", "config", "decides"),
    [
        ("fusion", b'{"window": 1}', b""),
        ("custom-call", b'{"window": 1}', b""),
        ("custom-call", b'{"custom_call_config": {"b": 1, "a": 2}, "c": 3}', b'{"a": 2, "b": 1}'),
        ("custom-call", b"no JSON", b"no JSON"),
        ("custom-call", b"[1]", b"[1]"),
    ],
)
def test_what_of_a_config_decides_what_is_computed(opcode, config, decides):
    proto = xla_pb2.HloInstructionProto(backend_config=config)
    assert decisive_config(Op(opcode=opcode, proto=proto)) == decides


def test_a_shape_without_the_memory_that_it_lies_in():
    proto = xla_pb2.ShapeProto(element_type=13)
    for space in (1, 0):
        proto.tuple_shapes.add(element_type=11, dimensions=[4]).layout.memory_space = space
    nowhere(proto)
    assert [p.layout.memory_space for p in proto.tuple_shapes] == [0, 0]
    assert [list(p.dimensions) for p in proto.tuple_shapes] == [[4], [4]]
