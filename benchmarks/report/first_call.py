"""First calls as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.first_call import Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent


def first_call_table(rows: Sequence[Row]) -> Table:
    """A line for each step, and the median of all ratios; sizes in MB."""
    median = statistics.median(row.ratio for row in rows)
    lines = [
        (
            row.case,
            f"{row.jit_seconds:.2f}",
            f"{row.plan_seconds:.2f}",
            f"{row.ratio:.2f}",
            f"{row.search_seconds:.2f}",
            megabytes(row.xla_bytes),
            megabytes(row.planned_bytes),
            percent(row.saving, 1),
        )
        for row in rows
    ]
    return Table(
        headings=("case:", "jit s", "plan s", "ratio", "search s", "XLA", "planned", "saved %"),
        rows=[*lines, ("median", "", "", f"{median:.2f}", "", "", "", "")],
        title="from lower() to the compiled step; assigned, in MB of 2^20 bytes",
    )
