"""What the exact search knows of its items, against the items themselves."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.place.exact.model import model_of, overlapping_pairs
from olla_xla.place.items import independent, items_of
from olla_xla.place.problem import PlacementProblem

BLOCKS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=8
)


@settings(deadline=None)
@given(BLOCKS)
def test_neighbours_loads_and_twins(blocks):
    lower, length, size = (np.array(column) for column in zip(*blocks, strict=True))
    items, _ = items_of(PlacementProblem.of(lower, lower + length, size), 0)
    for part in independent(items):
        model = model_of(part)
        n = len(part)
        first, last = model.first, model.last
        near = [
            [j for j in range(n) if j != i and first[i] <= last[j] and first[j] <= last[i]]
            for i in range(n)
        ]
        assert overlapping_pairs(part) == sum(map(len, near))
        for i in range(n):
            found = model.nb_idx[model.nb_ptr[i] : model.nb_ptr[i + 1]]
            assert sorted(found.tolist()) == near[i]
            live = model.sec_idx[model.sec_ptr[i] : model.sec_ptr[i + 1]]
            assert live.tolist() == list(range(first[i], last[i] + 1))
            same = [
                j
                for j in range(i)
                if (first[j], last[j], part.size[j]) == (first[i], last[i], part.size[i])
            ]
            assert model.twin[i] == (same[-1] if same else -1)
        for t, load in enumerate(part.loads().tolist()):
            heights = model.mem_height[model.mem_ptr[t] : model.mem_ptr[t + 1]]
            assert heights.sum() == load
