"""Code shared by commands that compile others' steps and plan each in several ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from absl import flags

from benchmarks.driver import Flags, write_json
from benchmarks.suite import SuitePlan, SuiteRow
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent, seconds


def define_flags(values: flags.FlagValues) -> None:
    """Defines --target, --out, --overheads, --format and limits."""
    define = Flags(values)
    define.one_of("target", "h100", targets.TARGETS, "Device to compile for.")
    define.out()
    shared.define_overheads(values, "0.05,0.1,0.35")
    shared.define_format(values)
    shared.define_limits(values)
    values.set_default("time_limit", None)  # as the defaults have it


def run(
    values: flags.FlagValues, rows: Sequence[Callable[[Callable[[str], None]], SuiteRow]]
) -> int:
    """Makes every row and prints a table.

    Args:
      values: the flags.
      rows: functions that make a row each; their argument is called with a line at each stage.

    Returns:
      1 if a plan of a step that XLA compiles fails, else 0.
    """
    files.check_writable(values.out)
    found = []
    with Progress() as progress:
        for row in rows:
            found.append(row(progress.stage))
            write_json(values.out, found)  # A row takes minutes: what is there already is kept.
    shared.print_table(values, suite_table(found, shared.overheads(values), values.target))
    if any(plan.way for row in found for plan in row.plans):
        shared.print_table(values, front_table(found))
    for line in suite_notes(found):
        print(line)
    return 1 if any(row.trouble for row in found) else 0


def suite_table(rows: Sequence[SuiteRow], overheads: Sequence[float], target: str) -> Table:
    """A line for each dump; a column for each plan, then what the plans add, in the same order."""
    ways = ["default", *(_allowed(overhead) for overhead in overheads)]
    return Table(
        ("dump:", "devices", "XLA", *ways, "predicted ms", "more %", "XLA s", "first call s"),
        [_cells(row, len(ways)) for row in rows],
        f"{target}; assigned, in MB of 2^20 bytes of a device; plans: {', '.join(ways)}",
    )


def front_table(rows: Sequence[SuiteRow]) -> Table:
    """A line for each step and overhead: recomputation alone, host memory alone, and both."""
    lines = []
    for row in rows:
        plans = {(plan.way, plan.max_overhead): plan for plan in row.plans if not plan.beside}
        for most in [most for way, most in plans if way == "both"]:
            none = SuitePlan(most, row.xla_bytes or 0, row.step_seconds, 0.0, False)
            ways = [plans.get((way, most), none) for way in ("", "spilled", "both")]
            added = (percent(plan.step_seconds / row.step_seconds - 1, 1) for plan in ways)
            sizes = (f"{megabytes(p.bytes)} + {megabytes(p.host_bytes)}" for p in ways)
            cells = [cell for pair in zip(sizes, added, strict=True) for cell in pair]
            copies = " / ".join(map(str, ways[-1].copies))
            lines.append((row.name, percent(most or 0.0), *cells, copies))
    heads = ((f"{way}, device + host", "more %") for way in ("recomputed", "spilled", "both"))
    names = (
        "step:",
        "allowed %",
        *(n for pair in heads for n in pair),
        "copies beside / waited for",
    )
    return Table(names, lines, "with host memory; MB of 2^20 bytes of a device")


def _cells(row: SuiteRow, ways: int) -> tuple[str, ...]:
    if row.xla_bytes is None:
        return (row.name, str(row.devices or "-"), *("-" for _ in range(ways + 5)))
    plans = [plan for plan in row.plans if not plan.beside and not plan.way]
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
