"""Tables of XLA's allocations, and of the offsets of tensors in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent

if TYPE_CHECKING:
    from olla_xla.tools.assignment_report import FullReport


def allocation_table(report: FullReport, count: int) -> Table:
    """The `count` first allocations of a report, largest first; sizes in MB."""
    return Table(
        headings=(
            "allocation", "kind:", "values", "size", "largest live", "frag %", "packed", "bound",
        ),
        rows=[
            (
                f"{row.index}",
                row.kind,
                f"{row.values:,}",
                megabytes(row.size, 2),
                megabytes(row.live_bytes, 2),
                percent(row.fragmentation, 3),
                megabytes(row.packed_bytes, 2),
                megabytes(row.bound_bytes, 2),
            )
            for row in report.allocations[:count]
        ],
        title="XLA's allocations, what their values need at most, and our packing of them; MB",
    )  # fmt: skip


def tensor_table(report: FullReport, count: int) -> Table:
    """The `count` first tensors of a report, largest first: planned offset and XLA's, in bytes."""
    return Table(
        headings=("tensor:", "bytes", "planned offset", "allocation", "offset"),
        rows=[
            (
                row.name,
                f"{row.bytes:,}",
                "-" if row.planned is None else f"{row.planned:,}",
                f"{row.allocation}",
                f"{row.offset:,}",
            )
            for row in report.tensors[:count]
        ],
        title="each tensor's planned and actual place",
    )
