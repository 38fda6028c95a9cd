"""The networkx export keeps every operator, tensor, dependence and order of a graph."""

import doctest

import networkx as nx
import pytest
from hypothesis import given, settings

from olla_xla.cli.main import main
from olla_xla.errors import GraphError, InputError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.tools import to_networkx as module
from olla_xla.tools.to_networkx import from_networkx, read_graphml, to_networkx, write_graphml
from tests.support.graphs import all_orders, oracle_peak, tensor_graphs, train_step


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


def assert_same(back, graph):
    """Everything but edges that a tensor goes along anyway."""
    assert (back.name, back.operators, back.tensors) == (graph.name, graph.operators, graph.tensors)
    assert back.inplace == graph.inplace and set(back.alias_edges) == set(graph.alias_edges)
    assert back.predecessors == graph.predecessors


@given(tensor_graphs())
def test_there_and_back(graph):
    assert_same(from_networkx(to_networkx(graph)), graph)


@given(graph=tensor_graphs(max_operators=5))
@settings(max_examples=30)
def test_graphml_there_and_back(tmp_path_factory, graph):
    path = tmp_path_factory.mktemp("graph") / "graph.graphml"
    write_graphml(path, graph, list(range(len(graph.operators))))
    assert_same(read_graphml(path), graph)
    steps = nx.get_node_attributes(nx.read_graphml(path), "step")
    assert list(steps.values()) == list(range(len(graph.operators)))


def test_what_a_source_reads_itself_comes_back():
    operators = (Operator("a", "while"), Operator("b", "fusion"))
    graph = TensorGraph("loop", operators, (Tensor("a", 4, 0, (0, 1), 0), Tensor("b", 2, 1, (), 1)))
    assert_same(from_networkx(to_networkx(graph)), graph)


def test_a_graph_of_ones_own():
    """Any digraph whose edges have bytes; a node that comes too early goes after what it reads."""
    g = nx.DiGraph()
    g.add_nodes_from(["late", "early"])
    g.add_edge("early", "late", bytes=8)
    graph = from_networkx(g)
    assert [o.name for o in graph.operators] == ["early", "late"]
    assert oracle_peak(graph, [0, 1]) == 8


def test_the_example_holds():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("a", "b", {})], "has no size"),
        ([("a", "b", {"bytes": 1}), ("b", "a", {"bytes": 1})], "cycle"),
        ([("a", "b", {"kind": "data"})], "of kind 'data'"),
        (
            [("a", "b", {"bytes": 1, "tensor": 0}), ("a", "c", {"bytes": 2, "tensor": 0})],
            "contradicts the attributes of",
        ),
    ],
)
def test_what_is_no_tensor_graph(edges, message):
    g = nx.MultiDiGraph()
    g.add_edges_from(edges)
    with pytest.raises(GraphError, match=message):
        from_networkx(g)
    with pytest.raises(GraphError, match="directed"):
        from_networkx(nx.Graph())


def test_the_command_orders_a_graph_of_ones_own(tmp_path, capsys):
    g = nx.MultiDiGraph(name="mine")
    sizes = [("v1", "v2", 10), ("v1", "v3", 20), ("v2", "v4", 30), ("v3", "v4", 5)]
    g.add_edges_from((u, v, {"bytes": b}) for u, v, b in sizes)
    source, out = tmp_path / "mine.graphml", tmp_path / "ordered.graphml"
    nx.write_graphml_xml(g, source)
    assert main(["olla_xla", "graph", f"--graph={source}", f"--out={out}"]) == 0
    assert (
        "peak 60 bytes in the given order, 45 bytes in the order found" in capsys.readouterr().out
    )
    steps = nx.get_node_attributes(nx.read_graphml(out), "step")
    names = nx.get_node_attributes(nx.read_graphml(out), "name")
    assert [names[k] for k in sorted(steps, key=steps.get)] == ["v1", "v3", "v2", "v4"]
    assert main(["olla_xla", "graph", f"--graph={source}", f"--out={tmp_path / 'g.txt'}"]) == 2
    assert "must end in .graphml" in capsys.readouterr().err
    assert main(["olla_xla", "graph"]) == 2
    source.write_text("<no")
    with pytest.raises(InputError, match="is not GraphML"):
        read_graphml(source)


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    source, out = tmp_path / "mine.graphml", tmp_path / "mine.svg"
    write_graphml(source, train_step(2))
    assert main(["olla_xla", "graph", f"--graph={source}", f"--out={out}"]) == 0
    text = out.read_text()
    assert text.startswith("<?xml") and text.count('id="PathCollection') >= 1
