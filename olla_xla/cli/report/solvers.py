"""Tables of the benchmarks of scale and of the ILP."""

from __future__ import annotations

from collections.abc import Sequence

from olla_xla.bench.ilp import Agreement, Solve
from olla_xla.bench.ilp_steps import StepRow
from olla_xla.bench.scale import Row as ScaleRow
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds

__all__ = ["agreement_table", "scale_table", "solve_table", "steps_table"]


def scale_table(rows: Sequence[ScaleRow]) -> Table:
    """A line for each case; sizes in MB."""
    return Table(
        headings=(
            "case:", "operators", "seconds", "CPU s", "resident", "own peak", "peak", "bound",
            "gap %", "own total", "total", "stopped by:",
        ),
        rows=[
            (
                row.case,
                f"{row.operators:,}",
                f"{row.seconds:.1f}",
                f"{row.cpu_seconds:.1f}",
                megabytes(row.resident_bytes),
                megabytes(row.xla_peak_bytes),
                megabytes(row.peak_bytes),
                megabytes(row.bound_bytes),
                percent(row.gap, 3),
                megabytes(row.xla_bytes),
                megabytes(row.planned_bytes),
                row.stopped_by,
            )
            for row in rows
        ],
        title="own: of the module's own order; sizes in MB of 2^20 bytes",
    )  # fmt: skip


def solve_table(solves: Sequence[Solve]) -> Table:
    """A line for each model solved; sizes in bytes."""
    return Table(
        headings=(
            "graph:", "form:", "backend:", "without:", "columns", "rows", "nonzeros", "seconds",
            "peak", "bound", "status:",
        ),
        rows=[
            (
                s.graph,
                s.form,
                s.backend,
                s.without,
                f"{s.variables:,}",
                f"{s.rows:,}",
                f"{s.nonzeros:,}",
                f"{s.seconds:.2f}",
                f"{s.peak_bytes:,}",
                f"{s.bound_bytes:,}",
                s.status.split("(")[0][:40],
            )
            for s in solves
        ],
        title="plain counts what the paper counts; sizes in bytes",
    )  # fmt: skip


def steps_table(rows: Sequence[StepRow]) -> Table:
    """A line for each program of a train step; sizes in bytes."""
    return Table(
        headings=(
            "step:", "what:", "variant:", "backend:", "columns", "rows", "first s", "1 % s",
            "all s", "found", "bound", "gap %", "least known", "status:",
        ),
        rows=[
            (
                r.step.split(":")[-1],
                r.what,
                r.variant,
                r.backend,
                f"{r.variables:,}",
                f"{r.rows:,}",
                seconds(r.first_seconds),
                seconds(r.near_seconds),
                seconds(r.seconds),
                f"{r.value_bytes:,}",
                f"{r.bound_bytes:,}",
                percent(r.value_bytes / r.bound_bytes - 1 if r.bound_bytes > 0 else None),
                f"{r.least_bytes:,}",
                r.status.split(" (")[0][:40],
            )
            for r in rows
        ],
        title="seconds to a first solution, to one within 1 % of the least known, and to the end",
    )  # fmt: skip


def agreement_table(agreements: Sequence[Agreement]) -> Table:
    """A line for each form and backend."""
    return Table(
        headings=("form:", "backend:", "graphs", "agree", "seconds"),
        rows=[
            (a.form, a.backend, f"{a.graphs:,}", f"{a.agreed:,}", f"{a.seconds:.1f}")
            for a in agreements
        ],
        title="optima of random graphs against trying every order",
    )
