"""Tables of the baseline planners and of sublinear training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from olla_xla.bench.eager.estimate import Estimates
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent

if TYPE_CHECKING:
    from olla_xla.bench.sublinear_training import MemoryRow, TimeRow

__all__ = ["estimate_table", "memory_table", "time_table"]


def estimate_table(found: Estimates, title: str) -> Table:
    """A line for each baseline; sizes in MB."""
    fixed = (
        f"{title}; {found.operators:,} operators; arguments {megabytes(found.argument_bytes)}, "
        f"results {megabytes(found.output_bytes)}, gradients {megabytes(found.gradient_bytes)}; "
        "sizes in MB of 2^20 bytes"
    )
    eager = found.rows[0].total_bytes or 1
    return Table(
        headings=(
            "planner:",
            "total",
            "of eager %",
            "reserved",
            "unused at live peak %",
            "unused at growth %",
            "added edges",
        ),
        rows=[
            (
                row.planner,
                megabytes(row.total_bytes),
                "-" if row.total_bytes is None else percent(row.total_bytes / eager, 1),
                megabytes(row.reserved_bytes),
                percent(row.peak_fragmentation),
                percent(row.fragmentation),
                "-" if row.added_edges is None else f"{row.added_edges:,}",
            )
            for row in found.rows
        ],
        title=fixed,
    )


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    """Feature maps of each network in MB, and how much each way saves on the one before."""
    return Table(
        headings=(
            "network:", "size", "none", "in place", "sharing", "both", "cheap dropped",
            "sublinear", "exact budget", "none / sharing", "sharing / least", "s",
        ),
        rows=[
            (
                row.network,
                f"{row.size:,}",
                megabytes(row.none_bytes, 0),
                megabytes(row.in_place_bytes, 0),
                megabytes(row.sharing_bytes, 0),
                megabytes(row.both_bytes, 0),
                megabytes(row.cheap_bytes, 0),
                megabytes(row.sublinear_bytes, 0),
                megabytes(row.exact_bytes, 0),
                f"{row.none_bytes / row.sharing_bytes:.2f}",
                f"{row.sharing_bytes / row.least_bytes:.2f}",
                f"{row.seconds:.0f}",
            )
            for row in rows
        ],
        title="feature maps on the unfused graph, MB of 2^20 bytes",
    )  # fmt: skip


def time_table(rows: Sequence[TimeRow]) -> Table:
    """Step time, XLA's temporaries in MB, and how far the gradients differ."""
    return Table(
        headings=(
            "network:", "size", "plain s", "sublinear s", "ratio", "plain temp",
            "sublinear temp", "largest difference",
        ),
        rows=[
            (
                row.network,
                f"{row.size:,}",
                f"{row.plain_seconds:.3f}",
                f"{row.sublinear_seconds:.3f}",
                f"{row.ratio:.3f}",
                megabytes(row.plain_temp_bytes),
                megabytes(row.sublinear_temp_bytes),
                f"{row.largest_difference:.1e}",
            )
            for row in rows
        ],
        title="gradient on this machine's CPU; temp: XLA's temporaries, MB of 2^20 bytes",
    )  # fmt: skip
