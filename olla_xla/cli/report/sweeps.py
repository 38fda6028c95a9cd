"""Tables of steps in several cases: the rows of a sweep, and the ways to run one step."""

from collections.abc import Mapping, Sequence
from typing import Any

from olla_xla.cli.report.tables import Table, megabytes, more, percent, seconds
from olla_xla.tools.sweep.grid import KEY
from olla_xla.tools.variants import StepVariant

_HEADINGS = (
    "model, batch, target, optimizer, mode:", "XLA", "XLA mem.", "planned", "gain %", "bound",
    "gap %", "loss %", "err. XLA %", "err. ours %", "time +%", "order s", "error:",
)  # fmt: skip
_LEAST_GAIN = 0.0005
"""A gain below this fraction of XLA's total counts as none: it is printed as 0.0 %."""

Row = Mapping[str, Any]
"""Fields of `tools.sweep.grid.COLUMNS`: sizes in bytes, gaps and errors as fractions."""


def sweep_table(rows: Sequence[Row]) -> Table:
    """Returns a sweep's table, a row for each step: XLA's totals, those planned, in MB; errors."""
    title = "Memory of the steps in MB, as XLA assigned it; nothing was run."
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
    """Returns lines about a sweep's successful rows.
    They give the largest prediction errors, the rows where the planned total is above XLA's, and
    the rows where an order gains nothing.
    """
    done = [row for row in rows if not row.get("error")]
    if not done:
        return []
    lines = []
    for label, name in (("XLA's order", "xla_error"), ("the planned order", "planned_error")):
        most = max(abs(row[name]) for row in done)
        lines.append(f"The predicted memory of {label} is wrong by at most {percent(most)} %.")
    above = [_name(row) for row in done if _gain(row) < 0]
    listed = f": {'; '.join(above)}" if above else ""
    lines.append(
        f"The plan takes more memory than XLA in {len(above)} of {len(done)} rows{listed}."
    )
    for row in done:
        if _gain(row) < _LEAST_GAIN:
            proven = row["bound_bytes"] <= row["xla_bytes"] <= row["bound_bytes"] * 1.001
            why = "by the bound none exists" if proven else f"gap {percent(row['lifetime_gap'])} %"
            lines.append(f"{_name(row)}: no order found beats XLA's ({why}).")
    return lines


def _gain(row: Row) -> float:
    """The fraction of XLA's total that the plan saves; negative if it takes more."""
    return -more(row["planned_bytes"], row["xla_bytes"])


def _name(row: Row) -> str:
    return ", ".join(str(row[name]) for name in KEY)


_PARETO_HEADINGS = (
    "way:",
    "total",
    "less %",
    "predicted ms",
    "more %",
    "moved % more",
    "clones",
    "measured ms",
    "more %",
    "",
)


def pareto_table(rows: Sequence[StepVariant], title: str) -> Table:
    """Returns a table of the ways to run a step, each compared with the first in memory and time.
    Totals are XLA's, in MB; times are in milliseconds. A star marks the ways on the Pareto front:
    no other way is at most as large and at most as slow, and better in one of the two.
    """
    first = rows[0]
    lines = []
    for row in rows:
        beaten = any(
            (other.bytes, other.seconds) != (row.bytes, row.seconds)
            and other.bytes <= row.bytes
            and other.seconds <= row.seconds
            for other in rows
        )
        lines.append(
            (
                row.name,
                megabytes(row.bytes),
                percent(-more(row.bytes, first.bytes), 1),
                f"{1e3 * row.seconds:,.2f}",
                percent(more(row.seconds, first.seconds), 1),
                percent(more(row.moved, first.moved), 1),
                str(row.clones),
                *_measured(row.measured, first.measured),
                "" if beaten else "*",
            )
        )
    return Table(_PARETO_HEADINGS, lines, title)


def _measured(seconds: float | None, first: float | None) -> tuple[str, str]:
    if seconds is None or first is None:
        return "-", "-"
    return f"{1e3 * seconds:,.1f}", percent(seconds / first - 1, 1)
