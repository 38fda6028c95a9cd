"""Tables of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.schedule import Row, Summary
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent


def schedule_table(rows: Sequence[Row]) -> Table:
    """A line for each case; sizes in MB."""
    return Table(
        headings=(
            "case:", "operators", "XLA", "planned", "gain %", "least peak", "bound", "gap %",
            "loss %", "error %", "plan s", "compile s", "ratio", "instr.", "check s", "ratio",
            "stopped by:",
        ),
        rows=[
            (
                row.case,
                f"{row.operators:,}",
                megabytes(row.xla_bytes),
                megabytes(row.planned_bytes),
                percent(1 - row.planned_bytes / row.xla_bytes, 1),
                megabytes(row.peak_bytes),
                megabytes(row.bound_bytes),
                percent(row.gap),
                percent(row.loss),
                percent(row.error, 3),
                f"{row.seconds:.2f}",
                f"{row.compile_seconds:.2f}",
                f"{row.ratio:.2f}",
                f"{row.instructions:,}",
                f"{row.referee_seconds:.3f}",
                f"{row.referee_ratio:.3f}",
                row.stopped_by,
            )
            for row in rows
        ],
        title="XLA: assigned; planned: predicted; sizes in MB of 2^20 bytes",
    )  # fmt: skip


def schedule_summary(summary: Summary) -> str:
    """All cases in one line each figure."""
    return "\n".join(
        [
            f"{summary.cases} cases; after 10 s "
            f"{'none' if summary.never_worse else 'SOME'} above XLA's order",
            f"certified gap of the lifetime peak at most 1 % on "
            f"{percent(summary.within_1_percent, 1)} %, at most 5 % on "
            f"{percent(summary.within_5_percent, 1)} %",
            f"mean assignment loss {percent(summary.mean_loss)} %",
            f"median planning {summary.median_seconds:.2f} s, "
            f"{summary.median_ratio:.2f} of XLA's compile",
            f"the check of the executable: {summary.median_referee_ratio:.3f} of XLA's compile "
            "in the median",
        ]
    )
