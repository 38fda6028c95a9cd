"""Orders by a solver alone, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.eager.ilp_alone import Known, Row
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds


def ilp_alone_table(rows: Sequence[Row]) -> Table:
    """A line for each program: its gap to the least known peak, by limit."""
    limits = sorted({known.limit for row in rows for known in row.known})
    return Table(
        headings=(
            "step:", "form:", "backend:", "operators", "columns", "rows", "program order",
            "least known", *(f"after {limit:g} s" for limit in limits), "within 1 % after s",
            "status:",
        ),
        rows=[
            (
                row.step,
                row.form,
                row.backend,
                f"{row.operators:,}",
                f"{row.variables:,}" if row.variables else "-",
                f"{row.rows:,}" if row.rows else "-",
                megabytes(row.program_bytes),
                megabytes(row.least_bytes),
                *(_gap(row, limit) for limit in limits),
                seconds(row.near_seconds),
                row.status,
            )
            for row in rows
        ],
        title="MB; after a limit: % above the least known + % that the solver's bound is below it",
    )  # fmt: skip


def _gap(row: Row, limit: float) -> str:
    known = next((k for k in row.known if k.limit == limit), None)
    if known is None:
        return "-"
    return "proven" if known.proven else f"{_above(row, known)} + {_below(row, known)} %"


def _above(row: Row, known: Known) -> str:
    return percent(None if known.bytes is None else known.bytes / row.least_bytes - 1)


def _below(row: Row, known: Known) -> str:
    return percent(1 - known.bound_bytes / row.least_bytes)
