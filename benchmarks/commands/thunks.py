"""What a GPU will run, thunk by thunk: does the referee accept it, and only where it is right.

Each step is compiled for an absent GPU with XLA's order and with a plan, and the referee asked
about both. Then faults are put into the executables, as many as --mutants says. The exit code is 1
if it objects to an executable that XLA made, or to no fault, if a planned one takes more than 1 %
longer by prediction, or if more of its fusions read as invariant what they must not.
"""

from __future__ import annotations

import dataclasses
import json
import random

from absl import flags

from benchmarks.report.thunks import faults_table, thunks_table
from benchmarks.thunks.mutants import KINDS, mutants
from benchmarks.thunks.rows import Row, is_worse, measured
from benchmarks.thunks.subject import Subject
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list(
        "steps", ["mlp", "lenet", "lstm_scan", "fsdp scanned"],
        "Models of the zoo, and steps of the benchmark `sharded`.", flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("target", "h100", "The GPU.", flag_values=values)
    flags.DEFINE_integer("batch_size", 1, "Of the models.", 1, flag_values=values)
    flags.DEFINE_integer("mutants", 40, "Faults, over all executables.", 0, flag_values=values)
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    shared.define_limits(values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Compiles, asks the referee, and prints the tables."""
    files.check_writable(values.out)
    if targets.TARGETS.get(values.target) != "cuda":
        raise InputError(f"--target={values.target} is no GPU")
    targets.prepare_environment(values.target)
    options = shared.options(values)
    rows: list[Row] = []
    subjects: list[Subject] = []
    with Progress() as progress:
        for name in values.steps:
            for row in measured(name, values.batch_size, values.target, options, subjects):
                rows.append(row)
                progress(f"{name}, {row.way}: {row.objection or 'accepted'}, {row.share:.1%}")
                _write(values, rows, [])
        progress.stage("mutants")
        found = faults(subjects, values.mutants, values.seed or 0)
    _write(values, rows, found)
    shared.print_table(values, thunks_table(rows))
    shared.print_table(values, faults_table(found))
    wrong = any(row.objection for row in rows) or any(not said for *_, said in found)
    return int(wrong or any(is_worse(*pair) for pair in zip(rows[::2], rows[1::2], strict=True)))


Fault = tuple[str, str, str, str]
"""The executable, the kind of fault, what was done, and what the referee says."""


def faults(subjects: list[Subject], count: int, seed: int) -> list[Fault]:
    """So many faults in executables, kinds and executables by turns."""
    draw = random.Random(seed)
    sources = [(s, kind, mutants(s, kind, draw)) for kind in KINDS for s in subjects]
    draw.shuffle(sources)
    found: list[Fault] = []
    while sources and len(found) < count:
        left = []
        for subject, kind, source in sources:
            made = next(source, None)
            if made is None or len(found) >= count:
                continue
            found.append((subject.name, kind, made.what, subject.verdict(made.executable)))
            left.append((subject, kind, source))
        sources = left
    return found


def _write(values: flags.FlagValues, rows: list[Row], found: list[Fault]) -> None:
    if values.out is not None:
        text = json.dumps(
            {"rows": [dataclasses.asdict(r) for r in rows], "faults": found}, indent=1
        )
        files.write_text(values.out, text + "\n")
