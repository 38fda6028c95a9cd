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
            f"{way.next_batch:,}" if way.next_batch else "-",
            megabytes(way.next_bytes) if way.next_batch else "-",
            _how(way),
        )
        for way in _ways(found)
    ]
    headings = ("way:", "batch", "of XLA's", "MB", "added time", "next", "MB ", "of the next:")
    return Table(headings, rows, title)


def _how(way: LargestBatch) -> str:
    if way.reason:
        return "the way before: not planned"
    if not way.next_batch:
        return "none found"
    return "predicted, the least found" if way.next_is_predicted else "assigned"


def batch_verdict(found: MaxBatch, compiles: int = 6, devices: int = 1) -> str:
    """What the figures are, and what the search took; first what could not be planned, and why.

    Args:
      found: the answers. compiles: that were allowed. devices: that share the batch.
    """
    lines = [f"{_NAMES[way.way]}: {way.reason}." for way in _ways(found) if way.reason]
    open_ways = [way for way in _ways(found) if not way.is_largest]
    lines += [
        f"{_NAMES[way.way]}: {_between(way, found.memory_bytes, devices)}." for way in open_ways
    ]
    if open_ways:
        start = max(open_ways[0].batch // devices, 1)
        lines.append(f"More compiles tell it: --start={start} --compiles={2 * compiles}.")
    lines.append(
        f"Totals of the batches are XLA's, assigned; nothing was run. {found.compiles} compiles, "
        f"{found.seconds:,.0f} s in all."
    )
    return "\n".join(lines)


def _between(way: LargestBatch, memory: int, devices: int) -> str:
    least = f"the largest batch is at least {way.batch:,}"
    if not way.next_batch:
        return f"{least}; none was found that does not fit"
    most = f"at most {way.next_batch - devices:,}"
    if not way.batch or way.reason:
        return f"{least} and {most}"
    rise = (way.next_bytes - way.bytes) / (way.next_batch - way.batch)
    about = way.batch + int((memory - way.bytes) / rise)
    return f"{least} and {most}; a line through the two says {about // devices * devices:,}"


def _ways(found: MaxBatch) -> list[LargestBatch]:
    return [way for way in (found.xla, found.planned, found.recomputed) if way is not None]
