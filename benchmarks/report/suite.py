"""Dumps that were compiled and planned, as a table, with notes on some of them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.suite import SuitePlan, SuiteRow
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds


def suite_table(rows: Sequence[SuiteRow], overheads: Sequence[float], target: str) -> Table:
    """A line for each dump; a column for each plan, then what the plans add, in the same order."""
    ways = ["default", *(_allowed(overhead) for overhead in overheads)]
    return Table(
        headings=(
            "dump:",
            "devices",
            "XLA",
            *ways,
            "predicted ms",
            "more %",
            "XLA s",
            "first call s",
        ),
        rows=[_cells(row, len(ways)) for row in rows],
        title=f"{target}; assigned, in MB of 2^20 bytes of a device; plans: {', '.join(ways)}",
    )


def _cells(row: SuiteRow, ways: int) -> tuple[str, ...]:
    if row.xla_bytes is None:
        return (row.name, str(row.devices or "-"), *("-" for _ in range(ways + 5)))
    plans = [plan for plan in row.plans if not plan.beside]
    missing = ways - len(plans)
    more = (percent(plan.step_seconds / row.step_seconds - 1, 1) for plan in plans)
    return (
        row.name,
        str(row.devices),
        megabytes(row.xla_bytes),
        *(megabytes(plan.bytes) for plan in plans),
        *("-" for _ in range(missing)),
        f"{1e3 * row.step_seconds:,.2f}",
        " / ".join(more),
        seconds(row.seconds),
        " / ".join(seconds(plan.seconds) for plan in plans),
    )


def suite_notes(rows: Sequence[SuiteRow]) -> list[str]:
    """A line for each plan beside another step, each that failed, each dump not compiled."""
    lines = []
    for row in rows:
        lines += [_beside(row, plan) for plan in row.plans if plan.beside]
        lines += [f"{row.name}, {_name(p)}: {p.reason}" for p in row.plans if p.trouble]
        if row.error:
            kind = "does not compile" if row.xla_bytes is None else "ended early"
            lines.append(f"{row.name} {kind}: {row.error}")
    return lines


def _beside(row: SuiteRow, plan: SuitePlan) -> str:
    more = percent(plan.step_seconds / row.step_seconds - 1, 1)
    return (
        f"{row.name}, in the predicted time of {plan.beside} ({_name(plan)} more): "
        f"{megabytes(plan.bytes)} MB at {more} more, first call {seconds(plan.seconds)} s"
    )


def _name(plan: SuitePlan) -> str:
    return "by default" if plan.max_overhead is None else _allowed(plan.max_overhead)


def _allowed(overhead: float) -> str:
    return f"{100 * overhead:.3g} %"
