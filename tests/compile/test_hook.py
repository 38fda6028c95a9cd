"""XLA's hook: modules that are none of ours, several threads, interrupts."""

import signal
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from olla_xla import planner
from olla_xla.compile import hook
from olla_xla.errors import OllaError
from tests.support.planned_steps import (
    arguments,
    assert_hook_idle,
    branches,
    compile_planned,
    depth_first,
    fresh,
)


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
    request = hook.CompileRequest(b"olla_xla-capture-" + b"0" * 32, lambda *a: seen.append(a))
    with hook.listening(request):
        jax.jit(lambda x: x + 17.0)(1.0)
    assert not seen
    assert_hook_idle()


_BESIDE = """
import threading
import jax
from olla_xla.compile import hook

def stranger():
    for k in range(30):
        jax.jit(lambda x, k=k: x * k + 1)(2.0)

threads = [threading.Thread(target=stranger) for _ in range(2)]
jax.jit(lambda x: x + 1)(2.0)
for thread in threads:
    thread.start()
request = hook.CompileRequest(b"olla_xla-capture-" + b"0" * 32, lambda *a: None)
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


def test_backend_without_a_hook(monkeypatch):
    monkeypatch.setattr(hook, "PLATFORMS", {})
    monkeypatch.setattr(hook, "_hook", hook._Hook())
    outcome = compile_planned(fresh(branches, donate_argnums=0).lower(*arguments()))
    assert isinstance(outcome.error, OllaError) and "cpu, cuda and tpu" in outcome.reason
    assert outcome.compiled(*arguments())


def test_an_interrupt_ends_the_compile_and_reaches_the_caller(monkeypatch):
    """Ctrl-C amid planning: XLA waits for the hook, on the thread that is interrupted."""

    def interrupted(module, options, **kwargs):
        assert threading.current_thread() is threading.main_thread()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(planner, "plan_module", interrupted)
    jitted = fresh(branches, donate_argnums=0)
    with pytest.raises(KeyboardInterrupt):
        compile_planned(jitted.lower(*arguments()))
    assert_hook_idle()
    for a, b in zip(jitted(*arguments()), branches(*arguments()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize("nested", [False, True])
def test_an_interrupt_before_the_hook_knows_its_module_reaches_the_caller(monkeypatch, nested):
    """Ctrl-C while XLA compiles is raised where Python goes on: as the hook is entered."""

    class Interrupting:
        def search(self, module):
            compiles_open.append(len(hook._hook._requests))
            if len(hook._hook._requests) > nested:
                signal.raise_signal(signal.SIGINT)
            return token.search(module)

    compiles_open, token = [], hook._TOKEN
    monkeypatch.setattr(hook, "_TOKEN", Interrupting())
    if nested:  # In the compile that asks for orders of XLA's scheduler for memory.
        monkeypatch.setattr(
            planner, "plan_module", lambda *a, alternative_orders, **k: alternative_orders()
        )
    jitted = fresh(branches, donate_argnums=0)
    with pytest.raises(KeyboardInterrupt):
        compile_planned(jitted.lower(*arguments()))
    assert max(compiles_open) == 1 + nested
    assert_hook_idle()
    monkeypatch.undo()
    assert compile_planned(jitted.lower(*arguments())).planned
