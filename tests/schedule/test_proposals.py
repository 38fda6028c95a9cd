"""Moves of local search: each leaves a legal order, and does what it is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.search import moves
from olla_xla.schedule.search.state import new_state
from tests.support.graphs import all_orders, tensor_graphs


@pytest.fixture(autouse=True)
def _numbers_wrap_around():
    """Interpreted, as here, the random numbers are NumPy's, which says so."""
    with np.errstate(over="ignore"):
        yield


def searched(graph, order=None, seed=1):
    problem = GraphArrays.of(graph)
    order = np.arange(len(graph.operators)) if order is None else np.array(order)
    state = new_state(problem, order, seed)
    hot = np.flatnonzero(state.live == state.live.max())
    state.hot[: len(hot)] = hot
    state.counters[2] = len(hot)
    return problem, state


def proposed(state, window):
    """The whole order with the trial in its window."""
    lo, hi = window
    order = state.order.copy()
    order[lo : hi + 1] = state.trial[lo : hi + 1]
    return order.tolist()


@settings(max_examples=60, deadline=None)
@given(tensor_graphs(), st.integers(0, 3), st.integers(0, 10**6), st.data())
def test_every_move_leaves_a_legal_order(graph, first, seed, data):
    legal = [tuple(order) for order in all_orders(graph)]
    order = data.draw(st.sampled_from(legal))
    first = min(first, len(order) - 1)
    with np.errstate(over="ignore"):
        problem, state = searched(graph, order, seed)
        for _ in range(12):
            lo, hi = moves.propose(problem, state, first)
            if lo > hi:
                continue
            assert first <= lo <= hi < len(order)
            found = proposed(state, (lo, hi))
            assert tuple(found) in legal
            assert state.order.tolist() == list(order), "it is tried, not done"
