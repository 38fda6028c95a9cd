"""Arenas of a planned module, a line for each way to place its tensors."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.place_ilp.arenas import PlacedBy
from olla_xla.cli.report.tables import Table


def places_table(rows: Sequence[PlacedBy]) -> Table:
    """A line for each way to an arena; bytes."""
    return Table(
        headings=("arena:", "bytes", "bound", "live", "status:", "seconds", "note:"),
        rows=[
            (
                r.way,
                f"{r.height:,}" if r.height else "-",
                f"{r.bound:,}",
                f"{r.live_bytes:,}",
                r.status,
                f"{r.seconds:.1f}",
                r.message,
            )
            for r in rows
        ],
        title="places in one arena, under the planned order; XLA places by its own rule",
    )
