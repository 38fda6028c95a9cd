"""What the first plan of a fresh installation compiles."""

import json
import os
import subprocess
import sys

_COUNTED = """
import collections, json
from numba.core import event

with event.install_recorder("numba:compile") as recorder:
    from olla_xla.planner.warm_up import loaded

    loaded()
counts = collections.Counter(
    f"{e.data['dispatcher'].py_func.__module__}.{e.data['dispatcher'].py_func.__qualname__}"
    for _, e in recorder.buffer
    if e.is_start
)
print(json.dumps(counts))
"""

_KEPT = """
import sys
from olla_xla.planner.warm_up import load_kept, loaded

load_kept()
ready = "olla_xla.schedule.search.moves" in sys.modules and "llvmlite" in sys.modules
loaded()
print(ready, "numba" in sys.modules)
"""

_MOST = 40

_SMALL = """
import sys
import jax, jax.numpy as jnp
import olla_xla

def step(weights, x):
    hidden = [jnp.tanh(x @ w) for w in weights]
    return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden)]

x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
planned = olla_xla.plan(step, step_limit=2000, time_limit=600, donate_argnums=0)
compiled = planned.lower([x] * 6, x).compile()
assert compiled.planned
print("numba" in sys.modules, sorted(compiled.plan.order.items()), compiled.plan.offsets)
"""


def _run(code, folder):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def test_a_fresh_installation_compiles_few_loops_and_each_once(tmp_path):
    """And a used one has them without numba, whose import takes longer than a small step.

    A small step compiles none, and its plan is the one that compiled loops make.
    """
    small = _run(_SMALL, tmp_path)
    assert small.startswith("False ") and not any(tmp_path.iterdir())
    assert _run("import olla_xla.planner.warm_up as w; w.load_kept(); print()", tmp_path) == ""
    assert not any(tmp_path.iterdir()), "load_kept compiles nothing"
    counts = json.loads(_run(_COUNTED, tmp_path))
    own = {name: count for name, count in counts.items() if name.startswith("olla_xla.")}
    assert own, "nothing was compiled: the directory for the cache was not used"
    assert {name: count for name, count in own.items() if count > 1} == {}
    assert sum(counts.values()) <= _MOST, sorted(counts)
    _run("from olla_xla.schedule.search import moves; moves.load(); print()", tmp_path)
    assert _run(_KEPT, tmp_path) == "True False"
    assert _run(_SMALL, tmp_path) == small


_IMPORTED = """
import os, sys
import jax, jax.numpy as jnp
import olla_xla

olla_xla.plan(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))))(jnp.ones((8, 8)), jnp.ones((4, 8)))
own = [m for name, m in sys.modules.items() if name.split(".")[0] in ("hlo", "olla_xla")]
lines = [sum(1 for _ in open(m.__file__)) for m in own]
print(sum(lines), "jax.extend" in sys.modules)
"""


def test_a_default_plan_imports_little(tmp_path):
    """What few plans need is imported when they do (`hlo.late`)."""
    lines, extends = _run(_IMPORTED, tmp_path).split()
    assert int(lines) <= 20_000
    assert extends == "False", "jax.extend adds to JAX's configuration, which clears its caches"
