"""The benchmark of placing, and XLA's buffer assignment in full."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import place as bench
from benchmarks.commands.place import INSTANCES, PLANS, random_line, summary_line
from benchmarks.driver import table_of
from hlo import xla_pb2
from hlo.buffer_assignment import BufferAssignment
from olla_xla.cli.report.plans import allocation_table
from olla_xla.compile.assignment import read_assignment
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.place import PlacementProblem
from olla_xla.planner import apply_plan, plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.assignment_report import allocation_rows


def test_instances():
    found = list(bench.instances())
    assert [name for name, _, _ in found] == list("ABCDEFGHIJK")
    assert {capacity for _, capacity, _ in found} == {1_048_576}
    assert sum(len(problem) for _, _, problem in found) == 3112


def test_rows_and_tables():
    problem = PlacementProblem.of([0, 1, 2], [2, 3, 4], [8, 8, 8])
    row = bench.measure_instance("tiny", 20, problem, time_limit=5, least_limit=5)
    assert (row.height, row.least, row.bound, row.load) == (16, 16, 16, 16)
    random = bench.measure_random(300)
    assert 0 <= random.gap < 0.5
    plan = bench.PlanRow("m/1/adam/cpu", 3, 100, 100, 0.1, "optimal", 90, 99)
    assert plan.fragmentation == plan.change == 0
    assert plan.xla_fragmentation == pytest.approx(0.1)
    shorter = dataclasses.replace(plan, live_bytes=90, arena_bytes=95, planned_bytes=100)
    assert shorter.fragmentation == pytest.approx(5 / 90)
    assert shorter.change == pytest.approx(-0.05)
    result = bench.as_json([row], [plan], [random])
    assert result["summary"]["solved"] == 1
    assert result["summary"]["plans_without_fragmentation"] == 1
    assert result["summary"]["plans_within_their_live_sum"] == 1
    assert "tiny" in table_of([row], INSTANCES).markdown()
    assert "m/1/adam/cpu" in table_of([plan], PLANS).markdown()
    assert "300 random blocks" in random_line(random)
    assert "solved 1" in summary_line(result["summary"])


@pytest.fixture(scope="module")
def assigned():
    def step(w, x):
        for _ in range(3):
            x = jnp.tanh(x @ w) + jnp.roll(x, 1, 0)
        return jnp.sum(x @ w.T, axis=0), w * 2

    shapes = [
        jax.ShapeDtypeStruct((64, 64), np.float32),
        jax.ShapeDtypeStruct((32, 64), np.float32),
    ]
    return read_assignment(jax.jit(step).lower(*shapes).compile(), "cpu")


def test_allocations_beside_a_packing(assigned):
    module, assignment = assigned
    rows = allocation_rows(module, assignment, "cpu")
    assert len(rows) > 2
    for row in rows:
        assert row.bound_bytes <= row.packed_bytes
        assert row.live_bytes <= row.size
    assert allocation_table(rows, 3).markdown()
    live, heap = bench.simulated_heap(PlannedModule(scheduled_module(module), "cpu"))
    assert live <= heap


def test_overlap_in_xlas_own_assignment_is_found(assigned):
    module, assignment = assigned

    def damaged(home):
        if not home.is_temp or len(home.assigned) < 2:
            return home
        return dataclasses.replace(
            home, assigned=tuple(dataclasses.replace(a, offset=0) for a in home.assigned)
        )

    moved = BufferAssignment(tuple(damaged(home) for home in assignment.allocations))
    with pytest.raises(CheckError, match="overlap, and both are live"):
        allocation_rows(module, moved, "cpu")


def test_tensor_outside_its_allocation_is_found(assigned):
    module, assignment = assigned
    home = next(a for a in assignment.allocations if a.assigned)
    last = home.assigned[-1]
    out = dataclasses.replace(last, offset=home.size - last.size + 1)
    moved = dataclasses.replace(home, assigned=(*home.assigned[:-1], out))
    others = tuple(moved if a is home else a for a in assignment.allocations)
    with pytest.raises(CheckError, match="exceeds allocation"):
        allocation_rows(module, BufferAssignment(others), "cpu")


def test_planned_offsets_stand_beside_the_schedule(assigned):
    module, _ = assigned
    plan = plan_module(module, PlanOptions(time_limit=5, step_limit=200), target="cpu")
    proto = xla_pb2.HloModuleProto.FromString(apply_plan(module, plan))
    written = {
        i.name: i.frontend_attributes.map["olla_xla.offset"]
        for c in proto.computations
        for i in c.instructions
        if "olla_xla.offset" in i.frontend_attributes.map
    }
    plain = {name: str(at) for name, (at, _) in plan.offsets.items() if "{" not in name}
    assert plain
    assert all(written[name] == at for name, at in plain.items())
