"""The largest batches that fit, as a table."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent
from olla_xla.compile.max_batch import LargestBatch, MaxBatch

__all__ = ["batch_table", "batch_verdict"]

_NAMES = {"xla": "XLA alone", "planned": "planned", "recomputed": "with recomputation"}


def batch_table(found: MaxBatch, title: str) -> Table:
    """An answer a row: the batch, its total, and the total of the next larger one."""
    ways = [way for way in (found.xla, found.planned, found.recomputed) if way is not None]
    rows = [
        (
            _NAMES[way.way],
            f"{way.batch:,}",
            f"{way.batch / found.xla.batch:.2f} x" if found.xla.batch else "-",
            megabytes(way.bytes) if way.batch else "-",
            f"{percent(way.overhead, 1)} %" if way.batch else "-",
            f"{way.next_batch:,}",
            megabytes(way.next_bytes),
            _how(way),
        )
        for way in ways
    ]
    headings = ("way:", "batch", "of XLA's", "MB", "added time", "next", "MB ", "of the next:")
    return Table(headings, rows, title)


def _how(way: LargestBatch) -> str:
    return "predicted, the least found" if way.next_is_predicted else "assigned"


def batch_verdict(found: MaxBatch) -> str:
    """One line: what the figures are, and what the search took."""
    return (
        f"Totals of the batches are XLA's, assigned; nothing was run. {len(found.tried)} sizes "
        f"were compiled as far as the schedule, {found.seconds:,.0f} s in all."
    )
