"""The largest batches that fit, as a table."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent
from olla_xla.compile.max_batch import LargestBatch, MaxBatch

__all__ = ["batch_table", "batch_verdict"]

_NAMES = {"xla": "XLA alone", "planned": "planned", "recomputed": "with recomputation"}


def batch_table(found: MaxBatch, title: str) -> Table:
    """An answer a row: the batch, its total, and the total of the next larger one."""
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
        for way in _ways(found)
    ]
    headings = ("way:", "batch", "of XLA's", "MB", "added time", "next", "MB ", "of the next:")
    return Table(headings, rows, title)


def _how(way: LargestBatch) -> str:
    if way.reason:
        return "the way before: not planned"
    return "predicted, the least found" if way.next_is_predicted else "assigned"


def batch_verdict(found: MaxBatch) -> str:
    """What the figures are, and what the search took; first what could not be planned, and why."""
    refused = [f"{_NAMES[way.way]}: {way.reason}." for way in _ways(found) if way.reason]
    figures = (
        f"Totals of the batches are XLA's, assigned; nothing was run. {len(found.tried)} sizes "
        f"were compiled as far as the schedule, {found.seconds:,.0f} s in all."
    )
    return "\n".join([*refused, figures])


def _ways(found: MaxBatch) -> list[LargestBatch]:
    return [way for way in (found.xla, found.planned, found.recomputed) if way is not None]
