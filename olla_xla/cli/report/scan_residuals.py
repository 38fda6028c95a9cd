"""The scan residuals that loops keep or recompute, as `olla_xla plan` prints them."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.cli.report.peak import short_location, short_operation
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes
from olla_xla.tools.residual_rows import ResidualRow


def stacks_table(rows: Sequence[ResidualRow], count: int, least: int = 0) -> Table:
    """The largest scan residuals, each kept or recomputed.

    Args:
      rows: one a residual, largest first; not empty.
      count: how many rows to list.
      least: bytes that every choice within the allowed time keeps; 0 if that is not known.
    """
    kept = sum(row.bytes * row.slices // row.iterations for row in rows)
    loops = len({row.loop for row in rows})
    title = (
        f"{min(count, len(rows))} largest of {len(rows)} scan residuals of {loops} "
        f"{'loop' if loops == 1 else 'loops'}: {megabytes(kept)} MB of "
        f"{megabytes(sum(row.bytes for row in rows))} are kept"
    )
    if least:
        title += f"; in the time allowed no choice keeps less than {megabytes(least)} MB"
    cells = [
        (
            megabytes(row.bytes),
            f"{row.iterations:,}",
            _fate(row),
            short_location(row.location) if row.location else short_operation(row.op_name),
        )
        for row in rows[:count]
    ]
    return Table(("MB", "iterations", "kept:", "what:"), cells, title)


def _fate(row: ResidualRow) -> str:
    if row.slices == row.iterations:
        return "all, new" if row.new else "all"
    return f"{row.slices} at a time" if row.slices else "computed again"
