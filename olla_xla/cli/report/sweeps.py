"""The rows of a sweep as a table, and a summary of them in lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, more, percent, seconds
from olla_xla.tools.sweep.grid import KEY

_HEADINGS = (
    "model, batch, target, optimizer, mode:", "XLA", "XLA mem.", "planned", "gain %", "bound",
    "gap %", "loss %", "err. XLA %", "err. ours %", "time +%", "order s", "error:",
)  # fmt: skip
_LEAST_GAIN = 0.0005
"""A gain below this fraction of XLA's total counts as none: it is printed as 0.0 %."""

Row = Mapping[str, Any]
"""Fields of `tools.sweep.grid.COLUMNS`: sizes in bytes, gaps and errors as fractions."""


def sweep_table(rows: Sequence[Row]) -> Table:
    """One line a row: XLA's total, its memory-minimising scheduler's (CPU), and ours, in MB."""
    title = "Totals in MB, assigned by XLA; nothing was run."
    return Table(_HEADINGS, [_line(row) for row in rows], title)


def _line(row: Row) -> tuple[str, ...]:
    if row.get("error"):
        return (_name(row), *["-"] * (len(_HEADINGS) - 2), row["error"])
    return (
        _name(row),
        megabytes(row["xla_bytes"]),
        megabytes(row["memory_optimized_bytes"]),
        megabytes(row["planned_bytes"]),
        percent(_gain(row), 1),
        megabytes(row["bound_bytes"]),
        percent(row["lifetime_gap"]),
        percent(row.get("assignment_loss")),
        percent(row["xla_error"]),
        percent(row["planned_error"]),
        percent(row.get("added_time"), 1),
        seconds(row["order_seconds"]),
        "",
    )


def sweep_summary(rows: Sequence[Row]) -> list[str]:
    """Lines about the rows that did not fail.

    They give the largest prediction errors, the rows where the planned total is above XLA's, and
    the rows where an order gains nothing.
    """
    done = [row for row in rows if not row.get("error")]
    if not done:
        return []
    lines = []
    for label, name in (("XLA's order", "xla_error"), ("the planned order", "planned_error")):
        most = max(abs(row[name]) for row in done)
        lines.append(f"Prediction error for {label}: at most {percent(most)} %.")
    above = [_name(row) for row in done if _gain(row) < 0]
    listed = f": {'; '.join(above)}" if above else ""
    lines.append(f"Planned above XLA in {len(above)} of {len(done)} rows{listed}.")
    for row in done:
        if _gain(row) < _LEAST_GAIN:
            proven = row["bound_bytes"] <= row["xla_bytes"] <= row["bound_bytes"] * 1.001
            why = "the bound proves it" if proven else f"gap {percent(row['lifetime_gap'])} %"
            lines.append(f"{_name(row)}: no better order was found ({why}).")
    return lines


def _gain(row: Row) -> float:
    """The fraction of XLA's total that the plan saves; negative if it takes more."""
    return -more(row["planned_bytes"], row["xla_bytes"])


def _name(row: Row) -> str:
    return ", ".join(str(row[name]) for name in KEY)
