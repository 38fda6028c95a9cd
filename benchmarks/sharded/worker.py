"""Plans sharded steps on eight devices; run as a program. Prints a line of JSON for each."""

from __future__ import annotations

import json
import math
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_gpu_autotune_level=0 "
    + os.environ.get("XLA_FLAGS", "")
)

from importlib import resources
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

import olla_xla
from benchmarks.sharded.overlap import overlap
from benchmarks.sharded.steps import STEPS, Sizes, Step
from hlo.exchange import MOVING
from hlo.module import module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.memory.module_state import scheduled_module
from olla_xla.planner.passes.relax_overlap import relaxed
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.rewritten import rewritten
from olla_xla.tools.capture import capture

_RUNS = 3


def _devices(target: str) -> list[Any]:
    """Eight: of this machine's CPU, or of a compile-only H100 target."""
    if target == "cpu":
        return jax.devices()
    text = resources.files("olla_xla.targets").joinpath("h100.txtpb").read_text()
    topology = topologies.get_topology_desc(platform="cuda", target_config=text, topology="1x1x8")
    return list(topology.devices)


def _results(function: Any, step: Step) -> list[np.ndarray]:
    """All that some steps give."""
    parameters, moments, batch = step.arguments()
    values = []
    for _ in range(_RUNS):
        parameters, moments, value = function(parameters, moments, batch)
        values.append(np.asarray(value))
    return values + [np.asarray(leaf) for leaf in jax.tree.leaves((parameters, moments))]


def _planned(name: str, target: str, sizes: Sizes, options: dict[str, Any]) -> dict[str, Any]:
    step = STEPS[name](_devices(target), sizes)
    lowered = jax.jit(step.function, donate_argnums=(0, 1)).lower(*step.shapes)
    plain = lowered.compile()
    planned = olla_xla.plan(step.function, donate_argnums=(0, 1), **options)
    compiled: Any = planned.lower(*step.shapes).compile()
    kind = "cpu" if target == "cpu" else "cuda"
    before, after = (overlap(module_from_bytes(final_module(c)), kind) for c in (plain, compiled))
    same = None
    if target == "cpu":
        expected, found = _results(plain, step), _results(planned, step)
        same = all(map(np.array_equal, expected, found))
    # A clone may read a gather that ran later.
    free = MOVING if compiled.plan is not None and compiled.plan.clones else ()
    least, exposed = _least_overlap(lowered, compiled.plan, options) if before.hidden else (0, 0.0)
    return {
        "step": name,
        "target": target,
        "planned": compiled.planned,
        "reason": compiled.reason,
        "xla_bytes": assigned_bytes(plain),
        "bytes": assigned_bytes(compiled),
        "predicted_xla_bytes": compiled.plan.xla_predicted_bytes if compiled.plan else 0,
        "predicted_bytes": compiled.plan.predicted_bytes if compiled.plan else 0,
        "same": same,
        "collectives": sum(map(len, before.order.values())),
        "moved": len(before.moved(after, free)),
        "starts": len(before.hidden),
        "hidden_seconds": before.seconds,
        "planned_hidden_seconds": after.seconds,
        "least_kept": before.least_kept(after),
        "exposed_seconds": compiled.plan.exposed_seconds if compiled.plan else 0.0,
        "least_overlap_bytes": least,
        "least_overlap_seconds": exposed,
    }


def _least_overlap(
    lowered: jax.stages.Lowered, plan: Plan | None, options: dict[str, Any]
) -> tuple[int, float]:
    """Predicted bytes, and seconds added, if transfers need hide nothing; (0, 0) without a plan."""
    if plan is None:
        return 0, 0.0
    own = capture(lowered)
    cost = CostModel(device(plan.target, own.device_kind), plan.target)
    edited = rewritten(scheduled_module(own.module), plan).module()
    found = relaxed(edited, plan, cost, math.inf, PlanOptions(**options))
    return (plan.predicted_bytes, 0.0) if found is None else (found[0].predicted_bytes, found[1])


def main(steps: list[str], target: str, sizes: dict[str, int], options: dict[str, Any]) -> None:
    """Plans the steps of these names, one after the other."""
    for name in steps:
        print(json.dumps(_planned(name, target, Sizes(**sizes), options)), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
