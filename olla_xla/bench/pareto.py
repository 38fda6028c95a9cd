"""Memory against time: one train step under every way of computing things again.

Rows are XLA's own schedule, its own rematerialisation (GPU), `jax.checkpoint` around the loss with
each of JAX's policies, and our plans with and without recomputation. Each is compiled; its total is
XLA's, its time predicted by one cost model from its final module, and on CPU measured too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import olla_xla
from hlo.module import module_from_bytes
from olla_xla.bench.models import BuiltModel, tracing
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel, module_work
from olla_xla.targets.target import Target

__all__ = ["POLICIES", "ParetoRow", "pareto"]

POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)

_STEPS = 3
"""Timed steps, after one that is not."""

_LIMIT_PERCENT = (4, 3, 2, 1)
"""XLA's memory limits to try for its own rematerialisation, as parts of the card's memory."""


@dataclasses.dataclass(frozen=True)
class ParetoRow:
    """One way to run the step.

    Attributes:
      name: what was done.
      bytes: XLA's assigned total. seconds: predicted time of a step. moved: bytes it moves.
      clones: instructions that are computed again by our plan.
      measured: median seconds of a step, or None where nothing was run.
    """

    name: str
    bytes: int
    seconds: float
    moved: int
    clones: int = 0
    measured: float | None = None


def pareto(
    model: BuiltModel,
    target: Target,
    options: PlanOptions,
    overheads: Sequence[float],
    progress: Callable[[str], None],
) -> list[ParetoRow]:
    """Compiles the step in every way and prices it; XLA's own schedule comes first.

    Args:
      model: the step. target: what to compile for. options: of the plans.
      overheads: allowances of our plans, parts of the step's predicted time; 0 is an order alone.
      progress: called with one line for each way.

    Raises:
      InputError: the step cannot be traced.
      OllaError: planning failed.
    """
    work = _Ways(model, target, options)
    rows = []
    progress("XLA's own schedule")
    rows.append(work.row("XLA", work.compiled()))
    if target.platform == "cuda":
        for percent in _LIMIT_PERCENT:
            progress(f"XLA's rematerialisation at {percent} % of the card")
            limit = {"xla_gpu_memory_limit_slop_factor": str(percent)}
            found = work.row("XLA's rematerialisation", work.compiled(options=limit))
            if found.bytes < rows[0].bytes:
                rows.append(dataclasses.replace(found, name=f"{found.name}, {percent} % limit"))
    for policy in POLICIES:
        progress(f"jax.checkpoint, {policy}")
        with _checkpointed(policy):
            rows.append(work.row(f"jax.checkpoint, {policy}", work.compiled()))
    for overhead in overheads:
        progress(f"planned, {overhead:.0%} overhead at most")
        rows.append(work.planned(overhead))
    return rows


@contextlib.contextmanager
def _checkpointed(policy: str) -> Iterator[None]:
    """Within it every function that JAX differentiates is wrapped in `jax.checkpoint`."""
    import jax

    def wrapped(transform: Callable[..., Any]) -> Callable[..., Any]:
        def differentiate(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            chosen = getattr(jax.checkpoint_policies, policy)
            return transform(jax.checkpoint(fun, policy=chosen), *args, **kwargs)

        return differentiate

    with (
        mock.patch.object(jax, "grad", wrapped(jax.grad)),
        mock.patch.object(jax, "value_and_grad", wrapped(jax.value_and_grad)),
    ):
        yield


class _Ways:
    """Compiles one step in several ways."""

    def __init__(self, model: BuiltModel, target: Target, options: PlanOptions) -> None:
        self.model = model
        self.target = target
        self.options = options
        self.arguments = target.place(model.arguments)
        self.cost = CostModel(device(target.platform), target.platform)

    def compiled(self, options: dict[str, Any] | None = None) -> Any:
        """The step as JAX compiles it, traced anew."""
        import jax

        def step(*args: Any, **kwargs: Any) -> Any:  # of its own: nothing traced before is used
            return self.model.step(*args, **kwargs)

        with tracing(self.model.name):
            lowered = jax.jit(step, **self.model.jit_options).lower(*self.arguments)
        return lowered.compile(compiler_options=options)

    def planned(self, overhead: float) -> ParetoRow:
        """The step with our plan."""
        settings = dataclasses.asdict(self.options)
        settings["max_overhead"] = overhead
        with tracing(self.model.name):
            function = olla_xla.plan(self.model.step, **settings, **self.model.jit_options)
            lowered = function.lower(*self.arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", olla_xla.PlanWarning)  # raised below
            compiled = lowered.compile()
        if compiled.plan is None:
            raise OllaError(f"planning failed: {compiled.reason}")
        name = "planned order" if not overhead else f"planned, at most {overhead:.0%}"
        return self.row(name, compiled, len(compiled.plan.clones))

    def row(self, name: str, compiled: Any, clones: int = 0) -> ParetoRow:
        """The figures of one executable."""
        module = module_from_bytes(final_module(compiled))
        return ParetoRow(
            name=name,
            bytes=assigned_bytes(compiled),
            seconds=self.cost.step_seconds(module),
            moved=module_work(module, self.target.platform).bytes,
            clones=clones,
            measured=self._measured(compiled) if self.target.device is None else None,
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
