"""The totals and times of several ways to run one step, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, more, percent
from olla_xla.tools.variants import StepVariant

_HEADINGS = (
    "way:",
    "total",
    "less %",
    "predicted ms",
    "more %",
    "moved % more",
    "clones",
    "measured ms",
    "more %",
    "",
)


def pareto_table(rows: Sequence[StepVariant], title: str) -> Table:
    """One line for each way, compared with the first one.

    Totals are XLA's, in MB; times are in milliseconds. A star marks the ways on the Pareto front:
    no other way is at most as large and at most as slow, and better in one of the two.
    """
    first = rows[0]
    lines = []
    for row in rows:
        beaten = any(
            (other.bytes, other.seconds) != (row.bytes, row.seconds)
            and other.bytes <= row.bytes
            and other.seconds <= row.seconds
            for other in rows
        )
        lines.append(
            (
                row.name,
                megabytes(row.bytes),
                percent(-more(row.bytes, first.bytes), 1),
                f"{1e3 * row.seconds:,.2f}",
                percent(more(row.seconds, first.seconds), 1),
                percent(more(row.moved, first.moved), 1),
                str(row.clones),
                *_measured(row.measured, first.measured),
                "" if beaten else "*",
            )
        )
    return Table(_HEADINGS, lines, title)


def _measured(seconds: float | None, first: float | None) -> tuple[str, str]:
    if seconds is None or first is None:
        return "-", "-"
    return f"{1e3 * seconds:,.1f}", percent(seconds / first - 1, 1)
