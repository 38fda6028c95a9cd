"""One compile with the planner in its midst, and what happens when something goes wrong."""

import dataclasses
import functools
import gc
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from hlo.module import module_from_bytes
from hlo.text import is_text_digest
from olla_xla import planner
from olla_xla.compile import accounting, hook, objection, outcomes, plan_store, planned, session
from olla_xla.compile import compiles as compiles_module
from olla_xla.compile.accounting import final_module
from olla_xla.compile.capture import capture
from olla_xla.compile.order import order_difference
from olla_xla.errors import LimitError, OllaError, PlanMismatchError
from olla_xla.memory import lifetimes
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.calibrate import is_measuring

OPTIONS = PlanOptions(time_limit=2.0, step_limit=200)
WIDTH = 64


def branches(weights, x):
    """One large temporary a branch; XLA's CPU order keeps several at once, depth-first one."""
    hidden = [jnp.tanh(x @ w) for w in weights]
    return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden, strict=True)]


def chain(weights, x):
    """A gradient, for which depth-first order is worse than XLA's."""

    def loss(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean(h**2)

    gradient = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradient, strict=True)]


def arguments(count=6, rows=WIDTH):
    keys = jax.random.split(jax.random.key(count), count + 1)
    weights = [jax.random.normal(k, (WIDTH, WIDTH)) for k in keys[:-1]]
    return weights, jax.random.normal(keys[-1], (rows, WIDTH))


def fresh(function, **kwargs):
    """A jitted function that shares no lowering with those of other tests."""
    return jax.jit(functools.partial(function), **kwargs)


def depth_first(module, options, *, target, xla_bytes=None, **ignored):
    """A planner that takes operands-before-users order as it stands in the module.

    It says that this saves a byte at least.
    """
    state = PlannedModule(scheduled_module(module), target)
    view, own = state.module, state.simulate().total_bytes
    orders = {c: tuple(c.instructions) for c in view.control_computations}
    total = min(state.model.simulate(orders).total_bytes, own - 1)
    return Plan(
        module=view.name,
        fingerprint=view.fingerprint,
        target=target,
        order={c.name: tuple(i.name for i in c.instructions) for c in view.control_computations},
        offsets={},
        xla_bytes=own,
        xla_predicted_bytes=own,
        predicted_bytes=total,
        peak_bytes=total,
        least_peak_bytes=total,
        lower_bound_bytes=1,
        source="depth_first",
    )


def compile_planned(lowered, **kwargs):
    store = kwargs.pop("store", plan_store.PlanStore())
    return planned.compile_planned(lowered, OPTIONS, environment="test", store=store, **kwargs)


@pytest.fixture
def depth_first_planner(monkeypatch):
    monkeypatch.setattr(planner, "plan_module", depth_first)


@pytest.fixture
def compiles():
    """Counts XLA compiles, but for those of the benchmarks that measure a machine once."""
    count = []

    def listener(event, duration, **kwargs):
        if event.endswith("backend_compile_duration") and not is_measuring():
            count.append(kwargs.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listener)
    return count


def assert_hook_idle():
    assert not hook._hook._requests


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


def test_orders_of_xlas_scheduler_for_memory(monkeypatch):
    lowered = fresh(branches).lower(*arguments())
    captured = capture(lowered)
    assert captured.alternative_orders is not None
    orders = captured.alternative_orders()
    assert_hook_idle()
    own = planner.module_order(captured.module)
    assert {k: set(v) for k, v in orders.items()} == {k: set(v) for k, v in own.items()}
    assert orders != own
    assert lowered.compile()(*arguments())  # the compile that was ended left nothing behind
    # Asked for, it is one of the orders that compete.
    asked = []
    found = planner.plan_module(
        captured.module, OPTIONS, target="cpu", alternative_orders=lambda: asked.append(1) or orders
    )
    assert not asked and "xla_memory" not in found.candidates
    monkeypatch.setattr("olla_xla.planner.computation._MORE", -1.0)
    options = dataclasses.replace(OPTIONS, step_limit=1)
    found = planner.plan_module(
        captured.module, options, target="cpu", alternative_orders=lambda: orders
    )
    assert found.predicted_bytes <= found.candidates["xla_memory"][0]


def test_rejected_plan_leaves_xlas_executable(depth_first_planner, compiles, caplog):
    jitted = fresh(chain)
    outcome = compile_planned(jitted.lower(*arguments()))
    assert not outcome.planned and "bytes to the plan" in outcome.reason
    assert outcome.reason in caplog.text
    plain = fresh(chain).lower(*arguments()).compile()
    assert accounting.assigned_bytes(outcome.compiled) == accounting.assigned_bytes(plain)
    module = plain.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    assert outcome.plan.order == planner.module_order(module)
    assert outcome.plan.assigned_bytes == outcome.plan.xla_bytes == accounting.assigned_bytes(plain)
    entry = planner.graphs(module, "cpu")[-1]
    peak = lifetimes.peak_bytes(entry, np.arange(len(entry.operators)))
    assert (outcome.plan.source, outcome.plan.peak_bytes) == ("xla", peak)
    compiles.clear()
    jitted(*arguments())
    assert not [name for name in compiles if name and "chain" in name]


def test_no_gain_predicted_costs_one_compile(monkeypatch, compiles):
    def no_gain(module, options, **kwargs):
        plan = depth_first(module, options, **kwargs)
        return dataclasses.replace(plan, predicted_bytes=plan.xla_predicted_bytes)

    monkeypatch.setattr(planner, "plan_module", no_gain)
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    compiles.clear()
    outcome = compile_planned(lowered)
    assert len(compiles) == 1 and not outcome.planned and outcome.reason


def test_only_the_executable_in_use_is_kept():
    client = jax.devices()[0].client
    jitted = fresh(branches, donate_argnums=0)
    lowered, args = jitted.lower(*arguments()), arguments()
    gc.collect()
    before = len(client.live_executables())
    outcome = compile_planned(lowered)
    jitted(*args)
    gc.collect()
    assert outcome.planned and len(client.live_executables()) == before + 1


def test_trouble_in_the_planner_is_reported_not_raised(monkeypatch):
    def broken(module, options, **kwargs):
        raise ZeroDivisionError("spoilt")

    monkeypatch.setattr(planner, "plan_module", broken)
    jitted = fresh(branches, donate_argnums=0)
    outcome = compile_planned(jitted.lower(*arguments()))
    assert isinstance(outcome.error, ZeroDivisionError) and "spoilt" in outcome.reason
    assert outcome.plan is None and not outcome.planned
    for a, b in zip(outcome.compiled(*arguments()), branches(*arguments()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
    assert_hook_idle()


def test_a_limit_that_reading_the_module_foretells_to_be_too_short_is_kept(monkeypatch, compiles):
    monkeypatch.setattr(session, "_ALL_OF_PLANNING", 1e9)
    monkeypatch.setattr(planner, "plan_module", None)  # would be called
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert isinstance(outcome.error, LimitError) and outcome.fell_back
    assert re.fullmatch(
        r"time_limit=2.0 is too short: planning this step takes at least [\d.]+ s, so ask for "
        r"time_limit=\d+ or more",
        outcome.reason,
    )
    assert len(compiles) == 1


@pytest.mark.parametrize("limit, least, kept", [(1, 2, True), (1, 2.1, False), (20, 30, True)])
def test_a_limit_may_be_passed_by_half_of_it(limit, least, kept):
    trouble = session._too_late(PlanOptions(time_limit=limit), least)
    assert (trouble == "") == kept
    assert session._too_late(PlanOptions(), 1e9) == ""


def test_trouble_on_the_compile_thread_is_reported_not_raised(depth_first_planner, monkeypatch):
    def broken(module, plan, mark):
        raise PlanMismatchError("not this one")

    monkeypatch.setattr(planner, "apply_plan", broken)
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert isinstance(outcome.error, PlanMismatchError) and not outcome.planned
    plain = fresh(branches, donate_argnums=0).lower(*arguments()).compile()
    assert accounting.assigned_bytes(outcome.compiled) == accounting.assigned_bytes(plain)


def test_an_illegal_order_never_runs(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def backwards(module, options, **kwargs):
        plan = depth_first(module, options, **kwargs)
        return dataclasses.replace(plan, order={k: v[::-1] for k, v in plan.order.items()})

    monkeypatch.setattr(planner, "plan_module", backwards)
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert "which it needs" in outcome.objection == outcome.reason and not outcome.planned
    for a, b in zip(outcome.compiled(*arguments()), branches(*arguments()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_two_threads_do_not_mix_up_their_modules(monkeypatch):
    """Both plan at once, while a third compiles what is none of our business."""
    together = threading.Barrier(2)
    captured = {}

    def plan_together(module, options, **kwargs):
        plan = depth_first(module, options, **kwargs)
        captured.setdefault(plan.module, []).append(plan.fingerprint)
        together.wait(timeout=60)
        return plan

    monkeypatch.setattr(planner, "plan_module", plan_together)

    def first(weights, x):
        return branches(weights, x)

    def second(weights, x):
        return branches(weights, 2 * x)

    lowered = [
        jax.jit(f, donate_argnums=0).lower(*arguments(count))
        for f, count in ((first, 4), (second, 5))
    ]
    outcomes, stop, strangers = {}, threading.Event(), []

    def stranger():
        while not stop.is_set():
            k = len(strangers)
            strangers.append(float(jax.jit(lambda x, k=k: x * k + 1)(2.0)) == 2 * k + 1)

    def plan(index):
        outcomes[index] = compile_planned(lowered[index])

    threads = [threading.Thread(target=plan, args=(k,)) for k in range(2)]
    bystander = threading.Thread(target=stranger)
    bystander.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    bystander.join()
    assert strangers and all(strangers)
    assert sorted(captured) == ["jit_first", "jit_second"]
    assert all(len(prints) == 1 for prints in captured.values())
    for index, name in enumerate(("jit_first", "jit_second")):
        assert outcomes[index].planned, outcomes[index].reason
        assert outcomes[index].plan.module == name
        assert outcomes[index].compiled.as_text().startswith(f"HloModule {name}")
    assert_hook_idle()


def test_other_modules_pass_the_hook_unread():
    seen = []
    request = hook.Request(b"olla_xla-capture-" + b"0" * 32, lambda *a: seen.append(a))
    with hook.listening(request):
        jax.jit(lambda x: x + 17.0)(1.0)
    assert not seen
    assert_hook_idle()


_BESIDE = """
import threading
import jax
from olla_xla.compile import hook

def stranger():
    for k in range(60):
        jax.jit(lambda x, k=k: x * k + 1)(2.0)

threads = [threading.Thread(target=stranger) for _ in range(2)]
jax.jit(lambda x: x + 1)(2.0)
for thread in threads:
    thread.start()
request = hook.Request(b"olla_xla-capture-" + b"0" * 32, lambda *a: None)
while any(thread.is_alive() for thread in threads):
    with hook.listening(request):
        pass
"""


def test_what_other_threads_compile_survives_the_end_of_a_request():
    found = subprocess.run([sys.executable, "-c", _BESIDE], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


_AFTER = """
import jax
import jax.numpy as jnp
import olla_xla

compiled = []
listen = jax.monitoring.register_event_duration_secs_listener
listen(lambda event, _, **k: event.endswith("backend_compile_duration") and compiled.append(k))
other = jax.jit(lambda x: 2 * x)
other(1.0)
planned = olla_xla.plan(lambda a, b: jnp.sin(a) @ jnp.cos(b), time_limit=1)
planned(jnp.ones((64, 64)), jnp.ones((64, 64)))
compiled.clear()
other(1.0)
assert not compiled, compiled
"""


def test_what_was_compiled_before_is_not_compiled_again():
    found = subprocess.run([sys.executable, "-c", _AFTER], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_plans_are_reused(depth_first_planner, monkeypatch, compiles):
    store = plan_store.PlanStore()
    first = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()), store=store)
    monkeypatch.setattr(planner, "plan_module", None)
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    compiles.clear()
    second = compile_planned(lowered, store=store)
    assert second.planned and second.plan == first.plan and len(compiles) == 1


def test_an_executable_that_was_accepted_is_not_judged_again(depth_first_planner, monkeypatch):
    lower = functools.partial(fresh(branches, donate_argnums=0).lower, *arguments())
    store, judged = plan_store.PlanStore(), []
    check = objection.Case.check
    monkeypatch.setattr(
        objection.Case,
        "check",
        lambda case, *given: (judged.append(bool(case.final)), check(case, *given))[1],
    )
    assert compile_planned(lower(), store=store).planned
    assert judged == [False, True]
    again = compile_planned(lower(), store=store)
    assert again.planned and again.plan.assigned_bytes == accounting.assigned_bytes(again.compiled)
    assert judged == [False, True, False]
    # Another executable of the plan is looked at.
    ((key, stored),) = store._plans.items()
    store._plans[key] = stored._replace(accepted=("another",))
    assert compile_planned(lower(), store=store).planned
    assert judged == [False, True, False, False, True]
    assert len(store.accepted(key)) == 2


def test_an_order_alone_is_compared_as_text_and_only_then_numbered(
    depth_first_planner, monkeypatch
):
    numbered = []
    digest = compiles_module.results_digest
    monkeypatch.setattr(
        compiles_module, "results_digest", lambda *a: (numbered.append(a), digest(*a))[1]
    )
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert outcome.planned and outcome.accepted and is_text_digest(outcome.plan.results)
    assert not numbered
    # Where XLA changed something, results are numbered.
    monkeypatch.setattr(compiles_module, "text_of", lambda module: "another")
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert outcome.planned and outcome.accepted and len(numbered) == 1
    assert outcome.plan.results == digest(*numbered[0])


def test_by_default_a_gain_of_next_to_nothing_is_none():
    def tall(weights, x):
        hidden = [jnp.tanh(x @ w) for w in weights]
        return [h.T @ jnp.sin(h) for h in hidden]

    def beside_a_large_result(weights, x):
        return branches(weights, x), jnp.tanh(x @ x.T)

    def compiled(function, rows, **options):
        step = olla_xla.plan(functools.partial(function), donate_argnums=0, **options)
        return step.lower(*arguments(rows=rows)).compile()

    large = compiled(tall, 1024)
    assert large.planned and large.plan.xla_bytes - large.plan.assigned_bytes > session._NOTHING
    for function, rows in ((branches, WIDTH), (beside_a_large_result, 1024)):
        asked, idle = compiled(function, rows, time_limit=1), compiled(function, rows)
        gain = asked.plan.xla_bytes - asked.plan.assigned_bytes
        assert asked.planned and 0 < gain < session._NOTHING
        assert not idle.planned and idle.reason == outcomes.NO_GAIN
        assert idle.plan.assigned_bytes == idle.plan.xla_bytes == asked.plan.xla_bytes


@pytest.mark.parametrize("function", [branches, chain], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rows", [8, 256])
def test_values_live_together_bound_xlas_temporaries(function, rows):
    lowered = fresh(function, donate_argnums=0).lower(*arguments(rows=rows))
    scratch = accounting.scratch_peak(module_from_bytes(capture(lowered).module))
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


def test_a_folder_that_cannot_be_written_only_costs_reuse(depth_first_planner, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    assert compile_planned(lowered, store=plan_store.PlanStore(blocked / "plans")).planned
    assert "cannot keep the plan" in caplog.text


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


def test_a_stored_plan_of_another_module_is_replaced(depth_first_planner, monkeypatch):
    store = plan_store.PlanStore()
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    monkeypatch.setattr(plan_store, "plan_key", lambda *a: "one key for all")
    other = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments(5)), store=store)
    outcome = compile_planned(lowered, store=store)
    assert outcome.planned and outcome.plan.fingerprint != other.plan.fingerprint


def test_compiler_options_are_honoured(depth_first_planner):
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    assert not compile_planned(lowered, compiler_options=options).error
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        compile_planned(lowered, compiler_options={"no_such_option": True})


def test_plan_keys_and_digests_tell_plans_apart():
    keys = {
        plan_store.plan_key(program, devices, options, limits)
        for program in (b"a", b"b")
        for devices in ("cpu", "cuda")
        for options in (None, {"o": 1})
        for limits in (OPTIONS, PlanOptions(seed=1))
    }
    assert len(keys) == 16
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    plan = compile_planned(lowered).plan
    order = {name: names[::-1] for name, names in plan.order.items()}
    changed = [dataclasses.replace(plan, order=order), dataclasses.replace(plan, fingerprint="f")]
    assert len({plan_store.plan_digest(p) for p in (plan, *changed)}) == 3


def test_order_differences_are_found():
    compiled = fresh(branches, donate_argnums=0).lower(*arguments()).compile()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    order = planner.module_order(module)
    plan = depth_first(module, OPTIONS, target="cpu", xla_bytes=1)
    plan = dataclasses.replace(plan, order=order)
    assert order_difference(plan, final_module(compiled)) == ""
    entry, names = max(order.items(), key=lambda item: len(item[1]))
    gone = dataclasses.replace(plan, order={**order, entry: (*names, "copy.999")})
    assert order_difference(gone, final_module(compiled)) == "", "XLA may drop or add instructions"
    early = dataclasses.replace(plan, order={**order, entry: (*names[-1:], *names[:-1])})
    assert order_difference(early, final_module(compiled)) == "", "a tuple does no work"
    swapped = dataclasses.replace(plan, order={**order, entry: (names[-2], *names[:-2], names[-1])})
    assert names[-2] in order_difference(swapped, final_module(compiled))
    foreign = dataclasses.replace(plan, order={"main.0": names})
    assert order_difference(foreign, final_module(compiled))


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
    (tmp_path / "tests_apply.py").write_bytes(Path(__file__).read_bytes())
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


def gpu_target():
    """A compile-only H100, or a skip where the CUDA plugin is missing."""
    if not importlib.util.find_spec("jax_plugins"):
        pytest.skip("needs jax[cuda13]")
    from jax.experimental import topologies

    target = Path(planned.__file__).parents[1] / "targets" / "h100.txtpb"
    try:
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=target.read_text(), topology="1x1x1"
        )
    except (NotImplementedError, RuntimeError) as error:
        pytest.skip(f"no compile-only GPU: {error}")
    return jax.sharding.SingleDeviceSharding(topology.devices[0])


def test_compile_only_gpu():
    sharding = gpu_target()

    def late(weights, x):
        """XLA's GPU order keeps all hidden values; the products are small."""
        hidden = [jnp.sort(x * w) for w in weights]
        return [jnp.sum(h * h[::-1]) for h in hidden]

    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    planned = olla_xla.plan(late, time_limit=2, step_limit=200)
    compiled = planned.lower([struct() for _ in range(4)], struct(4096, 16)).compile()
    plan = compiled.plan
    assert plan.target == "cuda"
    assert plan.assigned_bytes == accounting.assigned_bytes(compiled._stage) <= plan.xla_bytes
    assert order_difference(plan, final_module(compiled._stage)) == ""


def test_backend_without_a_hook(monkeypatch):
    monkeypatch.setattr(hook, "PLATFORMS", {})
    monkeypatch.setattr(hook, "_hook", hook._Hook())
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert isinstance(outcome.error, OllaError) and "cpu and cuda" in outcome.reason
    assert outcome.compiled(*arguments())


def test_an_interrupt_ends_the_compile_and_reaches_the_caller(monkeypatch):
    """Ctrl-C amid planning: XLA waits for the hook, on the thread that is interrupted."""

    def interrupted(module, options, **kwargs):
        assert threading.current_thread() is threading.main_thread()
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "plan_module", interrupted)
    jitted = fresh(branches, donate_argnums=0)
    with pytest.raises(KeyboardInterrupt):
        compile_planned(jitted.lower(*arguments()))
    assert_hook_idle()
    for a, b in zip(jitted(*arguments()), branches(*arguments()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize(("part", "made"), [(2, 2), (1000, 1)])
def test_a_surprise_has_xlas_own_order_compiled(monkeypatch, compiles, part, made):
    """XLA's own total is assigned too where the prediction is off by much of the gain."""

    def modest(module, options, **kwargs):
        plan = depth_first(module, options, **kwargs)
        gain = plan.xla_predicted_bytes - plan.predicted_bytes
        return dataclasses.replace(plan, predicted_bytes=plan.predicted_bytes + gain // part)

    monkeypatch.setattr(planner, "plan_module", modest)
    lowered = fresh(branches, donate_argnums=0).lower(*arguments())
    compiles.clear()
    outcome = compile_planned(lowered)
    assert len(compiles) == made and outcome.planned
    plain = fresh(branches, donate_argnums=0).lower(*arguments()).compile()
    assert outcome.plan.xla_bytes == accounting.assigned_bytes(plain) > outcome.plan.assigned_bytes


@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_before_the_hook_knows_its_module_reaches_the_caller(monkeypatch, nested):
    """Ctrl-C while XLA compiles is raised where Python goes on: as the hook is entered."""

    class Interrupting:
        def search(self, module):
            compiles_open.append(len(hook._hook._requests))
            if len(hook._hook._requests) > nested:
                raise KeyboardInterrupt
            return token.search(module)

    compiles_open, token = [], hook._TOKEN
    monkeypatch.setattr(hook, "_TOKEN", Interrupting())
    if nested:  # In the compile that asks for orders of XLA's scheduler for memory.
        monkeypatch.setattr(planner, "plan_module", lambda *a, more, **k: more())
    jitted = fresh(branches, donate_argnums=0)
    with pytest.raises(KeyboardInterrupt):
        compile_planned(jitted.lower(*arguments()))
    assert max(compiles_open) == 1 + nested
    assert_hook_idle()
    monkeypatch.undo()
    assert compile_planned(jitted.lower(*arguments())).planned
