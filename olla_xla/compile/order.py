"""Whether an executable runs a plan's order.
Passes after the hook may add, drop or replace instructions (copies, asynchronous pairs,
optimization barriers). Instructions that are in both and are not idle (`IDLE`) must be in the
plan's order. On a TPU these passes move values between memories and rename instructions, so the
order is not compared there: the referee checks the values, and XLA's total is compared.
"""

import re
from collections.abc import Mapping, Sequence

from hlo.backend import platform
from hlo.module import Module, parse_module_proto
from olla_xla.errors import CheckError
from olla_xla.problem.plan import Plan

IDLE = frozenset(
    "parameter constant bitcast tuple get-tuple-element opt-barrier optimization-barrier".split()
)
"""Opcodes that neither read nor write memory when they run."""

_LOCAL = 2**32 - 1
"""Low bits of an instruction's id, unique in its computation; schedules may have only these."""

AGAIN = re.compile(r"(.+?)\.remat\d*(\.\d+)*$")
"""Name of a clone by XLA's rematerialization; group 1 is the name of the original."""

_FORWARDING = re.compile(r"(bitcast|get-tuple-element)(\.\d+)*\.remat\d*$")
"""Names of clones that compute nothing; XLA may remove these."""


def order_difference(plan: Plan, final: bytes) -> str:
    """Says how the order in an executable's serialized module differs from the plan's; or "".
    Where XLA renames instructions, it is not compared: only most of the plan's must be there.
    """
    try:
        _compare(plan, _schedules(final))
    except CheckError as error:
        return str(error)
    return ""


def compare_orders(plan: Plan, module: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds the instructions that XLA added to a plan's schedule, and those that it dropped.
    Returns (names added, without those that neither read nor write memory; names dropped), of
    computations that both have. Raises CheckError: most instructions of the plan are missing, or
    all computations. Where XLA keeps names also: an instruction is out of order, a clone is
    missing, or most of a computation is missing.
    """
    return _compare(
        plan,
        {
            c.name: [(i.name, i.opcode) for i in c.schedule]
            for c in module.control_computations
            if c.schedule is not None
        },
    )


def _schedules(module: bytes) -> dict[str, list[tuple[str, str]]]:
    """Reads a serialized module's schedules: computation name -> (name, opcode) in order."""
    proto = parse_module_proto(module)
    schedules = {}
    for c in proto.computations:
        if c.id in proto.schedule.sequences:
            by_id = {i.id & _LOCAL: (i.name, i.opcode) for i in c.instructions}
            ids = proto.schedule.sequences[c.id].instruction_ids
            schedules[c.name] = [by_id[k & _LOCAL] for k in ids]
    return schedules


def _compare(
    plan: Plan, actual: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    added: list[str] = []
    dropped: list[str] = []
    every = left = 0
    common = sorted(plan.order.keys() & actual.keys())
    if not common:
        raise CheckError("no computation of the plan is in the executable")
    keeps_names = not platform(plan.target).renames
    if keeps_names:
        _check_clones(plan, {name for order in actual.values() for name, _ in order})
    for name in common:
        ours = set(plan.order[name])
        theirs = {n for n, _ in actual[name]}
        working = [n for n, opcode in actual[name] if opcode not in IDLE]
        added += [n for n in working if n not in ours]
        dropped += [n for n in plan.order[name] if n not in theirs]
        met = [n for n in working if n in ours]
        both = set(met)
        planned = [n for n in plan.order[name] if n in both]
        if keeps_names and planned != met:
            k = next(k for k, (a, b) in enumerate(zip(planned, met, strict=True)) if a != b)
            raise CheckError(
                f"in {name} the executable runs {met[k]} where the plan runs {planned[k]}"
            )
        if keeps_names and 2 * len(ours & theirs) < len(ours):
            raise CheckError(f"most instructions of the plan of {name} are not in the executable")
        every += len(ours)
        left += len(ours & theirs)
    # Where XLA renames instructions, all names of a small computation may be new.
    if 2 * left < every:
        raise CheckError("most instructions of the plan are missing in the executable")
    return tuple(added), tuple(dropped)


def _check_clones(plan: Plan, names: set[str]) -> None:
    # A clone that only dropped outputs read (hlo.rewrite.trim) is in no order.
    ordered = {name for order in plan.order.values() for name in order}
    clones = [clone for clone, *_ in plan.clones if clone in ordered]
    made = [clone for clone in clones if not _FORWARDING.match(clone)]
    if lost := [clone for clone in made if clone not in names]:
        raise CheckError(f"{len(lost)} of {len(made)} clones are not in the executable ({lost[0]})")
