"""One train step compiled in several ways, each with XLA's total and a time from one cost model."""

import dataclasses
import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from hlo.backend import platform
from hlo.module import module_from_bytes
from olla_xla.analysis.checkpointed import POLICIES, checkpointed_loss, sublinear_loss
from olla_xla.compile import decorator
from olla_xla.compile.accounting import assigned_bytes, final_module, host_bytes
from olla_xla.compile.planned_function import PlanWarning
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel, module_work
from olla_xla.targets.target import Target
from olla_xla.tools.models import BuiltModel, tracing

_STEPS = 3
"""Timed steps, after one that is not."""


@dataclasses.dataclass(frozen=True)
class StepVariant:
    """One way to run a step (plain, planned, with `jax.checkpoint`, ...), with its memory and time.

    Attributes:
      name: of the way.
      bytes: XLA's assigned total on the device. host_bytes: the same in host memory.
      seconds: predicted time of a step. moved: bytes that its instructions read from and write to
        memory, by the cost model.
      clones: instructions that our plan computes again. stacks: scan residuals (arrays that one
        loop writes for a later one) that it recomputes.
      measured: median seconds of a step, or None where nothing was run.
    """

    name: str
    bytes: int
    seconds: float
    moved: int
    clones: int = 0
    stacks: int = 0
    measured: float | None = None
    host_bytes: int = 0


class StepVariants:
    """Compiles one model's step in several ways (plain, planned, ...) to compare them."""

    def __init__(self, model: BuiltModel, target: Target, options: PlanOptions) -> None:
        self.model = model
        self.target = target
        self.options = options
        self.arguments = target.place(model.arguments)
        self.cost = CostModel(device(target.platform, target.kind), target.platform)

    def compiled(self, options: dict[str, Any] | None = None) -> Any:
        """Compiles the step by `jax.jit`, traced anew, with `options` of the compiler."""

        def step(*args: Any, **kwargs: Any) -> Any:  # a new function: JAX reuses no earlier trace
            return self.model.step(*args, **kwargs)

        with tracing(self.model.name):
            lowered = jax.jit(step, **self.model.jit_options).lower(*self.arguments)
        return lowered.compile(compiler_options=options)

    def planned(self, overhead: float | None) -> StepVariant:
        """Plans and compiles the step; recomputation may add the fraction `overhead` of its time.
        With None, as by default, what costs no time is computed again; with 0.0 nothing is.
        Raises OllaError if planning failed.
        """
        settings = dataclasses.asdict(self.options)
        settings["max_overhead"] = overhead
        with tracing(self.model.name):
            function = decorator.plan(self.model.step, **settings, **self.model.jit_options)
            lowered = function.lower(*self.arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PlanWarning)  # raised below
            compiled = lowered.compile()
        if compiled.plan is None:
            raise OllaError(f"planning failed: {compiled.reason}")
        name = "planned order" if not overhead else f"planned, at most {100 * overhead:.3g}%"
        name = "planned by default" if overhead is None else name
        plan = compiled.plan
        stacks = plan.recomputed_residuals
        row = self.row(name, compiled)
        return dataclasses.replace(row, clones=len(plan.clones), stacks=stacks)

    def row(self, name: str, compiled: Any) -> StepVariant:
        """Makes an executable's row: memory, predicted time and, if it can run, measured time."""
        module = module_from_bytes(final_module(compiled))
        return StepVariant(
            name=name,
            bytes=assigned_bytes(compiled),
            seconds=run_seconds(module, self.cost),
            moved=module_work(module, self.target.platform).bytes,
            measured=self._measured(compiled) if self.target.device is None else None,
            host_bytes=host_bytes(compiled),
        )

    def _measured(self, compiled: Any) -> float:
        """Runs an executable; returns median seconds of a step. Each run has new arguments."""
        seconds = []
        for _ in range(_STEPS + 1):
            arguments = jax.block_until_ready(self.model.arrays())
            started = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])


# Memory against time: one train step under every kind of recomputation.
#
# Ways are XLA's own schedule, its own rematerialisation (GPU), `jax.checkpoint` around the loss
# with each of JAX's policies, `olla_xla.sublinear` around it, and our plans with and without
# recomputation. Each is compiled; its total is XLA's, its time predicted by one cost model from
# its final module, and on CPU measured too. That is a compile for each way, so what matters most
# comes first, and a limit of seconds leaves out the rest.


Row = Callable[[Sequence[StepVariant]], StepVariant | None]
"""Makes a row, given those before; None where the way does not apply."""

_LIMITED = "XLA's rematerialisation"

_SUBLINEAR = {"nothing": "olla_xla.sublinear", "dots": "olla_xla.sublinear, dots kept"}
"""What is kept -> name of the row."""

_LIMIT_PERCENT = (4, 3, 2, 1)
"""XLA's memory limits to try for its own rematerialisation, in percent of the card's memory."""


def pareto(
    model: BuiltModel,
    target: Target,
    options: PlanOptions,
    overheads: Sequence[float],
    progress: Callable[[str], None],
    seconds: float = math.inf,
) -> tuple[list[StepVariant], list[str]]:
    """Compiles the step with each kind of recomputation, for its memory and predicted time.
    Returns (a row for each way that applies, XLA's own first; the ways left out for lack of time).

    Args:
      model: the step. target: what to compile for. options: of the plans.
      overheads: added time allowed to each plan, as fractions of the step's; 0: an order alone.
      progress: called with one line for each way.
      seconds: after which no other way is begun; XLA's own schedule is in any case.

    Raises InputError if the step cannot be traced, OllaError if planning failed.
    """
    work = StepVariants(model, target, options)
    ways = _ways(work, overheads)
    rows: list[StepVariant] = []
    began = time.monotonic()
    for k, (text, row) in enumerate(ways):
        if rows and time.monotonic() - began >= seconds:
            return rows, [text for text, _ in ways[k:]]
        progress(f"{k + 1} of {len(ways)}: {text}")
        variant = row(rows)
        if variant is not None:
            rows.append(variant)
    return rows, []


def _ways(work: StepVariants, overheads: Sequence[float]) -> list[tuple[str, Row]]:
    """Lists ways to compile the step: (line of progress, function that makes its row).
    The functions are given the rows before, and return None where the way does not apply.
    """

    def limited(percent: int, rows: Sequence[StepVariant]) -> StepVariant | None:
        if (work.target.memory_bytes or 0) * percent / 100 >= rows[0].bytes:
            return None  # XLA has no reason to compute anything again
        variant = work.row(
            f"{_LIMITED}, {percent} % limit", work.compiled(options={flag: str(percent)})
        )
        return None if variant.bytes >= rows[0].bytes else variant

    def within(
        name: str, context: AbstractContextManager[Any], _: Sequence[StepVariant]
    ) -> StepVariant:
        with context:
            return work.row(name, work.compiled())

    def planned(overhead: float, _: Sequence[StepVariant]) -> StepVariant:
        return work.planned(overhead)

    ways: list[tuple[str, Row]] = [
        ("XLA's own schedule", lambda _: work.row("XLA", work.compiled()))
    ]
    for overhead in overheads:
        text = f"planned, {overhead:.0%} overhead at most"
        ways.append((text, functools.partial(planned, overhead)))
    for policy in POLICIES:
        name = f"jax.checkpoint, {policy}"
        ways.append((name, functools.partial(within, name, checkpointed_loss(policy))))
    for keep, name in _SUBLINEAR.items():
        ways.append((name, functools.partial(within, name, sublinear_loss(keep))))
    if flag := platform(work.target.platform).memory_limit_flag:
        for percent in _LIMIT_PERCENT:
            text = f"{_LIMITED} at {percent} % of the card's memory"
            ways.append((text, functools.partial(limited, percent)))
    return ways
