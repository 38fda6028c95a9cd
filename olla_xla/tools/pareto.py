"""Memory against time: one train step under every way of computing things again.

Ways are XLA's own schedule, its own rematerialisation (GPU), `jax.checkpoint` around the loss with
each of JAX's policies, `olla_xla.sublinear` around it, and our plans with and without
recomputation. Each is compiled; its total is XLA's, its time predicted by one cost model from its
final module, and on CPU measured too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hlo.backend import platform
from olla_xla.problem.options import PlanOptions
from olla_xla.targets.target import Target
from olla_xla.tools.checkpointed import POLICIES, checkpointed_loss, sublinear_loss
from olla_xla.tools.models import BuiltModel
from olla_xla.tools.variants import StepVariants, Way

__all__ = ["pareto"]

_LIMIT_PERCENT = (4, 3, 2, 1)
"""XLA's memory limits to try for its own rematerialisation, as parts of the card's memory."""


def pareto(
    model: BuiltModel,
    target: Target,
    options: PlanOptions,
    overheads: Sequence[float],
    progress: Callable[[str], None],
) -> list[Way]:
    """Compiles the step in every way and prices it; XLA's own schedule comes first.

    Args:
      model: the step. target: what to compile for. options: of the plans.
      overheads: allowances of our plans, parts of the step's predicted time; 0 is an order alone.
      progress: called with one line for each way.

    Raises:
      InputError: the step cannot be traced.
      OllaError: planning failed.
    """
    work = StepVariants(model, target, options)
    rows = []
    progress("XLA's own schedule")
    rows.append(work.row("XLA", work.compiled()))
    if flag := platform(target.platform).memory_limit_flag:
        for percent in _LIMIT_PERCENT:
            progress(f"XLA's rematerialisation at {percent} % of the card")
            limit = {flag: str(percent)}
            found = work.row("XLA's rematerialisation", work.compiled(options=limit))
            if found.bytes < rows[0].bytes:
                rows.append(dataclasses.replace(found, name=f"{found.name}, {percent} % limit"))
    for policy in POLICIES:
        progress(f"jax.checkpoint, {policy}")
        with checkpointed_loss(policy):
            rows.append(work.row(f"jax.checkpoint, {policy}", work.compiled()))
    for keep, name in (
        ("nothing", "olla_xla.sublinear"),
        ("dots", "olla_xla.sublinear, dots kept"),
    ):
        progress(name)
        with sublinear_loss(keep):
            rows.append(work.row(name, work.compiled()))
    for overhead in overheads:
        progress(f"planned, {overhead:.0%} overhead at most")
        rows.append(work.planned(overhead))
    return rows
