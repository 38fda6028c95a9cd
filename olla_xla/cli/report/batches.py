"""The largest batches that fit, as a table."""

from __future__ import annotations

from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.tools.max_batch import LargestBatch, MaxBatch

_NAMES = {"xla": "XLA alone", "planned": "planned", "recomputed": "with recomputation"}


def batch_table(found: MaxBatch, title: str) -> Table:
    """The table of `max_batch`: for each way to run the model, the largest batch and its total.

    Totals are in MB.
    """
    rows = [
        (
            _NAMES[way.way],
            f"{way.batch:,}",
            f"{way.batch / found.xla.batch:.2f} x" if found.xla.batch else "-",
            megabytes(way.bytes) if way.batch else "-",
            f"{percent(way.overhead, 1)} %" if way.batch else "-",
            f"{way.next_batch:,}" if way.next_batch else "-",
            _beside(way.next_bytes, found.memory_bytes) if way.next_batch else "-",
            _how(way),
        )
        for way in _ways(found)
    ]
    headings = ("way:", "batch", "of XLA's", "MB", "added time", "next", "MB ", "of the next:")
    return Table(headings, rows, title)


def _beside(size: int, memory: int) -> str:
    """A size in MB, with enough decimals (up to 6) to differ from the printed memory."""
    digits = next((d for d in range(1, 6) if megabytes(size, d) != megabytes(memory, d)), 6)
    return megabytes(size, digits)


def _how(way: LargestBatch) -> str:
    if way.reason:
        return "as the way before"
    if not way.next_batch:
        return "not compiled"
    return "predicted, the least found" if way.next_is_predicted else "assigned"


def batch_verdict(found: MaxBatch, compiles: int = 6, devices: int = 1) -> str:
    """Lines below that table: what could not be planned and why, open ranges, cost of the search.

    Args:
      found: the answers.
      compiles: how many compiles the search was allowed.
      devices: how many devices share the batch.
    """
    lines = [f"{_NAMES[way.way]}: {way.reason}." for way in _ways(found) if way.reason]
    open_ways = [way for way in _ways(found) if not way.is_largest]
    lines += [f"{_NAMES[way.way]}: {_between(way, devices)}." for way in open_ways]
    if open_ways:
        start = max(open_ways[0].batch // devices, 1)
        lines.append(f"More compiles narrow this: --start={start} --compiles={2 * compiles}.")
    refusals = f" and {found.refusals} that XLA refused" if found.refusals else ""
    lines.append(
        f"Totals of the batches are XLA's, assigned; nothing was run. {found.compiles} compiles"
        f"{refusals}, {found.seconds:,.0f} s in all."
    )
    return "\n".join(lines)


def _between(way: LargestBatch, devices: int) -> str:
    if not way.next_batch:
        if way.expected <= way.batch:
            return f"{way.batch:,} fits; by a line through the totals no more does"
        return f"at least {way.batch:,}; a line through the totals says {way.expected:,}"
    most = f"between {way.batch:,} and {way.next_batch - devices:,}"
    return most if way.reason else f"{most}; a line through the totals says {way.expected:,}"


def _ways(found: MaxBatch) -> list[LargestBatch]:
    return [way for way in (found.xla, found.planned, found.recomputed) if way is not None]
