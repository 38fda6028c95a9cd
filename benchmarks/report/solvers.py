"""Tables of the benchmarks of scale and of the ILP."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.ilp import Agreement, Solve
from benchmarks.papers.ilp_steps import StepRow
from benchmarks.scale import Row as ScaleRow
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes, percent, seconds
from olla_xla.solvers.linear import Status


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
            "all s", "CPU s", "found", "bound", "gap %", "least known", "status:",
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
                seconds(r.cpu_seconds),
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


def programs_table(rows: Sequence[StepRow]) -> Table:
    """A line for each program of a train step, of rows stored; a column for each solver."""
    cells: dict[tuple[str, str, str], dict[str, StepRow]] = {}
    for row in rows:
        cells.setdefault((row.step, row.what, row.variant), {})[row.backend] = row
    backends = list(dict.fromkeys(row.backend for row in rows))
    lines = []
    for (step, what, variant), by in cells.items():
        built = max(by.values(), key=lambda row: row.variables)
        size = f"{built.variables:,}, {built.rows:,}" if built.variables else "-"
        found = [_progress(by[b]) if b in by else "" for b in backends]
        lines.append((step.split(":")[-1], what, variant, size, *found))
    limits = ", ".join(sorted({f"{row.limit:g}" for row in rows}))
    return Table(
        headings=("step:", "what:", "variant:", "columns, rows", *backends),
        rows=lines,
        title=f"seconds to a first point / to one within 1 % of the least known / to the proof, or "
        f"the gap left after {limits} s (found above the least known + bound below it)",
    )


def _progress(row: StepRow) -> str:
    """Seconds to a first point, to a near one, and to the proof or the gap instead."""
    if row.status not in (Status.OPTIMAL, Status.FEASIBLE, Status.UNKNOWN):
        return _short(row.status)
    if row.status == Status.OPTIMAL:
        end = f"{row.seconds:.1f}"
    else:
        above = percent(row.value_bytes / row.least_bytes - 1)
        below = percent(1 - row.bound_bytes / row.least_bytes)
        end = f"{above} + {below} %"
    return f"{seconds(row.first_seconds)} / {seconds(row.near_seconds)} / {end}"


def _short(status: str) -> str:
    """Why there is no result, in a word or two."""
    if "licen" in status:
        return "too large for its free licence"
    return status.split("(")[0].split(";")[0][:50]


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
