"""Orders in which transfers hide less: what that saves, and the time that it may take.

By default whatever XLA has run between the start of a transfer and its done stays there. Some of it
may take memory that is missed elsewhere. How long a transfer takes is not known here, so all that
no longer stands between counts as added time, which is never too little.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo.module import Module
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.hidden import hidden_seconds
from olla_xla.remat.cost.roofline import CostModel

__all__ = ["exposed", "released"]

_TRIES = 3
"""Choices of transfers that are ordered anew."""


def exposed(module: Module, base: Plan, plan: Plan, cost: CostModel) -> dict[str, float]:
    """By start's name, the predicted seconds that it hides less under one plan than under another.

    Args:
      module: that both plans are for, with their loops and clones in it. base, plan: the plans.
      cost: prices operators.
    """
    before, after = (hidden_seconds(module, p.order, cost) for p in (base, plan))
    return {name: max(seconds - after.get(name, 0.0), 0.0) for name, seconds in before.items()}


def released(
    module: Module,
    base: Plan,
    cost: CostModel,
    allowance: float,
    plan: Callable[[frozenset[str]], Plan],
) -> tuple[Plan, float] | None:
    """The least total that is found where transfers may hide less.

    At first all may; then those that cost least, as long as they fit into the allowance together.

    Args:
      module: that `base` is for, with its loops and clones in it. base: its plan so far.
      cost: prices operators. allowance: predicted seconds that may be added.
      plan: finds an order of the module with these starts released.

    Returns:
      The plan and the seconds it adds; None where none is better than `base` within the allowance.
    """
    starts = {n for n, s in hidden_seconds(module, base.order, cost).items() if s > 0}
    for _ in range(_TRIES):
        if not starts:
            break
        found = plan(frozenset(starts))
        if found.predicted_bytes >= base.predicted_bytes:
            break
        lost = exposed(module, base, found, cost)
        if (seconds := sum(lost.values())) <= allowance:
            return found, seconds
        starts = _cheapest(lost, starts, allowance)
    return None


def _cheapest(lost: dict[str, float], starts: set[str], allowance: float) -> set[str]:
    """Those that cost least, while they fit into the allowance together; never all."""
    kept: set[str] = set()
    for name in sorted(starts, key=lambda name: (lost[name], name)):
        allowance -= lost[name]
        if allowance < 0 or len(kept) == len(starts) - 1:
            break
        kept.add(name)
    return kept
