"""Policies of `jax.checkpoint` on a scan's body against our plans, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.loops import LoopsRow
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent

_HEADINGS = (
    "way:",
    "total",
    "less %",
    "predicted ms",
    "more %",
    "planned for as much",
    "more %",
    "at or below:",
)


def loops_table(rows: Sequence[LoopsRow], title: str) -> Table:
    """A line for each row, against the first; for policies also our plan that may add as much.

    Totals are XLA's, in MB.
    """
    first = rows[0].way
    lines = []
    for row in rows:
        ours = None if row.planned is None else row.planned.bytes
        lines.append(
            (
                row.way.name,
                megabytes(row.way.bytes),
                percent(1 - row.way.bytes / first.bytes, 1),
                f"{1e3 * row.way.seconds:,.2f}",
                percent(row.added, 1),
                megabytes(ours),
                percent(row.planned_added, 1),
                {None: "", True: "yes", False: "no"}[row.at_or_below],
            )
        )
    return Table(_HEADINGS, lines, title)


def loops_summary(rows: Sequence[LoopsRow]) -> str:
    """In one line how many policies our plans are at or below, and which they are not."""
    compared = [row for row in rows if row.planned is not None]
    above = [row.way.name for row in compared if not row.at_or_below]
    text = f"at or below {len(compared) - len(above)} of {len(compared)} policies at their own time"
    return text + (f"; above {', '.join(above)}" if above else "")
