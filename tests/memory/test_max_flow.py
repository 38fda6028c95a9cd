"""Minimum cuts against networkx, and the smallest source side."""

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from olla_xla.memory.max_flow import min_cut

ARC = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 5))


def cut_of(arcs, source=0, sink=1):
    tails, heads, capacities = np.array(arcs, np.int64).reshape(-1, 3).T
    return min_cut(tails.copy(), heads.copy(), capacities.copy(), source, sink)


@given(st.lists(ARC, max_size=40), st.sampled_from([1, 2**50]))
@settings(deadline=None)
def test_cuts_are_minimal_and_their_source_sides_smallest(arcs, scale):
    arcs = [(tail, head, scale * capacity) for tail, head, capacity in arcs]
    graph = nx.DiGraph()
    graph.add_nodes_from((0, 1))
    for tail, head, capacity in arcs:
        before = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        if tail != head:
            graph.add_edge(tail, head, capacity=before + capacity)
    size, side = cut_of(arcs)
    assert size == nx.maximum_flow_value(graph, 0, 1)
    # What the source reaches in the residual graph of any maximum flow.
    residual = nx.algorithms.flow.preflow_push(graph, 0, 1)
    open_arcs = [(u, v) for u, v, arc in residual.edges(data=True) if arc["flow"] < arc["capacity"]]
    reached = nx.descendants(nx.DiGraph([*open_arcs, (0, 0)]), 0) | {0}
    assert side.tolist() == sorted(reached)


def test_what_is_never_cut():
    never = 2**60
    assert cut_of([(0, 2, 7), (2, 3, never), (3, 1, 9), (2, 4, never), (4, 1, never)])[0] == 7


def test_a_graph_without_arcs():
    size, side = cut_of([], source=5, sink=1)
    assert size == 0 and side.tolist() == [5]
