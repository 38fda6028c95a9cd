"""Orders unfused train steps by a solver alone, without the search's start and its bound.

What the OLLA paper's figures 9 and 10 are of: "minutes if not seconds", and within 1 % of the
optimum in ten minutes. Each program runs once, with the last of --limits; what its solver knew when
each of the others had passed is told beside it. A linear program of more than 8,000,000
coefficients is not built. With --stored a file of --out is printed, and nothing is run.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from benchmarks.growing_file import read_text
from benchmarks.papers.eager import ilp_alone
from benchmarks.report.ilp_alone import ilp_alone_table
from benchmarks.schedule import parse_cases
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError

_FORMS = ("running", "intervals")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list(
        "steps", "alexnet/1/adam/cpu,vgg11/1/adam/cpu,resnet18/1/adam/cpu",
        "model/batch_size/optimizer/target, several.", flag_values=values,
    )  # fmt: skip
    flags.DEFINE_list("limits", "60,300", "Seconds, shortest first.", flag_values=values)
    flags.DEFINE_list(
        "forms", list(_FORMS), "running (linear), intervals (CP-SAT's own).", flag_values=values
    )
    flags.DEFINE_list(
        "backends", ["cpsat"], "Solvers of the linear form: highs, cpsat, gurobi.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_string("stored", None, "A file of --out to print.", flag_values=values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Measures and prints, or prints what is stored."""
    if values.stored is not None:
        rows = ilp_alone.rows_from_json(read_text(values.stored))
        shared.print_table(values, ilp_alone_table(rows))
        return 0
    if unknown := set(values.forms) - set(_FORMS):
        raise InputError(f"--forms: {min(unknown)!r} is not one of {', '.join(_FORMS)}")
    limits = _seconds(values.limits)
    forms = {f: ["cpsat"] if f == "intervals" else values.backends for f in values.forms}
    cases = parse_cases(values.steps)
    files.check_writable(values.out)  # better now than after the measurements
    rows: list[ilp_alone.Row] = []
    with Progress() as progress:
        for case in cases:
            progress.stage(case.name)
            rows += ilp_alone.measure(case, forms, limits)
            if values.out is not None:
                text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
                files.write_text(values.out, text + "\n")
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
