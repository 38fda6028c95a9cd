"""What memory is used for at the peak and in the bound, by category, as rows that add up."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.analysis.analysis import Analysis
from olla_xla.analysis.category import Category


def peak_rows(analysis: Analysis) -> list[tuple[str, Sequence[int]]]:
    """Rows (category, bytes at the peak of each order and in the bound); the last is their sum."""
    columns = [view.by_category() for view in analysis.views]
    bound, proof = analysis.bound.by_category(), analysis.bound
    columns.append(bound)
    rows: list[tuple[str, Sequence[int]]] = [
        (str(category), [column.get(category, 0) for column in columns])
        for category in Category
        if any(column.get(category, 0) for column in columns)
    ]
    none = [0] * len(analysis.views)
    if proof.taken_over_bytes:
        rows.append(("saved by in-place writes", [*none, -proof.taken_over_bytes]))
    if more := analysis.lower_bound_bytes - proof.bytes:
        rows.append(("also proven by the plan's search", [*none, more]))
    sums = [sum(column.values()) for column in columns[:-1]]
    return [*rows, ("sum", [*sums, analysis.lower_bound_bytes])]
