"""The paper's location program, preplacement and joint program against brute force."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

from olla_xla.errors import InputError
from olla_xla.memory.lifetimes import intervals, peak_bytes
from olla_xla.place import PlacementProblem, place
from olla_xla.place.paper_ilp import joint_program, location_ilp, pyramid
from olla_xla.schedule.exact.plain import plain_graph
from olla_xla.solvers.linear import Status
from tests.place.test_place import brute_force, plain
from tests.support.graphs import all_orders, tensor_graphs


@settings(deadline=None, max_examples=40)
@given(plain(most=6))
def test_location_program_agrees_with_brute_force(problem):
    _, height, result = location_ilp(problem)
    assert result.status is Status.OPTIMAL
    assert height == brute_force(problem) == place(problem, method="search").height


@settings(deadline=None, max_examples=30)
@given(plain(most=7))
def test_pyramid_is_a_valid_start(problem):
    placed = pyramid(problem)
    offsets, height, _ = location_ilp(problem, preplaced=placed)
    assert all(offsets[i] == at for i, at in placed.items())
    assert height >= brute_force(problem)


def test_pyramid_nests_activations():
    """Forward activations live ever shorter, each inside the one before."""
    lower, upper = [0, 1, 2, 3, 4], [9, 8, 7, 6, 5]
    problem = PlacementProblem.of(lower, upper, [10, 20, 30, 40, 50])
    assert pyramid(problem) == {0: 0, 1: 10, 2: 30, 3: 60, 4: 100}
    _, height, _ = location_ilp(problem, preplaced=pyramid(problem))
    assert height == 150


def test_location_program_misuse():
    problem = PlacementProblem.of([0, 0], [1, 1], [8, 8])
    with pytest.raises(InputError, match="takes no groups"):
        location_ilp(dataclasses.replace(problem, group=np.array([0, 0])))
    with pytest.raises(InputError, match="overlap"):
        location_ilp(problem, preplaced={0: 0, 1: 4})


@settings(deadline=None, max_examples=12)
@given(tensor_graphs(max_operators=5))
def test_splitting_loses_nothing(graph):
    """The joint optimum is the best placement over all orders: splitting loses nothing."""
    graph = plain_graph(graph)
    joint = joint_program(graph)
    assert joint.optimal
    sizes = [t.bytes for t in graph.tensors]
    heights, peaks = [], []
    for order in all_orders(graph):
        lives = intervals(graph, order)
        problem = PlacementProblem.of(lives[:, 0], lives[:, 1], sizes)
        heights.append(place(problem, method="search").height)
        peaks.append(peak_bytes(graph, order))
    assert joint.height == min(heights)
    assert joint.height >= joint.peak_bytes >= min(peaks)
