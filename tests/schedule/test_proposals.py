"""Moves of local search: each leaves a legal order, and does what it is for."""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import timeline
from olla_xla.schedule.search import proposals
from olla_xla.schedule.search.state import Problem, new_state
from tests.support.graphs import all_orders, tensor_graphs, train_step


@pytest.fixture(autouse=True)
def _numbers_wrap_around():
    """Interpreted, as here, the random numbers are NumPy's, which says so."""
    with np.errstate(over="ignore"):
        yield


def searched(graph, order=None, seed=1):
    problem = Problem.of(GraphArrays.of(graph))
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


def marked(state, *operators):
    state.counters[0] += 1
    for v in operators:
        state.marked[v] = state.counters[0]


def test_what_is_pulled_comes_with_what_it_needs_and_what_is_pushed_with_what_needs_it():
    graph = types.SimpleNamespace(
        order=np.arange(6),
        trial=np.zeros(6, int),
        marked=np.zeros(6, int),
        counters=np.zeros(4, int),
    )
    # 0 -> 3 -> 5, and 1, 2, 4 by themselves.
    problem = types.SimpleNamespace(
        pred_ptr=np.array([0, 0, 0, 0, 1, 1, 2]),
        pred_idx=np.array([0, 3]),
        succ_ptr=np.array([0, 1, 1, 1, 2, 2, 2]),
        succ_idx=np.array([3, 5]),
    )
    marked(graph, 5)
    proposals._pull(problem, graph, 0, 5)
    assert graph.trial.tolist() == [0, 3, 5, 1, 2, 4]
    marked(graph, 5)
    proposals._pull(problem, graph, 1, 5)
    assert graph.trial[1:].tolist() == [3, 5, 1, 2, 4], "what is before the window stays"
    marked(graph, 0)
    proposals._push(problem, graph, 0, 5)
    assert graph.trial.tolist() == [1, 2, 4, 0, 3, 5]
    marked(graph, 3)
    proposals._push(problem, graph, 2, 4)
    assert graph.trial[2:5].tolist() == [2, 4, 3]


@pytest.mark.parametrize("kind", [proposals._FARTHER, 1])
def test_a_tensor_dies_at_the_hot_step_or_before(kind):
    graph = train_step(8)
    problem, state = searched(graph)
    tried = 0
    for step in range(2, len(graph.operators) - 2):
        for a in np.flatnonzero((state.last > step) & ~problem.live_out):
            if not problem.live_in[a] and state.place[problem.source[a]] > step:
                continue
            state.counters[0] += 1
            lo, hi = proposals._die_sooner(problem, state, 0, kind, int(a), step)
            assert lo <= step and hi == state.last[a]
            place = {v: t for t, v in enumerate(proposed(state, (lo, hi)))}
            sinks = problem.sink_idx[problem.sink_ptr[a] : problem.sink_ptr[a + 1]]
            moved = [v for v in sinks if state.place[v] >= step]
            others = [v for v in state.order[lo : hi + 1] if state.marked[v] != state.counters[0]]
            assert max(place[v] for v in moved) < min((place[v] for v in others), default=10**6)
            tried += 1
            state.counters[0] += 1
            late = proposals._die_sooner(problem, state, step + 1, kind, int(a), step)
            assert late == (step + 1, state.last[a]), "what comes first stays first"
    assert tried > 5


def test_a_tensor_appears_behind_the_hot_step():
    graph = train_step(8)
    problem, state = searched(graph)
    for a in range(len(problem.size)):
        state.counters[0] += 1
        source = state.place[problem.source[a]]
        step = len(graph.operators) - 2
        window = proposals._appear_later(problem, state, 0, 1, a, step)
        if problem.live_in[a]:
            assert window == (0, -1)
        elif source < step:
            assert window == (source, step)
            place = {v: t for t, v in enumerate(proposed(state, window))}
            others = [
                v for v in state.order[source : step + 1] if state.marked[v] != state.counters[0]
            ]
            assert place[problem.source[a]] > max((place[v] for v in others), default=-1)
    later = [a for a in range(len(problem.size)) if not problem.live_in[a]][0]
    first = int(state.place[problem.source[later]]) + 1
    assert proposals._appear_later(problem, state, first, 1, later, first + 3) == (0, -1)


def test_freely_an_operator_goes_as_far_as_it_may():
    graph = train_step(8)
    problem, state = searched(graph)
    n = len(state.order)
    for here in range(n):
        v = state.order[here]
        state.counters[0] += 1
        lo, hi = proposals._pull_one(problem, state, 0, proposals._PULL_FREELY, here)
        before = problem.pred_idx[problem.pred_ptr[v] : problem.pred_ptr[v + 1]]
        least = max((state.place[u] + 1 for u in before), default=0)
        assert hi == here and (lo == least or least == here) or (lo, hi) == (0, -1)
        if least < here:
            assert state.trial[lo] == v
        state.counters[0] += 1
        lo, hi = proposals._push_one(problem, state, proposals._PUSH_FREELY, here)
        after = problem.succ_idx[problem.succ_ptr[v] : problem.succ_ptr[v + 1]]
        most = min((state.place[u] - 1 for u in after), default=n - 1)
        if most > here:
            assert (lo, hi) == (here, most) and state.trial[hi] == v


def test_tensors_are_drawn_by_their_size_among_those_that_are_live():
    graph = train_step(8)
    problem, state = searched(graph)
    assert [proposals._drawn(np.array([2, 2, 7]), ball) for ball in range(7)] == [0, 0, *[2] * 5]
    step = int(state.hot[0])
    drawn = {proposals._live_tensor(problem, state, step) for _ in range(60)} - {-1}
    assert drawn
    for a in drawn:
        start = 0 if problem.live_in[a] else state.place[problem.source[a]]
        assert start <= step <= state.last[a] and problem.size[a] > 0
    nothing = problem._replace(pick=np.zeros(len(problem.pick), np.int64))
    assert proposals._live_tensor(nothing, state, step) == -1


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


def test_the_live_bytes_are_those_of_the_timeline():
    graph = train_step(6)
    _, state = searched(graph)
    assert state.live.tolist() == list(timeline(graph, state.order))
