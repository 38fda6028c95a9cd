"""Comparisons of a sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.comparisons import Comparison
from olla_xla.report.tables import Table
from olla_xla.report.units import percent

__all__ = ["comparison_table", "model_table"]

_HEADINGS = ("what:", "target:", "batch:", "rows", "mean %", "aim %", "least %", "at:", "larger")


def comparison_table(found: Sequence[Comparison]) -> Table:
    """A line for each comparison; `larger` counts the rows where the plan takes more."""
    lines = []
    for c in found:
        name, least = c.worst
        aim = "-" if c.aim is None else percent(c.aim, 1)
        counts = (str(len(c.values)), percent(c.mean, 1), aim, percent(least, 2), name)
        lines.append((c.what, c.target, c.batch_size, *counts, str(len(c.worse))))
    return Table(_HEADINGS, lines, "Means over the rows of a sweep; totals include arguments.")


def model_table(found: Sequence[Comparison]) -> Table:
    """Per model: a line for each row of a comparison over all batch sizes, a column for each."""
    columns = [c for c in found if c.batch_size == "all" and c.target != "any"]
    names = list(dict.fromkeys(name for c in columns for name in c.names))
    by_name = [dict(zip(c.names, c.values, strict=True)) for c in columns]
    lines = [
        (name, *("-" if name not in of else percent(of[name], 1) for of in by_name))
        for name in names
    ]
    return Table(("model:", *(f"{c.what}, {c.target}" for c in columns)), lines)
