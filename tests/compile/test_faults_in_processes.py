"""Faults that end a process, or that a second one meets: each in processes of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import olla_xla
from olla_xla.compile import plan_store

ROOT = Path(olla_xla.__file__).parents[1]
PRELUDE = """
import os, signal
import jax
from olla_xla import planner

from tests.support.steps import assert_same, branches, plan, rows, weights

def same(step, count):
    expected = jax.jit(branches)(weights(), rows(count))
    assert_same(expected, step(weights(), rows(count)))
    assert step.plans and not step.plans[-1].keeps_xla, step

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def search(*args, _own=planner.plan_module, **kwargs):
    found = _own(*args, **kwargs)
    print("searched", flush=True)
    return found

planner.plan_module = search
"""
PLAN = "same(plan(branches, donate_argnums=0), 23)\n"


def run(script, **environment):
    """What a process wrote, and its exit code."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_child_forked_as_soon_as_a_function_is_decorated_plans_too():
    """A thread loads the planner then; the fork waits for it."""
    script = """
step = plan(branches, donate_argnums=0)
child = os.fork()
same(step, 21)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("both")
"""
    found = run(script)
    assert found.returncode == 0 and found.stdout.splitlines()[-1] == "both", found.stderr
    assert found.stdout.count("searched") == 2


def test_killed_while_it_plans_or_writes_the_next_process_plans(tmp_path):
    kept = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    folder = tmp_path / "olla_xla"
    for fault in ("planner.plan_module = die\n", "os.replace = die\n"):
        killed = run(fault + PLAN, **kept)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not list(folder.glob(f"[!.]*{plan_store.SUFFIX}"))
    for searched in (1, 0):
        found = run(PLAN, **kept)
        assert found.returncode == 0, found.stderr
        assert found.stdout.count("searched") == searched
    (file,) = folder.glob(f"[!.]*{plan_store.SUFFIX}")
    assert plan_store.read(file).plan.predicted_bytes


def test_memory_that_runs_out_while_planning():
    script = """
import resource
own, seen = planner.plan_module, []

def starved(*args, **kwargs):
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (0, limits[1]))
    held = []
    try:
        for size in (2**16, 2**12, 2**8):  # also what the allocators have in hand
            try:
                while True:
                    held.append(bytearray(size))
            except MemoryError:
                pass
        del held[:16]
        return own(*args, **kwargs)
    except MemoryError:
        seen.append(1)
        raise
    finally:
        held.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)

same(plan(branches), 22)  # all is loaded
planner.plan_module = starved
step, large = plan(branches), [w for _ in range(80) for w in weights()]
assert_same(jax.jit(branches)(large, rows(23)), step(large, rows(23)))
compiled = step.lower(large, rows(23)).compile()
assert seen and not compiled.planned and "MemoryError" in compiled.reason, compiled
planner.plan_module = own
same(plan(branches), 24)
print("planned again")
"""
    found = run(script)
    assert found.returncode == 0 and found.stdout.endswith("planned again\n"), found.stderr
