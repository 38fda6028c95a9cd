"""Every formulation, with every backend, against the best of all orders.

`OLLA_XLA_EXAMPLES=2000 pytest tests/solvers/test_exact.py` tries that many random graphs.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.papers.ilp_forms import FORMS, least_peak
from benchmarks.papers.ilp_forms.equations import EQUATIONS as RUNNING_EQUATIONS
from benchmarks.papers.ilp_forms.lifetimes_ilp import DEFINING, EQUATIONS, LifetimeIlp
from benchmarks.papers.ilp_forms.plain import plain_graph
from olla_xla.errors import CheckError, GraphError, InputError, SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import Operator, Tensor, TensorGraph
from olla_xla.solvers.linear import SolverLimits, Status, violation
from olla_xla.solvers.programs.running_ilp import RunningIlp, sequence
from tests.support.graphs import all_orders, oracle_peak, tensor_graphs, train_step

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _optimum(graph: TensorGraph) -> int:
    return min(oracle_peak(graph, order) for order in all_orders(graph))


@settings(SLOW)
@given(tensor_graphs(max_operators=8))
def test_every_form_and_backend_finds_the_optimum(graph):
    optima = {"plain": _optimum(plain_graph(graph))}
    optimum = _optimum(graph)
    for form, backends in FORMS.items():
        for backend in backends:
            found = least_peak(graph, form=form, backends=[backend])
            assert found.status is Status.OPTIMAL, (form, found)
            assert found.backend == backend
            assert found.peak_bytes == found.bound_bytes == optima.get(form, optimum), (form, found)


@settings(SLOW, max_examples=40)
@given(tensor_graphs(max_operators=7))
def test_minimum_cuts_leave_the_optimum(graph):
    for form in ("running", "plain", "intervals"):
        optimum = _optimum(plain_graph(graph) if form == "plain" else graph)
        found = least_peak(graph, form=form, backends=["cpsat"], cuts=True)
        assert (found.status, found.peak_bytes) == (Status.OPTIMAL, optimum)


@settings(SLOW, max_examples=40)
@given(tensor_graphs(max_operators=6), st.data())
def test_no_switch_of_an_equation_changes_the_optimum(graph, data):
    # (2) to (5) define the problem; the other equations only make it smaller or tighter.
    off = data.draw(st.sets(st.sampled_from(sorted(set(EQUATIONS) - DEFINING))))
    optimum, plain = _optimum(graph), _optimum(plain_graph(graph))
    kept = set(EQUATIONS) - off
    for form, expected in (("lifetimes", optimum), ("plain", plain), ("running", optimum)):
        chosen = kept & set(RUNNING_EQUATIONS) if form == "running" else kept
        found = least_peak(graph, form=form, equations=chosen, backends=["gurobi"])
        assert (found.status, found.peak_bytes) == (Status.OPTIMAL, expected), (form, off)


@settings(SLOW, max_examples=40)
@given(tensor_graphs(max_operators=6), st.sampled_from(sorted(DEFINING)))
def test_without_a_defining_equation_the_value_is_a_bound(graph, off):
    arrays = GraphArrays.of(graph)
    built = LifetimeIlp(arrays, equations=set(EQUATIONS) - {off})
    from olla_xla.solvers.solve import solve

    result = solve(built.model, backends=["gurobi"])
    assert result.value is not None
    assert built.scale.to_bytes(result.value) <= _optimum(graph)
    with pytest.raises(InputError, match="relaxation"):
        built.decode(result.point())


def test_what_is_no_plain_graph():
    """An operator that makes nothing, arguments, results, what is needed while one runs, pairs."""
    operators = tuple(Operator(f"op{v}", "fusion") for v in range(2))
    tensors = (Tensor("a", 4, 0, (1,), 0), Tensor("b", 4, 1, (), 1))
    plain = TensorGraph("plain", operators, tensors)
    assert LifetimeIlp(GraphArrays.of(plain), plain=True).model.variables
    runs = dataclasses.replace(operators[1], transient_bytes=3)
    for changed in (
        {"tensors": tensors[:1]},
        {"tensors": tensors[1:]},
        {"tensors": (dataclasses.replace(tensors[0], live_in=True), tensors[1])},
        {"tensors": (tensors[0], dataclasses.replace(tensors[1], live_out=True))},
        {"operators": (operators[0], runs)},
        {"inplace": ((1, 0),)},
    ):
        graph = GraphArrays.of(dataclasses.replace(plain, **changed))
        with pytest.raises(InputError, match="plain_graph"):
            LifetimeIlp(graph, plain=True)


@settings(SLOW, max_examples=80)
@given(tensor_graphs(max_operators=9), st.integers(0, 10**6))
def test_the_point_of_an_order_is_feasible_and_comes_back(graph, pick):
    orders = [order for _, order in zip(range(50), all_orders(graph), strict=False)]
    order = orders[pick % len(orders)]
    arrays = GraphArrays.of(graph)
    for kind in (RunningIlp, LifetimeIlp):
        built = kind(arrays)
        x = built.start(order)
        assert violation(built.model, x) is None
        assert built.scale.to_bytes(built.model.value(x)) == oracle_peak(graph, order)
        assert built.decode(x).tolist() == order


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_warm_start_is_never_lost(form):
    graph = train_step(12)
    start = np.arange(len(graph.operators))
    limits = SolverLimits(time_limit=1e-3, work_limit=1e-4, node_limit=1)
    shown = plain_graph(graph) if form == "plain" else graph
    for backend in {"highs", "cpsat"} & set(FORMS[form]):
        found = least_peak(graph, form=form, backends=[backend], limits=limits, start=start)
        assert found.status in (Status.FEASIBLE, Status.OPTIMAL)
        assert found.bound_bytes <= found.peak_bytes <= peak_bytes(shown, start)


def test_a_known_bound_ends_the_solve():
    graph = train_step(6)
    first = least_peak(graph, backends=["highs"])
    again = least_peak(graph, backends=["highs"], start=first.order, bound_bytes=first.peak_bytes)
    assert again.status is Status.OPTIMAL
    assert again.peak_bytes == again.bound_bytes == first.peak_bytes


def test_same_seed_same_order():
    graph = train_step(5)
    for backend in ("highs", "cpsat"):
        orders = [
            least_peak(graph, backends=[backend], limits=SolverLimits(seed=3)).order.tolist()
            for _ in range(2)
        ]
        assert orders[0] == orders[1]


def test_decoding_function_1():
    assert sequence([[2], [], [1, 0]], 3).tolist() == [2, 0, 1]
    for wrong in ([[0], [0], [1]], [[0], [1], []]):
        with pytest.raises(SolverError, match="of 3 operators"):
            sequence(wrong, 3)


@pytest.mark.parametrize("form", sorted(FORMS))
def test_bad_graphs_name_operators(form):
    chain = train_step(1)
    operators = (Operator("alpha", "fusion"), Operator("beta", "fusion"))
    there = Tensor("there", 4, 0, (1,), 0)
    loop = TensorGraph("loop", operators, (there, Tensor("back", 4, 1, (0,), 1)))
    negative = TensorGraph("negative", operators, (Tensor("gamma", -4, 0, (1,), 0),))
    nowhere = TensorGraph("nowhere", operators, (Tensor("gamma", 4, 7, (1,), 0),))
    for graph, words in (
        (loop, "graph loop has a cycle through alpha, beta"),
        (negative, "gamma, made by alpha, has negative size -4"),
        (nowhere, "gamma, read by beta, has no source"),
    ):
        with pytest.raises(GraphError, match=words):
            least_peak(graph, form=form)
    with pytest.raises(CheckError):
        least_peak(chain, form=form, start=list(reversed(range(len(chain.operators)))))


def test_bad_arguments():
    graph = train_step(1)
    with pytest.raises(InputError, match="choose one of"):
        least_peak(graph, form="magic")
    with pytest.raises(InputError, match="choose some of"):
        least_peak(graph, backends=["magic"])
