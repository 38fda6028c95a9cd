"""The totals that remedies were said to give, beside those that they gave."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.remedies import Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent


def remedies_table(rows: Sequence[Row]) -> Table:
    """A line for each remedy; totals in MB."""
    lines = [
        (
            row.step,
            megabytes(row.bytes, 2),
            row.setting or "none named",
            *((megabytes(row.said, 2), megabytes(row.found, 2)) if row.setting else ("-", "-")),
            percent(row.error, 1) if row.setting else "-",
        )
        for row in rows
    ]
    return Table(("step:", "XLA", "remedy:", "said", "found", "error %"), lines, "Totals in MB")


def remedies_line(rows: Sequence[Row], within: float) -> str:
    """How many steps got a remedy, and how many remedies gave their figures."""
    expected = {row.step for row in rows if row.helped}
    named = {row.step for row in rows if row.setting}
    right = [row for row in rows if row.setting and abs(row.error) <= within]
    return (
        f"{len(expected & named)} of {len(expected)} steps that something helps got a remedy, "
        f"{len(named - expected)} of the others; {len(right)} of "
        f"{sum(bool(row.setting) for row in rows)} remedies gave what was said within "
        f"{percent(within, 0)} %."
    )
