"""The one temporary allocation, and asynchronous pairs between which nothing runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from hlo.values import analyse
from olla_xla.memory.assignment.model import AssignmentModel
from olla_xla.memory.assignment.temporaries import applies, joined, starts

pytestmark = pytest.mark.quick

SIZES = st.lists(st.integers(1, 2000), max_size=6)


def partitioned(row, is_front):
    """std::partition of a list with a bidirectional iterator, as the standard libraries have it."""
    row, first, last = list(row), 0, len(row)
    while True:
        while first != last and is_front(row[first]):
            first += 1
        if first == last:
            return row
        last -= 1
        while first != last and not is_front(row[last]):
            last -= 1
        if first == last:
            return row
        row[first], row[last] = row[last], row[first]
        first += 1


@given(SIZES, SIZES, st.lists(st.integers(0, 6), max_size=4), st.integers(0, 5))
def test_temporary_allocations_are_joined_as_a_partition_leaves_them(tables, heaps, gaps, others):
    row = list(tables)
    for gap in gaps:  # outputs and constants among the tables
        row.insert(min(gap, len(row)), None)
    row = [*row, *heaps, *[None] * others]
    end = 0
    for size in partitioned(row, lambda size: size is None):
        if size is not None:
            end = -(-end // 256) * 256 + size
    behind = row[-1:] == [None]  # without a heap a gap may be the last as well
    assert joined(np.array(tables, np.int64), heaps, behind, 256) == end


TWO = """HloModule two, is_scheduled=true

first {
  a = f32[64] parameter(0)
  ROOT b = f32[64] collective-permute(a), source_target_pairs={{0,1}}
}

second {
  c = f32[64] parameter(0)
  ROOT d = f32[64] collective-permute(c), source_target_pairs={{1,0}}
}

ENTRY e {
  p = f32[64] parameter(0)
  q = f32[64] negate(p)
  s = ((f32[64]), f32[64]) async-start(p), calls=first
  t = ((f32[64]), f32[64]) async-start(q), calls=second
  u = f32[64] async-done(s)
  v = f32[64] async-done(t)
  ROOT r = f32[64] add(u, v)
}
"""


def test_other_transfers_are_nothing_to_overlap_with():
    module = module_from_bytes(from_hlo_text(TWO))
    model = AssignmentModel(analyse(module), "cuda")
    time, _ = model.times({c: c.schedule for c in module.control_computations})
    assert len(model._starts.alone(time)) == 2


PAIR = """HloModule pair, is_scheduled=true

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY e {
  p = f32[64] parameter(0)
  n = f32[64] negate(p)
  s = ((f32[64]), f32[64]) all-gather-start(n), dimensions={0}
  BETWEEN
  d = f32[64] all-gather-done(s)
  r = f32[64] exponential(n)
  ROOT a = f32[64] add(d, r)
}
"""


@pytest.mark.parametrize(
    ("between", "alone"),
    [("", True), ("b = f32[8,8] bitcast(n)", True), ("t = f32[64] tanh(n)", False)],
)
def test_a_pair_becomes_one_where_nothing_runs_in_between(between, alone):
    module = module_from_bytes(from_hlo_text(PAIR.replace("BETWEEN", between)))
    numbers = {i: k for k, i in enumerate(module.entry.schedule)}
    found = starts(analyse(module), numbers, "cuda")
    time = np.arange(len(numbers))
    (pair,) = found.alone(time) if alone else [0]
    assert (len(found.alone(time)) == 1) == alone
    done = next(k for i, k in numbers.items() if i.name == "d")
    joined_times = found.joined_times(time, np.array([pair]))
    assert joined_times[done] == done - 1 and joined_times[done + 1] == done
    tables = [v for v in analyse(module).values if v.id in found.gone(np.array([pair]))]
    assert tables and all(v.shape.is_tuple for v in tables)
    assert not len(starts(analyse(module), numbers, "cpu").start)
    assert not applies(module)
