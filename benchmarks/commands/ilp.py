"""Measures the paper's integer programs and our forms of them, with each solver.

Prints size and time with each equation left out, orders and places of small train steps by the
paper's plain form, by ours, and with each switch alone, and how many random graphs agree with
trying every order. Exit code 1 if one does not agree. Rows of train steps that the file of --out
has already, with the same limit, are not measured again. With --stored nothing is measured: a line
is printed for each program in files that --out wrote, with a column for each solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags

from benchmarks.driver import Column, Flags, count, fixed, known, table_of, write_json
from benchmarks.growing_file import read_text
from benchmarks.papers import ilp as bench
from benchmarks.papers import ilp_steps
from benchmarks.papers.ilp_steps import StepRow
from benchmarks.place import planned_step
from benchmarks.schedule import Case, parse_cases
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, percent, seconds
from olla_xla.problem.options import PlanOptions
from olla_xla.solvers.linear import SolverLimits, Status

_PARTS = ("switches", "orders", "places", "random")

_SOLVES = (
    Column("graph:", "graph"),
    Column("form:", "form"),
    Column("backend:", "backend"),
    Column("without:", "without"),
    Column("columns", "variables", count),
    Column("rows", "rows", count),
    Column("nonzeros", "nonzeros", count),
    Column("seconds", "seconds", fixed(2)),
    Column("peak", "peak_bytes", count),
    Column("bound", "bound_bytes", count),
    Column("status:", lambda row: row.status.split("(")[0][:40]),
)
_STEPS = (
    Column("step:", lambda row: row.step.split(":")[-1]),
    Column("what:", "what"),
    Column("variant:", "variant"),
    Column("backend:", "backend"),
    Column("columns", "variables", count),
    Column("rows", "rows", count),
    Column("first s", "first_seconds", seconds),
    Column("1 % s", "near_seconds", seconds),
    Column("all s", "seconds", seconds),
    Column("CPU s", "cpu_seconds", seconds),
    Column("found", "value_bytes", count),
    Column("bound", "bound_bytes", count),
    Column(
        "gap %",
        lambda row: row.value_bytes / row.bound_bytes - 1 if row.bound_bytes > 0 else None,
        percent,
    ),
    Column("least known", "least_bytes", count),
    Column("status:", lambda row: row.status.split(" (")[0][:40]),
)
_AGREEMENT = (
    Column("form:", "form"),
    Column("backend:", "backend"),
    Column("graphs", "graphs", count),
    Column("agree", "agreed", count),
    Column("seconds", "seconds", fixed(1)),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.whole("graphs", 2000, "Random graphs to compare.", least=0)
    define.names("steps", ilp_steps.STEPS, "model/batch_size/optimizer/target, several.")
    define.names("parts", _PARTS, "What to measure of these.")
    define.names("backends", ["highs", "cpsat", "gurobi"], "Solvers to try.")
    define.real("time_limit", 60.0, "Seconds for each model of a train step.", least=0.0)
    define.names("stored", None, "JSON files that --out wrote, to be printed.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Measures and prints everything, or prints what is stored."""
    if values.stored is not None:
        texts = [read_text(path) for path in values.stored]
        rows = [row for text in texts for row in ilp_steps.rows_from_json(text)]
        shared.print_table(values, programs_table(rows))
        return 0
    files.check_writable(values.out)
    parts = known("parts", values.parts, _PARTS)
    cases = parse_cases(values.steps) if {"orders", "places"} & set(parts) else []
    if any(case.target != "cpu" for case in cases):
        targets.prepare_environment("h100")  # both targets, in one process
    earlier = _earlier(values.out)
    found: dict[str, list[object]] = {"solves": [], "agreement": [], "steps": [*earlier]}
    measured, agreements = [], []
    with Progress() as progress:
        if "switches" in parts:
            progress.stage("equation switches on random graphs")
            limits = SolverLimits(time_limit=values.time_limit)
            found["solves"] += bench.switches(None, limits, values.backends)
        for case in cases:
            for row in _rows(case, values, earlier, progress):
                measured.append(row)
                found["steps"].append(row)
                progress(f"{case.name} {row.what}, {row.variant}, {row.backend}: {row.status}")
                write_json(values.out, found)
        if "random" in parts and values.graphs:
            progress.stage("random graphs")
            agreements = bench.agreement(values.graphs, values.backends, progress)
            found["agreement"] += agreements
    steps = "seconds to a first solution, to one within 1 % of the least known, and to the end"
    for rows, columns, title in (
        (found["solves"], _SOLVES, "plain counts what the paper counts; sizes in bytes"),
        (measured, _STEPS, steps),
        (agreements, _AGREEMENT, "optima of random graphs against trying every order"),
    ):
        if rows:
            table_of(rows, columns, title).print(shared.console())
    write_json(values.out, found)
    return 0 if not agreements or bench.all_agree(agreements) else 1


def _rows(
    case: Case, values: flags.FlagValues, earlier: Sequence[StepRow], progress: Progress
) -> Iterator[StepRow]:
    """The rows of a train step that are not among those of an earlier run."""
    done = {r.key for r in earlier if (r.step, r.limit) == (case.name, values.time_limit)}
    if done.issuperset(ilp_steps.keys(values.backends, values.parts)):
        return
    progress.stage(f"train step {case.name}")
    step = planned_step(case, PlanOptions(time_limit=5.0))
    for part, rows in (("orders", ilp_steps.orders), ("places", ilp_steps.places)):
        if part in values.parts:
            yield from rows(step, values.backends, values.time_limit, done)


def _earlier(path: str | None) -> list[StepRow]:
    """The rows of train steps that a file has."""
    if path is None or not Path(path).exists():
        return []
    return ilp_steps.rows_from_json(read_text(path))


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
