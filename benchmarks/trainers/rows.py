"""Train steps of trainers, compiled and planned; each trainer and policy in a process of its own.

`python -m benchmarks.trainers.rows REQUEST` is such a process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

import olla_xla
from benchmarks.suite import SuitePlan, SuiteRow, asked, filled, say, say_plans
from benchmarks.trainers import TRAINERS, Trainer, TrainerStep
from hlo.gpu_executable import GpuThunk, read_gpu_executable
from hlo.gpu_thunks import Flow
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes, final_module, host_bytes
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.compile.outcomes import NO_GAIN
from olla_xla.errors import OllaError
from olla_xla.memory.snappy import unsnapped
from olla_xla.pieces.on_host import LITTLE
from olla_xla.problem.options import PlanOptions, parse_bytes
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.segments.spill import spilled_by_waits


def trainer_row(
    trainer: Trainer,
    settings: Mapping[str, str],
    policy: str,
    target: str,
    overheads: Sequence[float],
    options: PlanOptions,
    progress: Callable[[str], None],
    beside: Mapping[str, float] | None = None,
    host_budget: str | None = None,
) -> SuiteRow:
    """Compiles and plans the step of a trainer, in a process of its own.

    Args:
      trainer: which. settings: of its step. policy: one of its own.
      target: what to compile it for. overheads: of the plans beside the default one.
      options: of all plans. progress: called with one line at each stage.
      beside: policies, and seconds that a step of each is predicted to take; one plan more for
        each, which may take as long.
      host_budget: for each of the overheads also plans with so much host memory.
    """
    named = [
        value if key in trainer.settings else f"{key}={value}"
        for key, value in settings.items()
        if trainer.settings.get(key) != value
    ]
    name = " ".join([trainer.name, *named, policy])
    about = {
        "trainer": trainer.name,
        "settings": dict(settings),
        "policy": policy,
        "seconds": dict(beside or {}),
        "host_budget": host_budget,
        **asked(target, overheads, options),
    }
    return filled(SuiteRow(name), __name__, about, progress)


def _work(about: dict[str, Any]) -> None:
    """The work of one process."""
    trainer = TRAINERS[about["trainer"]]
    settings = dict(about["settings"])
    devices = int(settings.pop("devices", trainer.devices))
    say(devices=devices)
    try:
        targets.prepare_environment(about["target"], devices)
        target = targets.target(about["target"], devices)
        cost = CostModel(device(target.platform, target.kind), target.platform)
        say(stage="XLA's own schedule")
        step = trainer.step(about["policy"], settings, target)
        compiled, seconds = _compiled(jax.jit, step)
        own = run_seconds(module_from_bytes(final_module(compiled)), cost)
        say(xla_bytes=assigned_bytes(compiled), seconds=seconds, step_seconds=own)
        del compiled  # with its code
        # A policy that is predicted to be faster allows an order alone.
        about["beside"] = {
            policy: max(taken / own - 1, 0.0) for policy, taken in about["seconds"].items()
        }
        front = about["overheads"] if about["host_budget"] else []
        if front:
            about["overheads"] = []  # recomputation alone is the first trial of both
        say_plans(about, lambda options: _planned(step, options, cost))
        if front:
            say(stage="spilled")
            for plan in _front(step, own, about, front, devices, cost):
                say(plan=dataclasses.asdict(plan))
    except OllaError as error:
        say(error=str(error))


def _planned(step: TrainerStep, options: dict[str, Any], cost: CostModel) -> SuitePlan:
    compiled, seconds = _compiled(functools.partial(olla_xla.plan, **options), step)
    return SuitePlan(
        max_overhead=options["max_overhead"],
        bytes=assigned_bytes(compiled),
        seconds=seconds,
        step_seconds=run_seconds(module_from_bytes(final_module(compiled)), cost),
        planned=compiled.planned,
        reason=compiled.reason,
        trouble=not compiled.planned and compiled.reason != NO_GAIN,
        host_bytes=host_bytes(compiled.stage),
    )


def _front(
    step: TrainerStep,
    own: float,
    about: dict[str, Any],
    overheads: Sequence[float],
    devices: int,
    cost: CostModel,
) -> Iterator[SuitePlan]:
    """Plans within overheads that recompute alone, spill alone, and do both.

    Args:
      step: which. own: seconds of it in XLA's own order. about: the request. overheads: parts of
        `own`. devices: that run the step. cost: prices modules.
    """
    options, most = about["limits"], about["host_budget"]
    given = step.function, step.arguments, step.keywords, parse_bytes(most)
    with step.context():
        link = own * cost.device.host_bytes_per_second * devices
        ways = spilled_by_waits(*given, sorted({LITTLE, *overheads}), link)
    plans = {**options, "loops": False, "max_overhead": None}
    spilled = [_planned(dataclasses.replace(step, function=way), plans, cost) for way, _ in ways]
    for overhead in overheads:
        fitting = [plan for plan in spilled if plan.step_seconds <= (1 + overhead) * own]
        best = min(fitting, key=lambda plan: plan.bytes, default=None)
        if best is not None:
            yield dataclasses.replace(best, max_overhead=overhead, way="spilled")
        say(stage=f"recomputed and both, {overhead:.0%} overhead at most")
        yield from _both(step, {**options, "max_overhead": overhead, "host_budget": most})


def _both(step: TrainerStep, options: dict[str, Any]) -> Iterator[SuitePlan]:
    """The plan that recomputes alone, and the one that spills too."""
    function = olla_xla.plan(step.function, **step.options, **options)
    started = time.monotonic()
    with step.context():
        found = function.choice(*step.arguments, **step.keywords)
        compiled = function.lower(*step.arguments, **step.keywords).compile()
    seconds, most = time.monotonic() - started, options["max_overhead"]
    alone, best = found.trials[0], found.chosen
    yield SuitePlan(most, alone.bytes, alone.seconds, seconds, True)
    copies = host_copies(compiled.stage) if best.host_bytes else (0, 0)
    plan = SuitePlan(most, best.bytes, best.seconds, seconds, True)
    yield dataclasses.replace(plan, way="both", host_bytes=best.host_bytes, copies=copies)


def host_copies(compiled: Any) -> tuple[int, int]:
    """Copies to and from the host's memory that a GPU's thunks start on other streams, and others.

    The others are waited for; the cost model counts their time as it is.
    """
    module = module_from_bytes(final_module(compiled))
    named = {i.name: i for c in module.control_computations for i in c.instructions}
    found = [0, 0]

    def follow(thunks: Sequence[GpuThunk], waited: bool) -> None:
        for thunk in thunks:
            i = named.get(thunk.name)
            if not any(thunk.inner) and i is not None and thunk.flow is Flow.NONE:
                shapes = i.shape, *(o.shape for o in i.operands)
                found[waited] += any(part.is_host for s in shapes for _, part in s.indices())
            for inner in thunk.inner:
                follow(inner, waited and thunk.flow is not Flow.START)

    follow(read_gpu_executable(serialized_executable(compiled), unsnapped).thunks, True)
    return found[0], found[1]


def _compiled(jit: Callable[..., Any], step: TrainerStep) -> tuple[Any, float]:
    """The compiled step, and the seconds from `lower()` to there."""
    with step.context():
        started = time.monotonic()
        lowered = jit(step.function, **step.options).lower(*step.arguments, **step.keywords)
        return lowered.compile(), time.monotonic() - started


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
