"""A table of what integer programs proved about the orders of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import percent
from olla_xla.problem.plan_parts import Proof


def proofs_table(proofs: Sequence[Proof]) -> Table:
    """One row for each computation that was ordered; lifetime peaks in bytes."""
    return Table(
        headings=(
            "order of:", "backend:", "start", "cut", "peak", "bound", "gap %", "status:",
            "proven by:", "columns", "rows", "seconds", "it said:",
        ),
        rows=[
            (
                p.computation,
                p.backend,
                f"{p.start_bytes:,}",
                f"{p.cut_bytes:,}",
                f"{p.peak_bytes:,}",
                f"{p.bound_bytes:,}",
                percent(p.gap),
                p.status,
                p.proven_by or "-",
                f"{p.variables:,}",
                f"{p.rows:,}",
                f"{p.seconds:.1f}",
                p.message.split(" (")[0],
            )
            for p in proofs
        ],
        title="the integer program for the order: lifetime peaks in bytes",
    )  # fmt: skip
