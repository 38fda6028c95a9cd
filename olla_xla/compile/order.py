"""Whether an executable runs a plan's order: the one rule for it.

Passes after the hook may add, drop or replace instructions (copies, asynchronous pairs,
optimization barriers); those that are in both and do any work must stand in the plan's order.
"""

from __future__ import annotations

import re

from hlo.module import Module, module_from_bytes
from olla_xla.errors import CheckError
from olla_xla.problem.plan import Plan

__all__ = ["IDLE", "compare_orders", "order_difference"]

IDLE = frozenset(
    "parameter constant bitcast tuple get-tuple-element opt-barrier optimization-barrier".split()
)
"""Opcodes that neither read nor write memory when they run."""

_FORWARDING = re.compile(r"(bitcast|get-tuple-element)(\.\d+)*\.remat\d*$")
"""Clones that compute nothing; XLA may do without them."""


def order_difference(plan: Plan, final: bytes) -> str:
    """What keeps the order of an executable's module (serialized) from being the plan's, or ""."""
    try:
        compare_orders(plan, module_from_bytes(final))
    except CheckError as error:
        return str(error)
    return ""


def compare_orders(plan: Plan, module: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Instructions added to and dropped from the plan's.

    Args:
      plan: the plan. module: the executable's.

    Returns:
      Working instructions added, and instructions dropped, of the computations in both.

    Raises:
      CheckError: naming the first instruction out of order, or a clone that is missing; or if most
        of a computation is.
    """
    added: list[str] = []
    dropped: list[str] = []
    actual = {c.name: c.schedule for c in module.control_computations if c.schedule is not None}
    common = sorted(plan.order.keys() & actual.keys())
    if not common:
        raise CheckError("the executable has none of the plan's computations")
    _check_clones(plan, {i.name for order in actual.values() for i in order})
    for name in common:
        ours = set(plan.order[name])
        theirs = {i.name for i in actual[name]}
        working = [i.name for i in actual[name] if i.opcode not in IDLE]
        added += [n for n in working if n not in ours]
        dropped += [n for n in plan.order[name] if n not in theirs]
        met = [n for n in working if n in ours]
        both = set(met)
        planned = [n for n in plan.order[name] if n in both]
        if planned != met:
            k = next(k for k, (a, b) in enumerate(zip(planned, met, strict=True)) if a != b)
            raise CheckError(
                f"the executable runs {met[k]} where the plan of {name} has {planned[k]}"
            )
        if 2 * len(ours & theirs) < len(ours):
            raise CheckError(f"most instructions of the plan of {name} are not in the executable")
    return tuple(added), tuple(dropped)


def _check_clones(plan: Plan, names: set[str]) -> None:
    # A clone that was read for dropped outputs alone (hlo.rewrite.trim) is in no order.
    ordered = {name for order in plan.order.values() for name in order}
    clones = [clone for clone, *_ in plan.clones if clone in ordered]
    made = [clone for clone in clones if not _FORWARDING.match(clone)]
    if lost := [clone for clone in made if clone not in names]:
        raise CheckError(f"{len(lost)} of {len(made)} clones are not in the executable ({lost[0]})")
