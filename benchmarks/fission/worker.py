"""Runs one step, whole or in pieces, in a process of its own, and prints what it took.

Its argument is JSON text: the step's name, whether it is cut, and how often it runs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax

import olla_xla
from benchmarks.fission.steps import LARGE, STEPS
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module, temporary_bytes
from olla_xla.compile.process_memory import give_memory_back, reset_peak, status_bytes
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel

__all__ = ["measured"]


def measured(name: str, cut: bool, runs: int) -> dict[str, Any]:
    """Bytes assigned and by which resident memory rose, seconds measured and predicted.

    Measured are those by the clock, and those that all threads worked.

    Args:
      name: of STEPS or LARGE. cut: whether it runs in pieces. runs: of which the fastest counts.
    """
    step = (STEPS | LARGE)[name]()
    function, axes = step.function, []
    if cut:
        function = olla_xla.fission(function, pieces=step.pieces)
        axes = [region.axis for region in function.explain(*step.args).regions]
    compiled = jax.jit(function).lower(*step.args).compile()
    module = module_from_bytes(final_module(compiled))
    predicted = CostModel(device("cpu"), "cpu").run_seconds(module, temporary_bytes(compiled))
    args = jax.block_until_ready(step.args)
    give_memory_back()
    reset_peak()
    before, seconds, busy = status_bytes("VmRSS"), [], []
    for _ in range(runs):
        started, worked = time.perf_counter(), time.process_time()
        result = jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - worked)
        del result
    most = status_bytes("VmHWM")
    arguments = sum(x.nbytes for x in jax.tree.leaves(args))
    rose = None if most is None or before is None else most - before + arguments
    return {
        "axes": axes,
        "pieces": step.pieces,
        "assigned_bytes": assigned_bytes(compiled),
        "resident_bytes": rose,
        "seconds": min(seconds),
        "cpu_seconds": min(busy),
        "predicted_seconds": predicted,
    }


if __name__ == "__main__":
    about = json.loads(sys.argv[1])
    print(json.dumps(measured(**about)), flush=True)
