"""Solvers that fail, lie or are missing, and control edges."""

import dataclasses
import logging
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.ilp_forms import control_edges, forms, least_peak
from benchmarks.papers.ilp_forms.plain import plain_graph
from olla_xla.errors import InputError, SolverError
from olla_xla.solvers import solve
from olla_xla.solvers.linear import SolverResult, Status
from olla_xla.solvers.programs.orders import weight_updates
from olla_xla.solvers.programs.prepared import with_edges
from tests.support.graphs import oracle_peak, tensor_graphs, train_step


def _unlicensed(model, limits):
    raise SolverError("there is no licence")


def _infeasible_point(model, limits):
    return SolverResult(Status.OPTIMAL, bound=0, x=np.zeros(model.variables))


def _false_proof(model, limits):
    """A feasible point, the start, with a bound that no order of the graph meets."""
    value = model.value(model.start) * 4
    return SolverResult(Status.UNKNOWN, bound=value)


def _gives_up(model, limits):
    return SolverResult(Status.ERROR, message="out of memory")


FAKES = {
    _unlicensed: "no licence",
    _infeasible_point: "infeasible solution",
    _false_proof: "claims the bound",
    _gives_up: "out of memory",
}


def _install(monkeypatch, solver):
    """Puts a fake backend in HiGHS's place."""
    module = types.ModuleType("fake_backend")
    vars(module).update(IGNORES=frozenset(), solve=solver)
    monkeypatch.setitem(sys.modules, "fake_backend", module)
    monkeypatch.setitem(solve._REGISTRY, "highs", "fake_backend")


@pytest.mark.parametrize("fake", FAKES, ids=lambda f: f.__name__.strip("_"))
def test_the_next_backend_is_used_and_the_failure_reported(fake, monkeypatch, caplog):
    graph = train_step(3)
    best = least_peak(graph, backends=["cpsat"])
    _install(monkeypatch, fake)
    with caplog.at_level(logging.WARNING, logger="olla_xla"):
        found = least_peak(graph, backends=["highs", "cpsat"])
    assert (found.status, found.backend) == (Status.OPTIMAL, "cpsat")
    assert found.peak_bytes == best.peak_bytes == oracle_peak(graph, found.order.tolist())
    assert len(found.failures) == 1
    assert FAKES[fake] in found.failures[0]
    assert FAKES[fake] in caplog.text


@pytest.mark.parametrize("fake", FAKES, ids=lambda f: f.__name__.strip("_"))
def test_with_no_backend_left_the_start_is_refereed(fake, monkeypatch):
    graph = train_step(3)
    _install(monkeypatch, fake)
    found = least_peak(graph, backends=["highs"])
    assert found.status is Status.ERROR
    assert found.failures and FAKES[fake] in found.failures[0]
    assert found.peak_bytes == oracle_peak(graph, found.order.tolist())


@pytest.mark.refused
def test_an_order_that_the_referee_rejects(monkeypatch):
    """The ILP of a graph that lost its precedence: feasible there, no order of the graph."""
    from olla_xla.solvers.programs.running_ilp import RunningIlp

    graph = train_step(2)
    monkeypatch.setattr(RunningIlp, "decode", lambda self, x: np.arange(self._g.n)[::-1])
    found = least_peak(graph, backends=["highs", "cpsat"])
    assert found.status is Status.ERROR
    assert [f.split(":")[0] for f in found.failures] == ["highs", "cpsat"]
    assert all("before" in f for f in found.failures)


def test_missing_solver_of_intervals(monkeypatch):
    graph = train_step(2)
    monkeypatch.setitem(forms._SOLVERS, "cpsat", "no_such_module")
    found = least_peak(graph, form="intervals")
    assert found.status is Status.ERROR
    assert "no_such_module" in found.failures[0]


def test_intervals_take_cpsat_only_and_no_equations():
    graph = train_step(1)
    with pytest.raises(InputError, match="choose some of cpsat"):
        least_peak(graph, form="intervals", backends=["highs"])
    with pytest.raises(InputError, match="no equations"):
        least_peak(graph, form="intervals", equations=["10"])


@given(tensor_graphs(max_operators=10))
def test_precedence_that_no_tensor_carries_takes_no_bytes(graph):
    sizes = [t.bytes for t in plain_graph(graph).tensors]
    given = [t.bytes for t in graph.tensors]
    assert sizes == given + [0] * (len(sizes) - len(given))


@given(tensor_graphs(max_operators=10), st.data())
def test_control_edges_close_no_cycle(graph, data):
    updates = data.draw(st.sets(st.integers(0, len(graph.operators) - 1)))
    tensors = [
        dataclasses.replace(t, live_out=True, buffer=0) if t.source in updates else t
        for t in graph.tensors
    ]
    if tensors:
        tensors[0] = dataclasses.replace(tensors[0], live_in=True, buffer=0)
    changed = dataclasses.replace(graph, tensors=tuple(tensors))
    with_edges(changed, control_edges(changed)).validate()


def test_updates_are_anchored_soon_after_their_gradient():
    graph = train_step(4)
    names = [op.name for op in graph.operators]
    updates = weight_updates(graph)
    assert [names[u] for u in updates] == [f"new_{x}{k}" for k in (3, 2, 1, 0) for x in "mw"]
    anchors = {names[u]: names[a] for u, a in control_edges(graph)}
    # dx1 is two levels behind the gradient of layer 3; nothing is behind the first layer's updates.
    assert anchors == {"new_m3": "dx1", "new_w3": "dw0", "new_m2": "dw0"}


def test_early_updates_keep_the_optimum_here_and_claim_no_bound():
    graph = train_step(4)
    free = least_peak(graph, backends=["cpsat"])
    early = least_peak(graph, backends=["cpsat"], early_updates=True)
    assert early.peak_bytes >= free.peak_bytes
    assert early.status is Status.FEASIBLE and early.bound_bytes == 0
    known = least_peak(graph, backends=["cpsat"], early_updates=True, bound_bytes=free.bound_bytes)
    assert (known.status is Status.OPTIMAL) == (known.peak_bytes == free.peak_bytes)


def test_a_peak_just_above_the_bound_is_not_called_the_least(monkeypatch):
    """A solver that ends at a limit with a point has proven what its caller knew, and no more."""

    def stopped(model, limits):
        return SolverResult(Status.FEASIBLE, bound=0, x=model.start)

    _install(monkeypatch, stopped)
    graph = train_step(3)
    start = least_peak(graph, backends=["highs"]).peak_bytes
    for bound, status in ((start, Status.OPTIMAL), (start - 1, Status.FEASIBLE)):
        found = least_peak(graph, backends=["highs"], bound_bytes=bound)
        assert (found.peak_bytes, found.bound_bytes, found.status) == (start, bound, status)
