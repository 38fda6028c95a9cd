"""Rows of a sweep as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds

__all__ = ["sweep_table"]

_HEADINGS = (
    "model, batch, target, optimizer, mode:", "before", "planned", "less %", "bound", "gap %",
    "loss %", "time +%", "order s", "error:",
)  # fmt: skip


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each row: XLA's total and ours."""
    return Table(
        _HEADINGS,
        [_line(row) for row in rows],
        "Totals in MB, assigned: XLA's and ours.",
    )


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("model", "batch_size", "target", "optimizer", "mode")
    key = (", ".join(str(row[name]) for name in names),)
    if row.get("error"):
        return (*key, *["-"] * 8, row["error"])
    before, planned = row["xla_bytes"], row["planned_bytes"]
    return (
        *key,
        megabytes(before),
        megabytes(planned),
        percent(1 - planned / before, 1),
        megabytes(row["bound_bytes"]),
        percent(row["lifetime_gap"]),
        percent(row.get("assignment_loss")),
        percent(row.get("added_time"), 1),
        seconds(row["order_seconds"]),
        "",
    )
