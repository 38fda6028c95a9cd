"""The difference in memory of two plans or analyses, as a line and a table."""

from __future__ import annotations

from olla_xla.analysis.difference import Difference, TensorChange
from olla_xla.cli.report.plans import short_operation
from olla_xla.cli.report.tables import Table, megabytes, percent


def difference_line(found: Difference) -> str:
    """One line: both totals in MB, and by how much the second is larger."""
    grown = f"{megabytes(found.bytes, 2)} MB, {percent(found.share)} %"
    sign = "+" if found.bytes > 0 else ""
    return (
        f"{found.before.name}: {megabytes(found.before.total_bytes, 2)} MB; "
        f"{found.after.name}: {megabytes(found.after.total_bytes, 2)} MB ({sign}{grown})"
    )


def difference_table(found: Difference, count: int) -> Table:
    """The `count` largest changes, one row for each kind of tensor; sizes in MB."""
    shown = found.changes[:count]
    what = "tensors" if found.before.of_plan else "tensors at the peak"
    title = f"{len(shown)} largest of {len(found.changes):,} differences, by kinds of {what}"
    rows = [
        (
            megabytes(c.bytes, 2),
            _amount(c.before),
            _amount(c.after),
            c.category,
            c.shape,
            _what(c),
        )
        for c in shown
    ]
    return Table(("MB more", "before", "after", "category:", "shape:", "tensor:"), rows, title)


def _what(change: TensorChange) -> str:
    return short_operation(change.what) if "jit(" in change.what else change.what


def _amount(amount: tuple[int, int]) -> str:
    count, size = amount
    return f"{count} x {megabytes(size / count, 2)}" if count else "-"
