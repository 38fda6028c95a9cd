"""Sharded steps as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.sharded.job import Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent

_SAME = {True: "yes", False: "NO", None: "-"}


def sharded_table(rows: Sequence[Row]) -> Table:
    """A line for each step and target; sizes of one device in MB."""
    lines = [
        (
            row.target,
            row.step,
            megabytes(row.xla_bytes),
            megabytes(row.bytes),
            percent(1 - row.bytes / row.xla_bytes, 1),
            _SAME[row.same],
            str(row.collectives),
            str(row.moved),
            str(row.starts),
            f"{1e6 * row.hidden_seconds:.0f}",
            f"{1e6 * row.planned_hidden_seconds:.0f}",
            megabytes(row.least_overlap_bytes) if row.least_overlap_bytes else "-",
            f"{1e6 * row.least_overlap_seconds:.0f}" if row.least_overlap_bytes else "-",
            row.wrong or row.reason,
        )
        for row in rows
    ]
    return Table(
        headings=(
            "target:", "step:", "XLA", "planned", "saved %", "same bits", "collectives", "moved",
            "starts", "hidden µs", "planned µs", "hiding nothing", "for µs", "message:",
        ),
        rows=lines,
        title="eight devices; assigned, MB of 2^20 bytes a device; hidden: predicted, of work "
        "between starts and their dones; hiding nothing: predicted, if that were given up",
    )  # fmt: skip
