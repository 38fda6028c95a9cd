"""The referee of schedules and placements: right plans pass, damaged ones are named."""

import dataclasses
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import olla_xla.check.graph as referee
from olla_xla.check.graph import check_placement, check_schedule, lifetime_peak
from olla_xla.errors import CheckError
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from tests.support.graphs import all_orders, oracle_peak, oracle_spans, tensor_graphs, train_step


def chain(*, alias_edges=(), late_buffer=2):
    """a -> b, a -> c: b takes over the buffer of a if `late_buffer` is 0."""
    operators = tuple(Operator(name, "fusion", 0, False) for name in "abc")
    tensors = (
        Tensor("a", 8, 0, (1, 2), 0),
        Tensor("b", 8, 1, (), late_buffer, live_out=True),
        Tensor("c", 8, 2, (), 1, live_out=True),
    )
    return TensorGraph("chain", operators, tensors, (), tuple(alias_edges))


@given(tensor_graphs(max_operators=6))
def test_peak_agrees_with_the_definition(graph):
    for order in list(all_orders(graph))[:20]:
        peak = oracle_peak(graph, order)
        assert check_schedule(graph, order, peak) == lifetime_peak(graph, order) == peak


@given(tensor_graphs(), st.randoms(use_true_random=False))
def test_orders_that_are_not_topological_are_rejected(graph, rng):
    n = len(graph.operators)
    order = rng.sample(range(n), n)
    step = {v: t for t, v in enumerate(order)}
    before = graph.predecessors
    if all(step[u] < step[v] for v in range(n) for u in before[v]):
        check_schedule(graph, order)
    else:
        with pytest.raises(CheckError, match="op[0-9]"):
            check_schedule(graph, order)


def test_a_wrong_peak_is_rejected():
    graph = train_step(3)
    order = range(len(graph.operators))
    with pytest.raises(CheckError, match="claims a peak of 1 bytes"):
        check_schedule(graph, order, 1)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1], "the order of chain lacks c"),
        ([0, 1, 1], "b runs twice, at steps 1 and 2"),
        ([0, 1, 3], "operator 3 at position 2"),
        ([1, 0, 2], "b reads a at step 0, before a defines it at step 1"),
    ],
)
def test_what_is_no_order_is_named(order, message):
    with pytest.raises(CheckError, match=message):
        check_schedule(chain(), order)


def test_a_control_dependency_counts():
    graph = dataclasses.replace(chain(), edges=((2, 1),))
    check_schedule(graph, [0, 2, 1])
    with pytest.raises(CheckError, match="b runs at step 1, before c at step 2"):
        check_schedule(graph, [0, 1, 2])


def test_a_reader_after_the_buffer_is_overwritten():
    with pytest.raises(CheckError, match="c reads a buffer at step 2 that b has overwritten"):
        check_schedule(chain(alias_edges=[(2, 1)]), [0, 1, 2])
    # The referee sees it from the tensors too, where the edge is missing.
    with pytest.raises(CheckError, match="a is still read at step 2, after b takes its buffer"):
        check_schedule(chain(late_buffer=0), [0, 1, 2])


def _stacked(graph):
    """Every tensor in a place of its own; those of one buffer in one."""
    bases, top = {}, 0
    for tensor in graph.tensors:
        if tensor.buffer not in bases:
            bases[tensor.buffer] = top
            top += max(t.bytes for t in graph.tensors if t.buffer == tensor.buffer)
    return {t.name: (bases[t.buffer], t.bytes) for t in graph.tensors}, top


@given(tensor_graphs(), st.randoms(use_true_random=False))
def test_two_live_tensors_must_not_overlap(graph, rng):
    order = next(all_orders(graph))
    offsets, arena = _stacked(graph)
    check_placement(graph, order, offsets, arena)
    spans = oracle_spans(graph, order)
    pairs = [
        (a, b)
        for a, x in enumerate(graph.tensors)
        for b, y in enumerate(graph.tensors)
        if a != b
        and x.buffer != y.buffer
        and x.bytes
        and y.bytes
        and spans[a] & spans[b]
        # In place, a result may begin where its operand does.
        and (a, b) not in graph.inplace
        and (b, a) not in graph.inplace
    ]
    assume(pairs)
    a, b = (graph.tensors[i].name for i in rng.choice(pairs))
    with pytest.raises(CheckError, match="overlap|takes over"):
        check_placement(graph, order, {**offsets, a: (offsets[b][0], offsets[a][1])})


def test_an_output_of_the_step_passes_nothing_on():
    graph = chain()
    kept = dataclasses.replace(graph.tensors[1], live_out=True)
    graph = dataclasses.replace(
        graph, tensors=(graph.tensors[0], kept, graph.tensors[2]), inplace=((2, 1),)
    )
    with pytest.raises(CheckError, match="b at .* and c at .* overlap"):
        check_placement(graph, [0, 1, 2], {"a": (0, 8), "b": (8, 8), "c": (8, 8)})


def test_a_place_one_byte_too_low():
    graph = chain()
    offsets = {"a": (0, 8), "b": (8, 8), "c": (16, 8)}
    check_placement(graph, [0, 1, 2], offsets, 24)
    with pytest.raises(CheckError, match=r"b.*c|c.*b"):
        check_placement(graph, [0, 1, 2], {**offsets, "c": (15, 8)}, 24)
    with pytest.raises(CheckError, match="23"):
        check_placement(graph, [0, 1, 2], offsets, 23)
    with pytest.raises(CheckError, match="c"):
        check_placement(graph, [0, 1, 2], {"a": (0, 8), "b": (8, 8)}, 24)


def test_a_tensor_is_compared_with_those_near_it(monkeypatch):
    """Of 100,000 operators each was compared with all that are live; one over all still is."""
    compared, overlap = [], referee._overlap
    monkeypatch.setattr(
        referee, "_overlap", lambda *a: compared.append(overlap(*a)) or compared[-1]
    )
    n = 512
    operators = tuple(Operator(f"o{k}", "fusion") for k in range(n))
    tensors = tuple(Tensor(f"t{k}", 8, k, (), k, live_out=True) for k in range(n))
    graph = TensorGraph("wide", operators, tensors)
    offsets = {f"t{k}": (8 * k, 8) for k in range(n)}
    check_placement(graph, range(n), offsets)
    assert 0 < sum(x.size for x in compared) < n * n / 16
    last = dataclasses.replace(tensors[-1], bytes=8 * n)
    graph = dataclasses.replace(graph, tensors=(*tensors[:-1], last))
    with pytest.raises(CheckError, match="t0 at .* and t511 at .* overlap"):
        check_placement(graph, range(n), offsets | {"t511": (0, 8 * n)})


def test_memory_that_passes_on_begins_at_one_offset():
    operators = tuple(Operator(name, "fusion", 0, False) for name in "ab")
    tensors = (Tensor("a", 8, 0, (1,), 0), Tensor("b", 8, 1, (), 1, live_out=True))
    graph = TensorGraph("pair", operators, tensors, inplace=((1, 0),))
    check_placement(graph, [0, 1], {"a": (0, 8), "b": (0, 8)}, 8)
    with pytest.raises(CheckError, match="b at .4, 12. takes over the memory of a at .0, 8."):
        check_placement(graph, [0, 1], {"a": (0, 8), "b": (4, 8)}, 12)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["result first", "callee first"])
def test_a_callee_may_use_the_memory_of_its_callers_last_result(order):
    """Both begin at the caller's step, and nothing comes after it."""
    both = Tensor("result", 8, 0, (), 0, live_out=True), Tensor("inside", 8, 0, (), 1)
    tensors = tuple(both[k] for k in order)
    graph = TensorGraph("call", (Operator("call", "while", 0, False),), tensors)
    paired = dataclasses.replace(graph, inplace=((0, 1), (1, 0)))
    places = {"result": (0, 8), "inside": (0, 8)}
    check_placement(paired, [0], places, one_offset=False)
    with pytest.raises(CheckError, match="overlap"):
        check_placement(graph, [0], places, one_offset=False)
    live = tuple(dataclasses.replace(t, live_out=True) for t in tensors)
    with pytest.raises(CheckError, match="overlap"):
        check_placement(dataclasses.replace(paired, tensors=live), [0], places, one_offset=False)


@pytest.mark.parametrize("opcode", ["call", "fusion"])
def test_a_call_may_overwrite_an_operand_after_its_last_read_in_there(opcode):
    """What it calls is checked by itself; any other operator has read nothing before it writes."""
    tensors = (Tensor("operand", 8, 0, (1,), 0), Tensor("result", 8, 1, (), 1, live_out=True))
    operators = Operator("a", "negate", 0, False), Operator("b", opcode, 0, False)
    graph = TensorGraph("pair", operators, tensors)
    places = {"operand": (0, 8), "result": (0, 8)}
    if opcode == "call":
        check_placement(graph, [0, 1], places, 8)
        return
    with pytest.raises(CheckError, match="overlap"):
        check_placement(graph, [0, 1], places, 8)


def test_two_operators_of_a_large_graph_exchanged():
    graph = train_step(200)
    order = list(range(len(graph.operators)))
    rng = random.Random(0)
    u = rng.randrange(len(order) - 1)
    check_schedule(graph, order, lifetime_peak(graph, order))
    order[u], order[-1] = order[-1], order[u]
    with pytest.raises(CheckError):
        check_schedule(graph, order)
