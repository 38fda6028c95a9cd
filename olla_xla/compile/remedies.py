"""Tries other ways than an order to lower a step's memory: recomputation, donation."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from olla_xla.compile import loading
from olla_xla.compile.capture import capture
from olla_xla.compile.foreign import jax_stage
from olla_xla.compile.jax_private import plain_jit
from olla_xla.errors import OllaError
from olla_xla.memory import clock
from olla_xla.memory.analysis.leaves import Leaf, to_donate
from olla_xla.memory.analysis.memory_view import MemoryView
from olla_xla.memory.analysis.remedy import Remedy, Trial, by_hand, described, most_used
from olla_xla.memory.module_state import scheduled_module
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

__all__ = ["Donating", "remedy"]

_LITTLE = 0.1
"""Other remedies are tried where an order saves a smaller part of XLA's total."""

_OVERHEADS = (0.2, 0.5)
"""Overheads allowed to recomputation, as parts of the step's predicted time, tried until one helps.
With 0.2 most steps save much; 0.5 is more than recomputing everything takes."""

_SECONDS = 10.0
"""Most seconds for trying recomputation, where the options have no limit."""

_LEAST_SECONDS = 2.0
"""Seconds that each trial gets at least, whatever earlier ones took."""

_NOTHING = 2**16
"""Bytes of a step below which nothing is tried: they are printed as 0.0 MB."""

_MOST_INSTRUCTIONS = 20_000
"""Larger modules are not planned for advice alone: planning would take longer than the limit."""


@dataclasses.dataclass(frozen=True)
class Donating:
    """A function whose arguments could be donated, and are not.

    Attributes:
      function: the plain function. jit_options: what it is jitted with.
      args, kwargs: its arguments, on the devices that it is compiled for.
      leaves: the arguments to donate.
    """

    function: Callable[..., Any]
    jit_options: Mapping[str, Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    leaves: Sequence[Leaf]

    def trial(self, options: PlanOptions | None, device_kind: str) -> Trial:
        """Compiles with the donation, and plans that module if `options` are given.

        Raises OllaError where XLA's hook or planning fails.
        """
        jitted = plain_jit(self.function, **self._donated())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            found = capture(jax_stage(jitted.lower(*self.args, **self.kwargs)))
        total = found.assigned_bytes
        if options is not None:
            plan = loading.planner().plan_module(
                found.module, options, target=found.platform, device_kind=device_kind
            )
            total = min(total, plan.predicted_bytes)
        done = f"if the caller is done with {'it' if len(self.leaves) == 1 else 'them'}"
        return Trial(to_donate(self.leaves), total, options is None, when=done)

    def _donated(self) -> dict[str, Any]:
        """The options of `jax.jit`, with these arguments donated as well."""
        options = dict(self.jit_options)
        numbers = options.pop("donate_argnums", None) or ()
        names = options.pop("donate_argnames", None) or ()
        numbers = {numbers} if isinstance(numbers, int) else set(numbers)
        names = {names} if isinstance(names, str) else set(names)
        numbers |= {leaf.argnum for leaf in self.leaves if leaf.argnum is not None}
        keywords = [leaf.path for leaf in self.leaves if leaf.argnum is None]
        names |= {path.split(".")[0].split("[")[0] for path in keywords}
        given = {"donate_argnums": tuple(sorted(numbers)), "donate_argnames": tuple(sorted(names))}
        return options | {name: value for name, value in given.items() if value}


def remedy(
    module: bytes,
    view: MemoryView,
    options: PlanOptions,
    *,
    target: str,
    plan: Plan | None = None,
    device_kind: str = "",
    donating: Donating | None = None,
) -> Remedy | None:
    """Tries what would lower a step's memory, unless its plan saves much already.

    Args:
      module: as XLA scheduled it, serialized.
      view: the memory of the executable in use. options: for the plans that are tried.
      target: "cpu", "cuda" or "tpu". plan: in use; None if none is.
      device_kind: as for `plan_module`. donating: what could be donated.

    Returns:
      None where the plan saves much, or nothing was tried.
    """
    total = view.total_bytes
    if plan is not None:
        total = plan.predicted_bytes if plan.assigned_bytes is None else plan.assigned_bytes
        if total < (1 - _LITTLE) * plan.xla_bytes:
            return None
    if total < _NOTHING:
        return None
    seconds = options.time_limit or _SECONDS
    asked = dataclasses.replace(options, time_limit=seconds, method="search")
    read = scheduled_module(module)
    trials = []
    if not options.recomputes and _size(read) <= _MOST_INSTRUCTIONS:
        trials += _recomputed(module, asked, total, most_used(view)[2], target, device_kind)
    if donating is not None and donating.leaves:
        planned = None if plan is None else asked
        trials.append(donating.trial(planned, device_kind))
    return described(view, total, trials, by_hand(read))


def _recomputed(
    module: bytes,
    options: PlanOptions,
    total: int,
    is_state: bool,
    target: str,
    device_kind: str,
) -> list[Trial]:
    """The trial of a plan with recomputation, at most one; none where planning fails."""
    trials: list[Trial] = []
    limit, began = options.time_limit or _SECONDS, clock.now()
    for overhead in _OVERHEADS:
        left = max(began + limit - clock.now(), _LEAST_SECONDS)
        allowed = dataclasses.replace(options, max_overhead=overhead, time_limit=left)
        try:
            found = loading.planner().plan_module(
                module, allowed, target=target, device_kind=device_kind
            )
        except OllaError:
            break
        setting = f"max_overhead={overhead:g}" if found.is_rewritten else ""
        trials = [Trial(setting, found.predicted_bytes, False, found.overhead, overhead)]
        if trials[0].helps(total) or is_state:
            break
    return trials


def _size(module: Any) -> int:
    return sum(len(c.instructions) for c in module.control_computations)
