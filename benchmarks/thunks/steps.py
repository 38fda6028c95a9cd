"""Steps by name that are compiled for an absent GPU: models, sharded, trainers, programs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import olla_xla
from benchmarks import schedule
from benchmarks.random_programs import training
from benchmarks.random_programs.search import Share, drawn
from benchmarks.sharded.steps import STEPS, Sizes
from benchmarks.trainers import TRAINERS, parse_trainer
from olla_xla import targets
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from olla_xla.tools import models

Lower = Callable[[PlanOptions | None], Any]
"""Lowers a step: planned with options, or by `jax.jit` with None."""

_DEVICES = 8  # of the sharded steps


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that is yet to be made.

    Attributes:
      name: in the report. make: makes it, and gives what lowers it; InputError if it cannot.
      context: to make, lower and compile it within.
    """

    name: str
    make: Callable[[], Lower]
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def steps(names: Sequence[str], batch_sizes: Sequence[int], target: str, seed: int) -> list[Step]:
    """The steps of names.

    Args:
      names: a model, at each of the batch sizes, with adam; "model/batch_size/optimizer", or
        "spilled/" before it, for `olla_xla.spill` of that step; a step over eight devices; a
        trainer with settings, as `benchmarks trainers` has it, with the policy that keeps most;
        "programs:20", random ones. Of several: "zoo", "scans", "sharded", "schedule" (the cases of
        `benchmarks schedule`).
      batch_sizes: of the models. target: a GPU. seed: of the random programs.

    Raises:
      InputError: a name cannot be read.
    """
    return [step for name in names for step in _steps(name, batch_sizes, target, seed)]


def _steps(name: str, batch_sizes: Sequence[int], target: str, seed: int) -> Iterator[Step]:
    if name == "schedule":
        for case in schedule.CASES:
            if targets.TARGETS[case.target] == targets.TARGETS[target]:
                yield _model(case.model, case.batch_size, case.optimizer, target)
    elif name in ("zoo", "scans"):
        for model in models.zoo().ZOO if name == "zoo" else schedule.SCANS:
            yield from _steps(model, batch_sizes, target, seed)
    elif name == "sharded" or name in STEPS:
        for one in STEPS if name == "sharded" else (name,):
            yield Step(one, lambda one=one: _sharded(one, target))
    elif name.startswith("programs:"):
        yield from _programs(name, target, seed)
    elif name.partition(":")[0] in TRAINERS:
        yield Step(name, lambda: _trainer(name, target))
    elif "/" in name:
        read = re.fullmatch(r"(spilled/)?([^/]+)/(\d+)/([^/]+)", name)
        if read is None:
            raise InputError(f"--steps: {name!r} must read model/batch_size/optimizer")
        yield _model(read[2], int(read[3]), read[4], target, spilled=bool(read[1]))
    else:
        for batch_size in batch_sizes:
            yield _model(name, batch_size, "adam", target)


def _model(
    name: str, batch_size: int, optimizer: str, target: str, *, spilled: bool = False
) -> Step:
    def make() -> Lower:
        model = models.build(name, batch_size=batch_size, optimizer=optimizer)
        step = olla_xla.spill(model.step) if spilled else model.step
        shapes = targets.target(target).place(model.arguments)

        def lower(options: PlanOptions | None) -> Any:
            with models.tracing(name):
                return _jitted(step, options, **model.jit_options).lower(*shapes)

        return lower

    return Step(f"{'spilled/' if spilled else ''}{name}/{batch_size}/{optimizer}", make)


def _sharded(name: str, target: str) -> Lower:
    step = STEPS[name](targets.target(target, _DEVICES).devices, Sizes())
    return lambda options: _jitted(step.function, options, donate_argnums=(0, 1)).lower(
        *step.shapes
    )


def _trainer(name: str, target: str) -> Lower:
    trainer, settings = parse_trainer(name)
    devices = int(settings.pop("devices", trainer.devices))
    step = trainer.step(trainer.policies[0], settings, targets.target(target, devices))

    def lower(options: PlanOptions | None) -> Any:
        with step.context():
            jitted = _jitted(step.function, options, **step.options)
            return jitted.lower(*step.arguments, **step.keywords)

    return lower


def _programs(name: str, target: str, seed: int) -> Iterator[Step]:
    count = name.removeprefix("programs:")
    if not count.isdigit():
        raise InputError(f"--steps: {name!r} must read programs:count")
    share = Share(seed, 0, int(count), plans=1)
    for place in range(share.count):
        program = drawn(share, place).program

        def make(program=program) -> Lower:
            built = training.build(program)
            shapes = targets.target(target).place(built.arguments)
            options = built.jit_options
            return lambda plan: _jitted(built.step, plan, **options).lower(*shapes)

        context = lambda program=program: jax.enable_x64(program.x64)  # noqa: E731
        yield Step(f"program {seed}.{place}, {program.kind}", make, context)


def _jitted(function: Callable[..., Any], options: PlanOptions | None, **jit: Any) -> Any:
    if options is None:
        return jax.jit(function, **jit)
    return olla_xla.plan(function, **dataclasses.asdict(options), **jit)
