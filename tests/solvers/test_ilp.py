"""Plans whose orders come from the paper's integer program."""

import dataclasses
import re
import time

import jax
import numpy as np
import pytest

import olla_xla
from olla_xla.check.graph import check_schedule
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.planner import plan_module
from olla_xla.planner.effort import recomputation_limit
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import dumps, loads
from olla_xla.schedule.search import phases
from olla_xla.solvers.programs import orders as ilp
from olla_xla.solvers.programs.orders import order_by_ilp
from olla_xla.solvers.programs.running_ilp import RunningIlp
from tests.support.compiles import xla_schedule
from tests.support.graphs import train_step
from tests.support.steps import STEPS, arrays, assert_same, branches

LIMITS = {"time_limit": 60, "step_limit": 20_000}


@pytest.fixture(scope="module")
def module():
    step, shapes, _ = STEPS["mlp"]()
    return xla_schedule(jax.jit(step).lower(*shapes))


@pytest.fixture(scope="module")
def searched(module):
    return plan_module(module, PlanOptions(**LIMITS), target="cpu")


@pytest.mark.parametrize("backend", ["highs", "cpsat"])
def test_the_program_proves_what_the_search_found(module, searched, backend):
    told = []
    options = PlanOptions(**LIMITS, method="ilp", backend=backend)
    plan = plan_module(module, options, target="cpu", progress=told.append)
    (proof,) = plan.proofs
    assert (proof.status, proof.backend, proof.gap) == ("optimal", backend, 0)
    assert proof.bound_bytes == proof.peak_bytes == plan.least_peak_bytes
    assert plan.least_peak_bytes == searched.least_peak_bytes
    assert plan.lower_bound_bytes >= searched.lower_bound_bytes
    assert plan.predicted_bytes <= plan.xla_predicted_bytes
    assert proof.variables > 0 and proof.rows > 0
    assert any("incumbent" in line and "bound" in line for line in told)
    assert loads(dumps(plan)) == plan
    assert searched.proofs == ()


def test_a_solver_that_fails_leaves_the_search(module, searched):
    """pip's licence of Gurobi is too small for this, or it is a full one and proves it."""
    options = PlanOptions(**LIMITS, method="ilp", backend="gurobi")
    plan = plan_module(module, options, target="cpu")
    (proof,) = plan.proofs
    assert plan.least_peak_bytes == searched.least_peak_bytes
    assert proof.status == "optimal" or "licence" in proof.message


def test_a_program_that_is_too_large_is_not_built(module, searched, monkeypatch):
    monkeypatch.setattr(ilp, "_MOST", 10)
    plan = plan_module(module, PlanOptions(**LIMITS, method="ilp"), target="cpu")
    (proof,) = plan.proofs
    assert proof.status == "unknown" and "too large" in proof.message and proof.variables == 0
    assert plan.predicted_bytes == searched.predicted_bytes


def test_a_program_that_takes_all_of_its_time_to_build_is_refused_before():
    graph = train_step(4)
    arrays = GraphArrays.of(graph)
    start = np.arange(arrays.n)
    given = start, peak_bytes(arrays, start), 0, PlanOptions(method="ilp")
    order, proof = order_by_ilp(graph, *given, 1e-3, None)
    assert (order.tolist(), proof.variables, proof.status) == (start.tolist(), 0, "unknown")
    assert re.search(r"[0-9,]+ coefficients, only 400 can be built in 0.0 s", proof.message)


def test_building_takes_time_in_proportion_to_coefficients():
    """Where operators may write over one of several operands, which takes most of the rows."""

    def seconds(layers):
        graph = train_step(layers)
        pairs = [
            (e, a)
            for e, t in enumerate(graph.tensors)
            for a, read in enumerate(graph.tensors)
            if graph.operators[t.source].name.startswith("dx")
            if t.source in read.sinks and not read.live_in
        ]
        arrays = GraphArrays.of(dataclasses.replace(graph, inplace=tuple(pairs)))
        began = time.process_time()
        size = RunningIlp(arrays).model.nonzeros
        return (time.process_time() - began) / size

    assert seconds(48) < 2.5 * min(seconds(8) for _ in range(3))


def test_same_plan_again(module):
    options = PlanOptions(**LIMITS, method="ilp", backend="cpsat")
    first, second = (plan_module(module, options, target="cpu") for _ in range(2))
    assert first.order == second.order and first.aliases == second.aliases


@pytest.mark.optimized
def test_runs_bit_for_bit():
    step, shapes, _ = STEPS["mlp"]()
    planned = olla_xla.plan(step, method="ilp", backend="cpsat", **LIMITS)
    arguments = arrays(shapes)
    assert_same(jax.jit(step)(*arguments), planned(*arguments))
    (plan,) = planned.plans
    assert [proof.status for proof in plan.proofs] == ["optimal"]
    assert planned.lower(*arguments).compile().planned


def test_a_platform_is_jits():
    with pytest.warns(DeprecationWarning, match="backend and device"):  # JAX's own, of its option
        assert olla_xla.plan(branches, backend="cpu")._options.backend == "highs"
    with pytest.raises(InputError, match="method='lp'"):
        olla_xla.plan(branches, method="lp")
    with pytest.raises(InputError, match="backend='scip'"):
        PlanOptions(backend="scip")


def test_a_budget_is_met_by_recomputation_for_the_programs_order():
    step, shapes, options = STEPS["lenet"]()
    module = xla_schedule(jax.jit(step, **options).lower(*shapes))
    order = plan_module(module, PlanOptions(**LIMITS, method="ilp"), target="cpu")
    budget = order.predicted_bytes - 100_000
    within = PlanOptions(**LIMITS, method="ilp", memory_budget=budget)
    plan = plan_module(module, within, target="cpu")
    assert plan.predicted_bytes <= budget and plan.clones and not order.clones
    assert plan.proofs and plan.lower_bound_bytes <= plan.predicted_bytes
    endless = PlanOptions(method="ilp", memory_budget=budget)  # the program may take a minute first
    assert recomputation_limit(endless, None, 60.0, 2 * budget, 0) > 60


def test_control_edges_make_the_program_smaller():
    """They take orders away: what is proven with them is the cut's bound, and no more."""
    graph = train_step(4)
    arrays = GraphArrays.of(graph)
    found = phases.search(arrays, {"given": np.arange(arrays.n)}, time_limit=5, step_limit=2000)
    proofs = {}
    for early in (False, True):
        options = PlanOptions(method="ilp", backend="cpsat", early_updates=early)
        given = found.lifetime_order, found.least_peak_bytes, found.bound_bytes
        order, proofs[early] = order_by_ilp(graph, *given, options, 20, None)
        check_schedule(graph, order.tolist(), proofs[early].peak_bytes)
    assert 0 < proofs[True].variables < proofs[False].variables
    assert proofs[True].rows < proofs[False].rows
    assert proofs[True].bound_bytes == proofs[True].cut_bytes <= proofs[False].bound_bytes


def test_nothing_is_solved_where_the_search_meets_the_bound(monkeypatch):
    monkeypatch.setattr(ilp, "least_peak", None)
    graph = train_step(4)
    arrays = GraphArrays.of(graph)
    found = phases.search(arrays, {"given": np.arange(arrays.n)}, time_limit=5, step_limit=2000)
    peak, options = found.least_peak_bytes, PlanOptions(method="ilp")
    order, proof = order_by_ilp(graph, found.lifetime_order, peak, peak, options, 20, None)
    assert order is found.lifetime_order and (proof.status, proof.variables, proof.gap) == (
        "optimal",
        0,
        0,
    )
    assert "meets the lower bound" in proof.message
