"""Tables of the baseline planners and of sublinear training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.papers.eager.estimate import Estimates
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent

if TYPE_CHECKING:
    from benchmarks.papers.eager.stored import ModelEstimates
    from benchmarks.papers.sublinear_training import MemoryRow, TimeRow


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


def meeting_table(rows: Sequence[ModelEstimates]) -> Table:
    """A line for each model, a column for each planner; totals in MB."""
    planners = list(dict.fromkeys(r.planner for row in rows for r in row.found.rows))
    lines = []
    for row in rows:
        totals = {r.planner: r for r in row.found.rows}
        cells = [megabytes(totals[p].total_bytes) if p in totals else "-" for p in planners]
        first = totals[planners[0]].reserved_bytes if planners[0] in totals else None
        lines.append(
            (row.model, f"{row.found.operators:,}", megabytes(first), cells[0], *cells[1:])
        )
    return Table(
        headings=("model:", "operators", f"{planners[0]}, reserved", *planners),
        rows=lines,
        title=f"{_about(rows)}; totals in MB of 2^20 bytes; unfused but for the last columns",
    )


def edges_table(rows: Sequence[ModelEstimates]) -> Table:
    """A line for each model, a column for each planner that adds dependencies to some."""
    planners = list(
        dict.fromkeys(
            r.planner for row in rows for r in row.found.rows if r.added_edges is not None
        )
    )
    lines = []
    for row in rows:
        added = {r.planner: r.added_edges for r in row.found.rows}
        cells = ("-" if added.get(p) is None else f"{added[p]:,}" for p in planners)
        lines.append((row.model, f"{row.found.operators:,}", *cells))
    return Table(
        headings=("model:", "operators", *planners),
        rows=lines,
        title=f"{_about(rows)}; dependencies that each plan adds to those of the data flow",
    )


def _about(rows: Sequence[ModelEstimates]) -> str:
    """What the rows have in common, or all of what they have."""
    parts = {
        f"batch {row.batch_size}, {row.optimizer}, {row.mode}"
        + (f", compiled for {row.target}" if row.target else "")
        for row in rows
    }
    return " and ".join(sorted(parts))


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    """Feature maps of each network in MB, and how much each way saves on the one before."""
    return Table(
        headings=(
            "network:", "size", "none", "in place", "sharing", "both", "cheap dropped",
            "sublinear", "exact budget", "recursive", "none / sharing", "sharing / least", "s",
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
                megabytes(row.recursive_bytes, 0),
                f"{row.none_bytes / row.sharing_bytes:.2f}",
                f"{row.sharing_bytes / row.least_bytes:.2f}",
                f"{row.seconds:.0f}",
            )
            for row in rows
        ],
        title="feature maps on the unfused graph, MB of 2^20 bytes",
    )  # fmt: skip


def time_table(rows: Sequence[TimeRow]) -> Table:
    """Step time, XLA's temporaries and all that a run takes in MB, how far the gradients differ."""
    return Table(
        headings=(
            "network:", "size", "plain s", "sublinear s", "ratio", "plain temp",
            "sublinear temp", "plain total", "sublinear total", "largest difference",
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
                megabytes(row.plain_total_bytes),
                megabytes(row.sublinear_total_bytes),
                f"{row.largest_difference:.1e}",
            )
            for row in rows
        ],
        title="gradient on this machine's CPU; temp: XLA's temporaries, MB of 2^20 bytes",
    )  # fmt: skip
