"""What a GPU will run, thunk by thunk: does olla_xla's check accept it, and only if it is right.

Each step is compiled for an absent GPU with XLA's order and with a plan, and both are checked. Then
faults are put into the executables, as many as --mutants says. The exit code is 1 if the check
rejects an executable that XLA made, or accepts a fault, if a planned one takes more than 1 % longer
by prediction, or if more of its fusions read as invariant what they must not.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys

import jax
from absl import flags

from benchmarks.growing_file import earlier_rows
from benchmarks.report.thunks import faults_table, in_pairs, summary_table, thunks_table
from benchmarks.thunks.mutants import KINDS, mutants
from benchmarks.thunks.rows import NotCompiledError, Row, is_worse, measured
from benchmarks.thunks.steps import steps
from benchmarks.thunks.subject import Subject
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError, OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list(
        "steps", ["mlp", "lenet", "lstm_scan", "fsdp scanned"],
        "Models, or model/batch_size/optimizer; steps of `sharded`; trainers with settings, such "
        "as maxtext:model_name=llama2-7b; programs:20, random ones; zoo, scans, sharded, schedule.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("target", "h100", "The GPU.", flag_values=values)
    flags.DEFINE_list("batch_sizes", ["1"], "Of the models.", flag_values=values)
    flags.DEFINE_integer("mutants", 40, "Faults, over all executables.", 0, flag_values=values)
    flags.DEFINE_bool(
        "dumps", False, "Whether the places are held to those that XLA dumps.", flag_values=values
    )
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_bool(
        "resume", False, "Leave out steps whose rows are in --out, and go on.", flag_values=values
    )
    shared.define_limits(values)
    values.set_default("time_limit", None)  # as the defaults have it
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Compiles, asks the referee, and prints the tables."""
    files.check_writable(values.out)
    if targets.TARGETS.get(values.target) != "cuda":
        raise InputError(f"--target={values.target} is not a GPU")
    targets.prepare_environment(values.target)
    options = shared.options(values)
    chosen = steps(values.steps, _batch_sizes(values), values.target, options.seed)
    rows = earlier_rows(values.out, _rows) if values.resume else []
    known = {row.case for row in rows}
    subjects: list[Subject] | None = [] if values.mutants else None
    failed = 0
    with Progress() as progress:
        for step in chosen:
            if step.name in known:
                continue
            progress.stage(step.name)
            try:
                pair = measured(step, values.target, options, subjects, dumps=values.dumps)
            except InputError:
                raise
            except OllaError as error:
                failed += not isinstance(error, NotCompiledError)
                print(f"{step.name}: {error}", file=sys.stderr)
                continue
            finally:
                jax.clear_caches()  # executables pile up
            rows += pair
            for row in pair:
                progress(f"{row.case}, {row.way}: {row.objection or 'accepted'}, {row.share:.1%}")
            _write(values, rows, [])
        progress.stage("mutants")
        found = faults(subjects or [], values.mutants, options.seed)
    _write(values, rows, found)
    for table in (thunks_table(rows), summary_table(rows)):
        shared.print_table(values, table)
    if found:
        shared.print_table(values, faults_table(found))
    wrong = failed or any(row.objection for row in rows) or any(not said for *_, said in found)
    return int(bool(wrong) or any(is_worse(*pair) for pair in in_pairs(rows)))


def _batch_sizes(values: flags.FlagValues) -> list[int]:
    if not all(text.isdigit() and int(text) for text in values.batch_sizes):
        raise InputError(f"--batch_sizes={','.join(values.batch_sizes)} must be positive numbers")
    return [int(text) for text in values.batch_sizes]


def _rows(text: str) -> list[Row]:
    """The rows of a file."""
    return [Row(**{**row, "unknown": tuple(row["unknown"])}) for row in json.loads(text)["rows"]]


Fault = tuple[str, str, str, str]
"""The executable, the kind of fault, what was done, and what the referee says."""


def faults(subjects: list[Subject], count: int, seed: int) -> list[Fault]:
    """`count` faults, taken in turn from all kinds and all executables."""
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
