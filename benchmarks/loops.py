"""Compares policies of `jax.checkpoint` on the bodies of scans with plans of the same step.

The step is compiled as it is, and with each policy on the bodies of its scans. Then the step
without a policy is planned once for each policy, allowed the time that the policy is predicted to
add, and once for each given fraction of the step's time. It may also be spilled to host memory
(`olla_xla.spill`), and planned then. `olla_xla.tools.variants` defines totals and times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.schedule import Case
from olla_xla import targets
from olla_xla.analysis.checkpointed import POLICIES, checkpointed_scans
from olla_xla.problem.options import PlanOptions
from olla_xla.segments.spill import spill
from olla_xla.tools import models
from olla_xla.tools.variants import StepVariant, StepVariants

CASES = (Case("llama_scan_saved", 8, "adam", "h100"), Case("gpt_scan", 8, "adam", "h100"))
"""Scans over layers without `jax.checkpoint`."""


_NOTHING = 1e-6
"""Allowed where a policy adds no time: 0 would be an order alone, and leave out what costs none."""


@dataclasses.dataclass(frozen=True)
class LoopsRow:
    """One way to run a step and what to hold it against.

    Attributes:
      way: XLA's own order, a policy, a plan, or the step spilled.
      added: predicted time that it adds to XLA's own, as a fraction of that.
      planned: for a policy, our plan that was allowed to add as much; else None.
      planned_added: the fraction that this plan adds.
    """

    way: StepVariant
    added: float
    planned: StepVariant | None = None
    planned_added: float | None = None

    @property
    def at_or_below(self) -> bool | None:
        """Whether our plan takes no more than the policy; None where there is no policy."""
        return None if self.planned is None else self.planned.bytes <= self.way.bytes


def loops(
    case: Case,
    options: PlanOptions,
    overheads: Sequence[float],
    progress: Callable[[str], None],
    policies: Sequence[str] = (),
    spilled: bool = False,
) -> list[LoopsRow]:
    """Compiles a step in every way: XLA's own comes first, then the policies, then our plans.

    Args:
      case: a step that scans. options: of the plans.
      overheads: allowances of more plans, parts of the step's predicted time.
      progress: called with one line for each way. policies: to compare with; by default all.
      spilled: whether the step is spilled too, and planned by default then.

    Raises:
      InputError: the step cannot be built or traced.
      OllaError: planning failed.
    """
    model = models.build(case.model, batch_size=case.batch_size, optimizer=case.optimizer)
    target, options = targets.target(case.target), dataclasses.replace(options, loops=True)
    work = StepVariants(model, target, options)
    progress("XLA's own schedule")
    xla = work.row("XLA", work.compiled())
    plans: dict[float, StepVariant] = {}

    def added(way: StepVariant) -> float:
        return way.seconds / xla.seconds - 1

    def planned(overhead: float) -> StepVariant:
        """Policies of one price share a plan."""
        if overhead not in plans:
            progress(f"planned, {overhead:.1%} overhead at most")
            plans[overhead] = work.planned(overhead)
        return plans[overhead]

    rows = [LoopsRow(xla, 0.0)]
    for policy in policies or POLICIES:
        progress(f"jax.checkpoint, {policy}")
        with checkpointed_scans(policy):
            way = work.row(f"jax.checkpoint, {policy}", work.compiled())
        ours = planned(max(added(way), _NOTHING))
        rows.append(LoopsRow(way, added(way), ours, added(ours)))
    rows += [LoopsRow(way, added(way)) for way in map(planned, overheads)]
    if spilled:
        progress("spilled")
        work = StepVariants(dataclasses.replace(model, step=spill(model.step)), target, options)
        rows.append(LoopsRow(way := work.row("spilled", work.compiled()), added(way)))
        progress("spilled and planned")
        way = work.planned(None)
        rows.append(LoopsRow(dataclasses.replace(way, name="spilled and planned"), added(way)))
    return rows


def as_json(found: Sequence[tuple[Case, Sequence[LoopsRow]]]) -> list[dict[str, Any]]:
    """Cases and their rows as plain JSON."""
    return [
        {
            "case": case.name,
            "rows": [dataclasses.asdict(r) | {"at_or_below": r.at_or_below} for r in rows],
        }
        for case, rows in found
    ]
