"""The networkx export keeps every operator, tensor, dependence and order of a graph."""

import networkx as nx
from hypothesis import given

from olla_xla.problem.to_networkx import to_networkx
from tests.support.graphs import all_orders, tensor_graphs, train_step


@given(tensor_graphs(max_operators=5))
def test_every_part_of_a_graph_is_there(graph):
    exported = to_networkx(graph)
    assert exported.number_of_nodes() == len(graph.operators)
    for k, operator in enumerate(graph.operators):
        assert exported.nodes[k]["name"] == operator.name
        assert exported.nodes[k]["transient_bytes"] == operator.transient_bytes
    edges = list(exported.edges(data=True))
    for k, tensor in enumerate(graph.tensors):
        mine = [(u, v, d) for u, v, d in edges if d.get("tensor") == k]
        assert sorted(v for _, v, _ in mine) == sorted(s for s in tensor.sinks)
        assert all(u == tensor.source and d["bytes"] == tensor.bytes for u, _, d in mine)
        assert (not mine) == (k in exported.graph["unread"])
    assert {(u, v) for u, v, d in edges if d["kind"] == "alias"} == set(graph.alias_edges)
    assert exported.graph["inplace"] == graph.inplace


@given(tensor_graphs(max_operators=5))
def test_orders_are_the_graphs(graph):
    exported = nx.DiGraph(to_networkx(graph))
    orders = {tuple(order) for order in nx.all_topological_sorts(exported)}
    assert orders == {tuple(order) for order in all_orders(graph)}


def test_control_edges_carry_no_tensor():
    graph = train_step(2)
    kinds = {}
    for u, v, data in to_networkx(graph).edges(data=True):
        kinds.setdefault(data["kind"], set()).add((u, v))
    assert kinds["tensor"] == set(graph.edges) and "control" not in kinds
    assert kinds["alias"] == set(graph.alias_edges)
