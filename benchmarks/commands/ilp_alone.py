"""Orders unfused train steps by a solver alone, without the search's start and its bound.

What the OLLA paper's figures 9 and 10 are of: "minutes if not seconds", and within 1 % of the
optimum in ten minutes. Each program runs once, with the last of --limits; what its solver knew when
each of the others had passed is told beside it. A linear program of more than 8,000,000
coefficients is not built. With --stored a file of --out is printed, and nothing is run.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from benchmarks.driver import Column, Flags, count, known, table_of, write_json
from benchmarks.growing_file import read_text
from benchmarks.papers.eager import ilp_alone
from benchmarks.papers.eager.ilp_alone import Known, Row
from benchmarks.schedule import parse_cases
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent, seconds
from olla_xla.errors import InputError

_FORMS = ("running", "intervals")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names(
        "steps",
        "alexnet/1/adam/cpu,vgg11/1/adam/cpu,resnet18/1/adam/cpu",
        "model/batch_size/optimizer/target, several.",
    )
    define.names("limits", "60,300", "Seconds, shortest first.")
    define.names("forms", _FORMS, "running (linear), intervals (CP-SAT's own).")
    define.names("backends", ["cpsat"], "Solvers of the linear form: highs, cpsat, gurobi.")
    define.out()
    define.text("stored", None, "A file of --out to print.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Measures and prints, or prints what is stored."""
    if values.stored is not None:
        rows = ilp_alone.rows_from_json(read_text(values.stored))
        shared.print_table(values, ilp_alone_table(rows))
        return 0
    limits = _seconds(values.limits)
    forms = {
        form: ["cpsat"] if form == "intervals" else values.backends
        for form in known("forms", values.forms, _FORMS)
    }
    files.check_writable(values.out)  # better now than after the measurements
    rows: list[Row] = []
    with Progress() as progress:
        for case in parse_cases(values.steps):
            progress.stage(case.name)
            rows += ilp_alone.measure(case, forms, limits)
            write_json(values.out, rows)
    shared.print_table(values, ilp_alone_table(rows))
    return 0


def _seconds(texts: list[str]) -> list[float]:
    try:
        found = [float(text) for text in texts]
    except ValueError as error:
        raise InputError(f"--limits={','.join(texts)}: give seconds, as in 60,300") from error
    if not found or min(found) <= 0:
        raise InputError("--limits: give at least one, each above 0")
    return found


def ilp_alone_table(rows: Sequence[Row]) -> Table:
    """A line for each program: its gap to the least known peak, by limit."""
    limits = sorted({known.limit for row in rows for known in row.known})
    columns = (
        Column("step:", "step"),
        Column("form:", "form"),
        Column("backend:", "backend"),
        Column("operators", "operators", count),
        Column("columns", lambda row: row.variables or None, count),
        Column("rows", lambda row: row.rows or None, count),
        Column("program order", "program_bytes", megabytes),
        Column("least known", "least_bytes", megabytes),
        *(
            Column(f"after {limit:g} s", lambda row, limit=limit: _gap(row, limit))
            for limit in limits
        ),
        Column("within 1 % after s", "near_seconds", seconds),
        Column("status:", "status"),
    )
    title = "MB; after a limit: % above the least known + % that the solver's bound is below it"
    return table_of(rows, columns, title)


def _gap(row: Row, limit: float) -> str:
    known = next((k for k in row.known if k.limit == limit), None)
    if known is None:
        return "-"
    return "proven" if known.proven else f"{_above(row, known)} + {_below(row, known)} %"


def _above(row: Row, known: Known) -> str:
    return percent(None if known.bytes is None else known.bytes / row.least_bytes - 1)


def _below(row: Row, known: Known) -> str:
    return percent(1 - known.bound_bytes / row.least_bytes)
