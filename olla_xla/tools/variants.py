"""One train step compiled in several ways, each with XLA's total and a time from one cost model."""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from typing import Any

from hlo.module import module_from_bytes
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
    """One way to run a step, with its memory and time.

    Attributes:
      name: what was done.
      bytes: XLA's assigned total on the device. host_bytes: the same in host memory.
      seconds: predicted time of a step. moved: bytes that its instructions read from and write to
        memory, by the cost model.
      clones: instructions that are computed again by our plan. stacks: scan
        residuals that it recomputes.
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
        """Compiles the step by JAX without a plan, traced anew; `options`: XLA's."""
        import jax

        def step(*args: Any, **kwargs: Any) -> Any:  # a new function: JAX reuses no earlier trace
            return self.model.step(*args, **kwargs)

        with tracing(self.model.name):
            lowered = jax.jit(step, **self.model.jit_options).lower(*self.arguments)
        return lowered.compile(compiler_options=options)

    def planned(self, overhead: float | None) -> StepVariant:
        """The step with our plan, which may add that fraction of its time. OllaError if none.

        With None as by default: values are computed again that cost no time; with 0 none are.
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
        """The row of one executable: memory, predicted time and, if it can run, measured time."""
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
        """Median seconds of a step; each has arguments of its own, which it may overwrite."""
        import jax

        seconds = []
        for _ in range(_STEPS + 1):
            arguments = jax.block_until_ready(self.model.arrays())
            started = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds[1:])
