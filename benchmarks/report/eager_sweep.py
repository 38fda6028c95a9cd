"""Rows of unfused graphs as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds

_HEADINGS = (
    "model:", "batch", "optimizer:", "eager", "planned", "less %", "bound", "gap %", "order s",
    "error:",
)  # fmt: skip


def eager_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each row: what an eager framework reserves, and our arena."""
    return Table(
        _HEADINGS,
        [_line(row) for row in rows],
        "Predicted, in MB: what an eager framework reserves, and our arena for the same unfused "
        "graph.",
    )


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    key = tuple(str(row[k]) for k in ("model", "batch_size", "optimizer"))
    if row.get("error"):
        return (*key, *["-"] * 6, row["error"])
    before, planned = row["eager_reserved_bytes"], row["placed_bytes"]
    return (
        *key,
        megabytes(before),
        megabytes(planned),
        percent(1 - planned / before, 1),
        megabytes(row["bound_bytes"]),
        percent(row["lifetime_gap"]),
        seconds(row["order_seconds"]),
        "",
    )
