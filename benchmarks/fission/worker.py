"""Runs one step in a process of its own, and prints its memory or its times.

The argument is JSON text: the step's name, and either whether it is cut or how often it runs whole
and in pieces.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax

import olla_xla
from benchmarks.fission.steps import LARGE, STEPS, Step
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module, temporary_bytes
from olla_xla.compile.process_memory import give_memory_back, reset_peak, status_bytes
from olla_xla.remat.cost.across import cost_in_pieces

__all__ = ["measured"]


def measured(name: str, cut: bool) -> dict[str, Any]:
    """Assigned bytes, the rise of resident memory in a run (bytes), and predicted seconds.

    Args:
      name: of STEPS or LARGE. cut: whether it runs in pieces.
    """
    step = (STEPS | LARGE)[name]()
    compiled = _compiled(step, cut=cut)
    axes = []
    if cut:
        plan = olla_xla.fission(step.function, pieces=step.pieces).explain(*step.args)
        axes = [region.axis for region in plan.regions]
    module = module_from_bytes(final_module(compiled))
    predicted = cost_in_pieces("cpu").run_seconds(module, temporary_bytes(compiled))
    args = jax.block_until_ready(step.args)
    give_memory_back()
    reset_peak()
    before = status_bytes("VmRSS")
    jax.block_until_ready(compiled(*args))
    most = status_bytes("VmHWM")
    arguments = sum(x.nbytes for x in jax.tree.leaves(args))
    rose = None if most is None or before is None else most - before + arguments
    return {
        "axes": axes,
        "pieces": step.pieces,
        "assigned_bytes": assigned_bytes(compiled),
        "resident_bytes": rose,
        "predicted_seconds": predicted,
    }


def timed(name: str, runs: int) -> dict[str, Any]:
    """The least seconds of a run, whole and in pieces: by the clock and of all threads together.

    The two alternate, so that other load on the machine affects both. Each timed run follows one of
    the same kind, as in training: after the other the caches would hold its arrays.

    Args:
      name: of STEPS or LARGE. runs: of each.
    """
    step = (STEPS | LARGE)[name]()
    both = [_compiled(step, cut=cut) for cut in (False, True)]
    for compiled in both:
        jax.block_until_ready(compiled(*step.args))
    seconds: list[list[float]] = [[], []]
    busy: list[list[float]] = [[], []]
    for _ in range(runs):
        for k, compiled in enumerate(both):
            jax.block_until_ready(compiled(*step.args))
            started, worked = time.perf_counter(), time.process_time()
            jax.block_until_ready(compiled(*step.args))
            seconds[k].append(time.perf_counter() - started)
            busy[k].append(time.process_time() - worked)
    return {"seconds": [min(s) for s in seconds], "cpu_seconds": [min(b) for b in busy]}


def _compiled(step: Step, *, cut: bool) -> Any:
    function = olla_xla.fission(step.function, pieces=step.pieces) if cut else step.function
    return jax.jit(function).lower(*step.args).compile()


if __name__ == "__main__":
    about = json.loads(sys.argv[1])
    work = timed if "runs" in about else measured
    print(json.dumps(work(**about)), flush=True)
