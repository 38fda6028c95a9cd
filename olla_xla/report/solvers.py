"""Tables of the benchmarks of scale and of the ILP."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.bench_scale import Row as ScaleRow
from olla_xla.report.tables import Table
from olla_xla.report.units import megabytes, percent

__all__ = ["scale_table"]


def scale_table(rows: Sequence[ScaleRow]) -> Table:
    """A line for each case; sizes in MB."""
    return Table(
        headings=(
            "case:", "operators", "seconds", "CPU s", "resident", "own peak", "peak", "bound",
            "gap %", "own total", "total", "stopped by:",
        ),
        rows=[
            (
                row.case,
                f"{row.operators:,}",
                f"{row.seconds:.1f}",
                f"{row.cpu_seconds:.1f}",
                megabytes(row.resident_bytes),
                megabytes(row.xla_peak_bytes),
                megabytes(row.peak_bytes),
                megabytes(row.bound_bytes),
                percent(row.gap, 3),
                megabytes(row.xla_bytes),
                megabytes(row.planned_bytes),
                row.stopped_by,
            )
            for row in rows
        ],
        title="own: of the module's own order; sizes in MB of 2^20 bytes",
    )  # fmt: skip
