"""Rows of planned models as a table, with what holds for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds
from olla_xla.tools.table import Row

__all__ = ["matrix_summary", "matrix_table"]

_HEADINGS = (
    "model, batch, optimizer, target:",
    "XLA",
    "XLA mem.",
    "planned",
    "gain %",
    "bound",
    "gap %",
    "loss %",
    "err. XLA %",
    "err. ours %",
    "seconds",
)
_LEAST_GAIN = 0.0005
"""Share of XLA's total below which a gain is none to speak of: it rounds to 0.0 %."""


def matrix_table(rows: Sequence[Row]) -> Table:
    """A line for each row; totals in MB as XLA assigned them."""
    lines = []
    for row in rows:
        if row.error:
            lines.append((_name(row), "failed", *["-"] * (len(_HEADINGS) - 2)))
            continue
        lines.append(
            (
                _name(row),
                megabytes(row.xla_bytes),
                megabytes(row.memory_optimized_bytes),
                megabytes(row.planned_bytes),
                percent(row.gain, 1),
                megabytes(row.bound_bytes),
                percent(row.lifetime_gap),
                percent(row.assignment_loss),
                percent(row.xla_error),
                percent(row.planned_error),
                seconds(row.seconds),
            )
        )
    title = "Totals in MB, assigned by XLA; nothing was run."
    return Table(_HEADINGS, lines, title)


def matrix_summary(rows: Sequence[Row]) -> list[str]:
    """Lines on all rows: failures, prediction errors, rows above XLA, rows without a gain."""
    done = [row for row in rows if not row.error]
    lines = [f"{row.cell}: failed: {row.error}" for row in rows if row.error]
    if not done:
        return lines
    for label, errors in (
        ("XLA's order", [abs(row.xla_error or 0) for row in done]),
        ("the planned order", [abs(row.planned_error or 0) for row in done]),
    ):
        lines.append(f"Prediction error for {label}: at most {percent(max(errors))} %.")
    above = [str(row.cell) for row in done if (row.gain or 0) < 0]
    lines.append(f"Planned above XLA in {len(above)} of {len(done)} rows{_listed(above)}.")
    for row in done:
        if (row.gain or 0) < _LEAST_GAIN:
            proven = (row.xla_bytes or 0) <= (row.bound_bytes or 0) * 1.001
            why = "the bound proves it" if proven else f"gap {percent(row.lifetime_gap)} %"
            lines.append(f"{row.cell}: an order helps nothing ({why}).")
    return lines


def _name(row: Row) -> str:
    cell = row.cell
    return f"{cell.model}, {cell.batch_size}, {cell.optimizer}, {cell.target}"


def _listed(names: Sequence[str]) -> str:
    return f": {'; '.join(names)}" if names else ""
