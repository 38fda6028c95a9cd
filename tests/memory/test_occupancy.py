"""Which bytes are whose at which step, by hand and for a small module by its simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlo.module import module_from_bytes
from hlo.parse import from_hlo_text
from olla_xla.memory.analysis.occupancy import Occupancy, _stops, occupancy
from olla_xla.memory.module_state import PlannedModule

BLOCKS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(1, 4), st.integers(0, 8),
              st.integers(0, 4)),
    max_size=8,
)  # fmt: skip


def arrays(blocks):
    """(allocation, offset, size, start, end), int64 each; the last step is inclusive."""
    rows = np.array(blocks, np.int64).reshape(-1, 5)
    allocation, offset, size, start, length = rows.T
    return allocation, offset, size, start, start + length


def of_blocks(blocks, steps):
    allocation, offset, size, start, end = arrays(blocks)
    return Occupancy(
        (), allocation, offset, size, start, end + 1, (), (None,) * steps, 0, assigned=False
    )


@given(BLOCKS, st.data())
def test_bytes_in_use(blocks, data):
    steps = 14
    found = of_blocks(blocks, steps)
    assert found.steps == steps
    at = [[k for k, (*_, s, n) in enumerate(blocks) if s <= t <= s + n] for t in range(steps)]
    assert [found.at(t).tolist() for t in range(steps)] == at
    assert found.in_use().tolist() == [sum(blocks[k][2] for k in ks) for ks in at]
    chosen = data.draw(st.lists(st.integers(0, 1), min_size=len(blocks), max_size=len(blocks)))
    some = [sum(blocks[k][2] for k in ks if chosen[k]) for ks in at]
    assert found.in_use(np.array(chosen, np.int64)).tolist() == some


@given(BLOCKS)
def test_memory_that_is_taken_over_counts_as_the_new_values(blocks):
    """A block that ends where another begins gives up its last step if they share a byte."""
    allocation, offset, size, start, end = arrays(blocks)
    found = _stops(allocation, offset, size, start, end).tolist()
    for k, (a, o, n, s, length) in enumerate(blocks):
        last = s + length
        taken = any(
            b == a and t == last and p < o + n and o < p + m and (t, t + more, j) > (s, last, k)
            for j, (b, p, m, t, more) in enumerate(blocks)
        )
        assert found[k] == (last if taken else last + 1)


CHAIN = """HloModule chain, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

ENTRY main {
  x = f32[256] parameter(0)
  a = f32[256] exponential(x)
  b = f32[64] slice(a), slice={[0:64]}
  c = f32[64] cosine(b)
  d = f32[256] concatenate(c, c, c, c), dimensions={0}
  ROOT y = f32[256] add(d, a)
}
"""


@pytest.fixture(scope="module")
def chain():
    module = module_from_bytes(from_hlo_text(CHAIN))
    return occupancy(PlannedModule(module, "cpu"))


def test_no_byte_is_two_values_at_a_step(chain):
    base = np.array([chain.allocations[k].base for k in chain.allocation])
    for step in range(chain.steps):
        taken = sorted((base[k] + chain.offset[k], chain.bytes[k]) for k in chain.at(step).tolist())
        assert all(
            low + size <= high for (low, size), (high, _) in zip(taken, taken[1:], strict=False)
        )


def test_lives_of_a_chain(chain):
    """b dies as c is made of it, or with it; y lives to the end, in the memory of x."""
    lives = {
        v.name: (int(s), int(e))
        for v, s, e in zip(chain.values, chain.start, chain.stop, strict=True)
    }
    step = {i.name: k for k, i in enumerate(chain.instructions) if i is not None}
    assert [i.name for i in chain.instructions if i is not None][-1] == "y"
    assert lives["a"][0] == step["a"] and lives["a"][1] in (step["y"], step["y"] + 1)
    assert lives["b"][0] == step["b"] and step["c"] <= lives["b"][1] <= step["c"] + 1
    assert lives["c"][1] in (step["d"], step["d"] + 1)
    assert lives["y"] == (step["y"], chain.steps)
    assert lives["x"][0] == 0


def test_allocations_stand_end_to_end_arguments_first(chain):
    first, *others = chain.allocations
    assert (first.kind, first.parameter, first.bytes, first.base) == ("argument", (0, ()), 1024, 0)
    assert {a.kind for a in others} <= {"temp", "output"}
    end = 0
    for allocation in chain.allocations:
        assert allocation.base >= end
        end = allocation.base + allocation.bytes
    assert not chain.assigned
    assert chain.total_bytes == sum(a.bytes for a in chain.allocations)
    assert chain.in_use().max() <= chain.total_bytes
