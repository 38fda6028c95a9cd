"""Train steps of trainers, compiled and planned; each trainer and policy in a process of its own.

`python -m benchmarks.trainers.rows REQUEST` is such a process.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

import olla_xla
from benchmarks.suite import SuitePlan, SuiteRow, asked, filled, say, say_plans
from benchmarks.trainers import TRAINERS, Trainer, TrainerStep
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.outcomes import NO_GAIN
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel


def trainer_row(
    trainer: Trainer,
    settings: Mapping[str, str],
    policy: str,
    target: str,
    overheads: Sequence[float],
    options: PlanOptions,
    progress: Callable[[str], None],
    beside: Mapping[str, float] | None = None,
) -> SuiteRow:
    """Compiles and plans the step of a trainer, in a process of its own.

    Args:
      trainer: which. settings: of its step. policy: one of its own.
      target: what to compile it for. overheads: of the plans beside the default one.
      options: of all plans. progress: called with one line at each stage.
      beside: policies, and seconds that a step of each is predicted to take; one plan more for
        each, which may take as long.
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
        say_plans(about, lambda options: _planned(step, options, cost))
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
    )


def _compiled(jit: Callable[..., Any], step: TrainerStep) -> tuple[Any, float]:
    """The compiled step, and the seconds from `lower()` to there."""
    with step.context():
        started = time.monotonic()
        lowered = jit(step.function, **step.options).lower(*step.arguments, **step.keywords)
        return lowered.compile(), time.monotonic() - started


if __name__ == "__main__":
    _work(json.loads(sys.argv[1]))
