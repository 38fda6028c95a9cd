"""Memory against time: one train step under every kind of recomputation.

Ways are XLA's own schedule, its own rematerialisation (GPU), `jax.checkpoint` around the loss with
each of JAX's policies, `olla_xla.sublinear` around it, and our plans with and without
recomputation. Each is compiled; its total is XLA's, its time predicted by one cost model from its
final module, and on CPU measured too. That is a compile for each way, so what matters most comes
first, and a limit of seconds leaves out the rest.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hlo.backend import platform
from olla_xla.analysis.checkpointed import POLICIES, checkpointed_loss, sublinear_loss
from olla_xla.problem.options import PlanOptions
from olla_xla.targets.target import Target
from olla_xla.tools.models import BuiltModel
from olla_xla.tools.variants import StepVariant, StepVariants

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

    Args:
      model: the step. target: what to compile for. options: of the plans.
      overheads: allowances of our plans, parts of the step's predicted time; 0 is an order alone.
      progress: called with one line for each way.
      seconds: after which no other way is begun; XLA's own schedule is in any case.

    Returns:
      (a row for each way, XLA's own schedule first; the ways left out for lack of time).

    Raises:
      InputError: the step cannot be traced.
      OllaError: planning failed.
    """
    work = StepVariants(model, target, options)
    ways = _ways(work, overheads)
    rows: list[StepVariant] = []
    began = time.monotonic()
    for k, (text, row) in enumerate(ways):
        if rows and time.monotonic() - began >= seconds:
            return rows, [text for text, _ in ways[k:]]
        progress(f"{k + 1} of {len(ways)}: {text}")
        found = row(rows)
        if found is not None:
            rows.append(found)
    return rows, []


def _ways(work: StepVariants, overheads: Sequence[float]) -> list[tuple[str, Row]]:
    """For each way its line of progress, and the function that makes its row."""

    def limited(percent: int, rows: Sequence[StepVariant]) -> StepVariant | None:
        if (work.target.memory_bytes or 0) * percent / 100 >= rows[0].bytes:
            return None  # XLA has no reason to compute anything again
        found = work.row(
            f"{_LIMITED}, {percent} % limit", work.compiled(options={flag: str(percent)})
        )
        return None if found.bytes >= rows[0].bytes else found

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
            text = f"{_LIMITED} at {percent} % of the card"
            ways.append((text, functools.partial(limited, percent)))
    return ways
