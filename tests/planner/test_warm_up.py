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


def _run(code, folder):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def test_a_fresh_installation_compiles_few_loops_and_each_once(tmp_path):
    """And a used one has them without numba, whose import takes longer than a small step."""
    assert _run("import olla_xla.planner.warm_up as w; w.load_kept(); print()", tmp_path) == ""
    assert not any(tmp_path.iterdir()), "load_kept compiles nothing"
    counts = json.loads(_run(_COUNTED, tmp_path))
    own = {name: count for name, count in counts.items() if name.startswith("olla_xla.")}
    assert own, "nothing was compiled: the directory for the cache was not used"
    assert {name: count for name, count in own.items() if count > 1} == {}
    assert sum(counts.values()) <= _MOST, sorted(counts)
    _run("from olla_xla.schedule.search import moves; moves.load(); print()", tmp_path)
    assert _run(_KEPT, tmp_path) == "True False"


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
