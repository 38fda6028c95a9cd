"""One compile with the planner inside it: its executable, and plans that are kept for reuse."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo.module import module_from_bytes
from olla_xla import planner
from olla_xla.compile import accounting, plan_store, planned
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import PlanEdits, PlanSchedule
from olla_xla.tools.capture import capture
from tests.support import planned_steps
from tests.support.compiles import xla_schedule
from tests.support.planned_steps import (
    OPTIONS,
    WIDTH,
    arguments,
    assert_hook_idle,
    branches,
    chain,
    compile_planned,
    depth_first,
    fresh,
)
from tests.support.plans import made_plan

EDITS = {
    field.name
    for part in (PlanSchedule, PlanEdits)
    for field in dataclasses.fields(part)
    if not isinstance(field.default, int | float)
} - {"module", "target", "results", "kernels", "offsets", "placement", "placement_note"}
"""Fields of a plan that say how its module is changed; places are changed after XLA's compile."""


def test_planned_executable(compiles):
    jitted = fresh(branches, donate_argnums=0)
    weights, x = arguments()
    lowered = jitted.lower(weights, x)
    text = lowered.as_text()
    expected = fresh(branches)(weights, x)
    compiles.clear()
    outcome = compile_planned(lowered)
    assert len(compiles) == 2, "one, and inside it one that ends at its schedule"
    assert outcome.planned and outcome.reason == "" and outcome.error is None
    plan = outcome.plan
    assert plan.assigned_bytes == accounting.assigned_bytes(outcome.compiled) < plan.xla_bytes
    executable = outcome.compiled.runtime_executable().hlo_modules()[0]
    order = planner.module_order(executable.as_serialized_hlo_module_proto())
    assert order == plan.order
    assert "olla_xla.step" in outcome.compiled.as_text()
    assert lowered.as_text() == text, "the marker must not stay in the module"
    assert_hook_idle()
    # The call runs that executable: no compile, donation in force, bit-identical results.
    compiles.clear()
    got = jitted(weights, x)
    assert not compiles
    assert all(w.is_deleted() for w in weights)
    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("function", [branches, chain], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [8, 256])
def test_values_live_together_bound_xlas_temporaries(function, rows):
    lowered = fresh(function, donate_argnums=0).lower(*arguments(rows=rows))
    scratch = accounting.scratch_peak(module_from_bytes(xla_schedule(lowered)))
    temporary = accounting.temporary_bytes(lowered.compile())
    assert temporary <= scratch <= 20 * max(temporary, 4 * WIDTH**2)


def test_values_of_a_loop_count_once():
    def loops(x):
        return jax.lax.fori_loop(0, 10, lambda _, y: jnp.tanh(y @ y) @ y, x)

    found = capture(fresh(loops).lower(jnp.ones((WIDTH, WIDTH))))
    scratch = accounting.scratch_peak(module_from_bytes(found.module))
    one = 4 * WIDTH * WIDTH
    assert one <= scratch <= 8 * one


def test_plans_kept_on_disk_outlive_the_store(depth_first_planner, monkeypatch, tmp_path, caplog):
    folder = tmp_path / "plans"

    def lower():
        return fresh(branches, donate_argnums=0).lower(*arguments())

    first = compile_planned(lower(), store=plan_store.PlanStore(folder))
    (file,) = folder.iterdir()
    monkeypatch.setattr(planner, "plan_module", None)
    assert compile_planned(lower(), store=plan_store.PlanStore(folder)).plan == first.plan
    # A spoilt file is said to be one and replaced by a new plan.
    monkeypatch.setattr(planner, "plan_module", depth_first)
    file.write_text(file.read_text()[:-20])
    outcome = compile_planned(lower(), store=plan_store.PlanStore(folder))
    assert outcome.planned and str(file) in caplog.text
    assert plan_store.PlanStore(folder).load(file.stem) == outcome.plan


def test_store_forgets_the_plan_longest_unused(depth_first_planner):
    plan = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments())).plan
    store = plan_store.PlanStore(capacity=2)
    for key in "ab":
        store.save(key, plan)
    assert store.load("a") is plan
    store.save("c", plan)
    assert [store.load(key) is None for key in "abc"] == [False, True, False]
    store.clear()
    assert store.load("a") is None


def test_keys_of_plans_tell_programs_apart():
    keys = {
        plan_store.plan_key(program, devices, options, limits)
        for program in (b"a", b"b")
        for devices in ("cpu", "cuda")
        for options in (None, {"o": 1})
        for limits in (OPTIONS, PlanOptions(seed=1))
    }
    assert len(keys) == 16


@pytest.mark.parametrize("name", sorted(EDITS))
def test_the_digest_of_a_plan_knows_whatever_changes_its_module(name):
    plan = made_plan(offsets={"a": (0, 8)})
    other = {"x": ((0,), 0)} if isinstance(getattr(plan, name), Mapping) else ("x",)
    assert plan_store.plan_digest(plan) != plan_store.plan_digest(
        dataclasses.replace(plan, **{name: other})
    )


def test_donation_report():
    def step(used, unused, mismatched, x):
        return used + 1, x * mismatched.sum()

    jitted = jax.jit(step, donate_argnums=(0, 1, 2))
    with pytest.warns(UserWarning, match="donated"):
        lowered = jitted.lower(jnp.ones(8), jnp.ones(3), jnp.ones(5), jnp.ones(7))
    report = accounting.donation(lowered.compile())
    assert report.requested == 3 and report.aliased == 1 and report.aliased_bytes == 32
    assert report.unaliased + report.dropped == 2


PERSISTENT = """
import json, os, sys
import jax
from olla_xla import planner
from olla_xla.compile import accounting
from olla_xla.compile.compiles import Compiles
from tests_apply import arguments, branches
import olla_xla

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
args = arguments()
events, searches, written = [], [], []
write = Compiles.write
Compiles.write = lambda *a: written.append(1) or write(*a)
search = planner.plan_module
planner.plan_module = lambda *a, **k: searches.append(1) or search(*a, **k)
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.split("/")[-1]))
planned = olla_xla.plan(branches, donate_argnums=0, time_limit=60, step_limit=200)
compiled = planned.lower(*args).compile()
plan = compiled.plan
result = dict(planned=compiled.planned, reason=compiled.reason, searches=len(searches),
              written=len(written),
              hits=events.count("cache_hits"), assigned=plan.assigned_bytes, xla=plan.xla_bytes)
plain = jax.jit(branches, donate_argnums=0).lower(*args).compile()
result["plain"] = accounting.assigned_bytes(plain)
names = [name for name in os.listdir(sys.argv[1]) if name.startswith("jit_branches")]
result["entries"] = sum(name.endswith("-cache") for name in names)
print(json.dumps(result))
"""


def test_persistent_cache_keeps_planned_and_unplanned_apart(tmp_path):
    """The second process gets plan and executable from disk, and each its own executable."""
    (tmp_path / "tests_apply.py").write_bytes(Path(planned_steps.__file__).read_bytes())
    root = Path(planned.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    results = []
    for _ in range(2):
        command = [sys.executable, "-c", PERSISTENT, str(tmp_path / "cache")]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        results.append(json.loads(run.stdout.splitlines()[-1]))
    first, second = results
    assert first["planned"] and first["searches"] == first["written"] == 1 and first["hits"] == 0
    assert first["assigned"] < first["plain"] == first["xla"]
    assert first["entries"] == 2, "the capture compile must leave nothing behind"
    assert second == {**first, "searches": 0, "written": 0, "hits": 1}
