"""Runs one step in a process of its own, and prints its memory or its times.

The argument is JSON text: the step's name, and either whether it is cut or how often it runs whole
and in pieces.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import jax

import olla_xla
from benchmarks.fission.steps import LARGE, STEPS, Step
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module, temporary_bytes
from olla_xla.compile.process_memory import give_memory_back, reset_peak, status_bytes
from olla_xla.pieces.across import AcrossCost, measure_across
from olla_xla.pieces.timed_products import heaviest, measure_products
from olla_xla.remat.cost.cpu_benchmarks import first_quartile, measure_cpu

_ANEW = 5  # how often the machine's rates are measured


def measured(name: str, cut: bool) -> dict[str, Any]:
    """Assigned bytes, and the rise of resident memory in a run (bytes).

    Args:
      name: of STEPS or LARGE. cut: whether it runs in pieces.
    """
    step = (STEPS | LARGE)[name]()
    compiled = _compiled(step, cut=cut)
    axes = []
    if cut:
        plan = olla_xla.fission(step.function, pieces=step.pieces).explain(*step.args)
        axes = [region.axis for region in plan.regions]
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
    }


def timed(name: str, runs: int) -> dict[str, Any]:
    """Seconds of a run, whole and in pieces: by the clock, of all threads together, and predicted.

    Of the runs the first quartile counts, as in the benchmarks from which times are predicted. The
    two alternate, so that other load on the machine affects both. Each timed run follows one of
    the same kind, as in training: after the other the caches would hold its arrays. The machine's
    rates are measured anew in between, since its speed changes from minute to minute, and the
    median of the predictions counts.

    Args:
      name: of STEPS or LARGE. runs: of each.
    """
    step = (STEPS | LARGE)[name]()
    both = [_compiled(step, cut=cut) for cut in (False, True)]
    modules = [module_from_bytes(final_module(compiled)) for compiled in both]
    products = list(dict.fromkeys(p for module in modules for p in heaviest(module)))
    for compiled in both:
        jax.block_until_ready(compiled(*step.args))
    seconds: list[list[float]] = [[], []]
    busy: list[list[float]] = [[], []]
    predicted: list[list[float]] = [[], []]
    for turn in range(runs):
        if turn * _ANEW // runs >= len(predicted[0]):
            times = dict(zip(products, measure_products(products), strict=True))
            cost = AcrossCost(measure_cpu(), "cpu", measure_across(), times)
            for k, (compiled, module) in enumerate(zip(both, modules, strict=True)):
                predicted[k].append(cost.run_seconds(module, temporary_bytes(compiled)))
        for k, compiled in enumerate(both):
            jax.block_until_ready(compiled(*step.args))
            started, worked = time.perf_counter(), time.process_time()
            jax.block_until_ready(compiled(*step.args))
            seconds[k].append(time.perf_counter() - started)
            busy[k].append(time.process_time() - worked)
    return {
        "seconds": [first_quartile(s) for s in seconds],
        "cpu_seconds": [first_quartile(b) for b in busy],
        "predicted_seconds": [statistics.median(p) for p in predicted],
    }


def _compiled(step: Step, *, cut: bool) -> Any:
    function = olla_xla.fission(step.function, pieces=step.pieces) if cut else step.function
    return jax.jit(function).lower(*step.args).compile()


if __name__ == "__main__":
    about = json.loads(sys.argv[1])
    work = timed if "runs" in about else measured
    print(json.dumps(work(**about)), flush=True)
