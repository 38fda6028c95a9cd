"""Moves of local search: each leaves a legal order, and does what it is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.search import proposals
from olla_xla.schedule.search.state import new_state
from tests.support.graphs import all_orders, tensor_graphs, train_step


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
            lo, hi = proposals.propose(problem, state, first)
            if lo > hi:
                continue
            assert first <= lo <= hi < len(order)
            found = proposed(state, (lo, hi))
            assert tuple(found) in legal
            assert state.order.tolist() == list(order), "it is tried, not done"


def test_random_numbers_are_those_of_their_seed():
    def numbers(seed, count=400):
        random = np.array([seed], np.uint64)
        return [int(proposals.below(random, 7)) for _ in range(count)]

    assert numbers(3) == numbers(3) != numbers(4)
    assert set(numbers(3)) == set(range(7))
    assert max(np.bincount(numbers(5)) / 400) < 0.22, "each a seventh"
    _, state = searched(train_step(4))
    lengths = [proposals._distance(state, 20) for _ in range(400)]
    assert min(lengths) == 1 and max(lengths) == 20 and np.median(lengths) < 10
