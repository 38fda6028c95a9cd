"""Executables of a GPU, and the faults put into them, as tables."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from benchmarks.thunks.rows import Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent

__all__ = ["faults_table", "thunks_table"]


def thunks_table(rows: Sequence[Row]) -> Table:
    """A line for each executable."""
    lines = [
        (
            row.case,
            row.way if row.planned or row.way == "XLA" else "no plan",
            megabytes(row.bytes),
            f"{row.instructions:,}",
            f"{sum(row.kinds.values()):,}",
            megabytes(row.serialized_bytes),
            f"{row.compile_seconds:.1f}",
            f"{row.seconds:.2f}",
            percent(row.share, 1),
            f"{1e6 * row.issued_seconds:,.0f}",
            f"{1e6 * row.chain_seconds:,.0f}",
            f"{row.wrong} of {row.marked}" if row.marked else "-",
            ", ".join(f"{kind} {n}" for kind, n in sorted(row.kinds.items())),
            row.objection or "accepted",
        )
        for row in rows
    ]
    return Table(
        headings=(
            "step:", "order:", "total", "instructions", "thunks", "serialized", "compile s",
            "referee s", "part %", "µs", "chain µs", "invariant", "kinds:", "verdict:",
        ),
        rows=lines,
        title="what a GPU will run; MB of 2^20 bytes, CPU seconds; referee: for bytes alone; "
        "µs: predicted, as issued, and the longest chain of thunks that share bytes; invariant: "
        "fusions that read as such what they must not",
    )  # fmt: skip


def faults_table(found: Sequence[tuple[str, str, str, str]]) -> Table:
    """A line for each kind of fault, and one for each that was missed."""
    made = collections.Counter(kind for _, kind, _, _ in found)
    caught = collections.Counter(kind for _, kind, _, said in found if said)
    lines = [(kind, str(n), str(caught[kind]), "") for kind, n in sorted(made.items())]
    lines += [(kind, "1", "0", f"{name}: {what}") for name, kind, what, said in found if not said]
    return Table(headings=("fault:", "made", "caught", "missed:"), rows=lines, title="faults")
