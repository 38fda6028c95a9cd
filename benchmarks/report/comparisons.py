"""Comparisons of a sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.figures.comparisons import Comparison
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import percent

_HEADINGS = (
    "what:",
    "target:",
    "batch:",
    "rows",
    "mean %",
    "aim %",
    "met:",
    "worst %",
    "at:",
    "larger",
)


def comparison_table(found: Sequence[Comparison]) -> Table:
    """One line for each comparison; the column `larger` counts rows where the plan takes more."""
    lines = []
    for c in found:
        name, worst = c.worst
        aim = "-" if c.aim is None else percent(c.aim, 1)
        met = {None: "-", True: "met", False: "missed"}[c.met]
        counts = (str(len(c.values)), percent(c.mean, 1), aim, met, percent(worst, 2), name)
        lines.append((c.what, c.target, c.batch_size, *counts, str(len(c.worse))))
    return Table(_HEADINGS, lines, "Means over the rows of a sweep; totals include arguments.")


def model_table(found: Sequence[Comparison]) -> Table:
    """A line for each model and batch size, a column for each comparison."""
    labels = list(dict.fromkeys(c.label for c in found))
    shares = {
        (c.label, name): value for c in found for name, value in zip(c.names, c.values, strict=True)
    }
    names = list(dict.fromkeys(name for c in found for name in c.names))
    lines = [(n, *(percent(shares.get((label, n)), 1) for label in labels)) for n in names]
    return Table(("model:", *labels), lines, "The same by model, %.")
