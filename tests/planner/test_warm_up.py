"""What the first plan of a fresh installation compiles."""

import json
import os
import subprocess
import sys

_COUNTED = """
import collections, gc, json
from numba.core import event, types
from numba.core.dispatcher import Dispatcher

with event.install_recorder("numba:compile") as recorder:
    from olla_xla.planner.warm_up import loaded

    loaded()
counts = collections.Counter(
    f"{e.data['dispatcher'].py_func.__module__}.{e.data['dispatcher'].py_func.__qualname__}"
    for _, e in recorder.buffer
    if e.is_start
)
uncounted = [d for d in gc.get_objects() if isinstance(d, Dispatcher) and "_nrt" in d.targetoptions]
arrays = [
    d.py_func.__qualname__
    for d in uncounted
    if d.targetoptions["_nrt"] is False
    for s in d.nopython_signatures
    if not isinstance(s.return_type, (types.Integer, types.Boolean, types.NoneType))
]
print(json.dumps([counts, arrays, len(uncounted)]))
"""

_MOST = 40


def test_a_fresh_installation_compiles_few_loops_and_each_once(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", _COUNTED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    counts, arrays, uncounted = json.loads(ran.stdout.splitlines()[-1])
    own = {name: count for name, count in counts.items() if name.startswith("olla_xla.")}
    assert own, "nothing was compiled: the directory for the cache was not used"
    assert {name: count for name, count in own.items() if count > 1} == {}
    assert sum(counts.values()) <= _MOST, sorted(counts)
    assert uncounted, "no loop goes without counting references"
    assert arrays == [], "these return arrays whose references nobody counts"
