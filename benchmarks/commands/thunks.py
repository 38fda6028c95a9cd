"""What a GPU will run, thunk by thunk: does olla_xla's check accept it, and only if it is right.

Each step is compiled for an absent GPU with XLA's order and with a plan, and both are checked. Then
faults are put into the executables, as many as --mutants says. The exit code is 1 if the check
rejects an executable that XLA made, or accepts a fault, if a planned one takes more than 1 % longer
by prediction, or if more of its fusions read as invariant what they must not.
"""

from __future__ import annotations

import collections
import json
import random
import sys
from collections.abc import Iterator, Sequence

import jax
from absl import flags

from benchmarks.driver import Column, Flags, count, fixed, table_of, whole_numbers, write_json
from benchmarks.growing_file import earlier_rows
from benchmarks.thunks.faults import Fault, faults_table, in_turn
from benchmarks.thunks.mutants import KINDS, mutants
from benchmarks.thunks.rows import NotCompiledError, Row, is_worse, measured
from benchmarks.thunks.steps import steps
from benchmarks.thunks.subject import Subject
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.errors import InputError, OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names(
        "steps",
        ["mlp", "lenet", "lstm_scan", "fsdp scanned"],
        "Models, or model/batch_size/optimizer; steps of `sharded`; trainers with settings, such "
        "as maxtext:model_name=llama2-7b; programs:20, random ones; zoo, scans, sharded, schedule.",
    )
    define.text("target", "h100", "The GPU.")
    define.names("batch_sizes", ["1"], "Of the models.")
    define.whole("mutants", 40, "Faults, over all executables.", least=0)
    define.switch("dumps", False, "Whether the places are held to those that XLA dumps.")
    define.out()
    define.switch("resume", False, "Leave out steps whose rows are in --out, and go on.")
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
    chosen = steps(
        values.steps, whole_numbers("batch_sizes", values.batch_sizes), values.target, options.seed
    )
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
            write_json(values.out, {"rows": rows, "faults": []})
        progress.stage("mutants")
        found = faults(subjects or [], values.mutants, options.seed)
    write_json(values.out, {"rows": rows, "faults": found})
    for table in (thunks_table(rows), summary_table(rows)):
        shared.print_table(values, table)
    if found:
        shared.print_table(values, faults_table(found))
    wrong = failed or any(row.objection for row in rows) or any(not said for *_, said in found)
    return int(bool(wrong) or any(is_worse(*pair) for pair in in_pairs(rows)))


def _rows(text: str) -> list[Row]:
    """The rows of a file."""
    return [Row(**{**row, "unknown": tuple(row["unknown"])}) for row in json.loads(text)["rows"]]


def faults(subjects: list[Subject], count: int, seed: int) -> list[Fault]:
    """`count` faults, taken in turn from all kinds and all executables."""
    draw = random.Random(seed)
    sources = [_faults(s, kind, draw) for kind in KINDS for s in subjects]
    draw.shuffle(sources)
    return in_turn(sources, count)


def _faults(subject: Subject, kind: str, draw: random.Random) -> Iterator[Fault]:
    for made in mutants(subject, kind, draw):
        yield subject.name, kind, made.what, subject.verdict(made.executable)


_COLUMNS = (
    Column("step:", "case"),
    Column("order:", lambda row: row.way if row.planned or row.way == "XLA" else "no plan"),
    Column("total", "bytes", megabytes),
    Column("instructions", "instructions", count),
    Column("thunks", lambda row: sum(row.kinds.values()), count),
    Column("serialized", "serialized_bytes", megabytes),
    Column("compile s", "compile_seconds", fixed(1)),
    Column("check s", "seconds", fixed(2)),
    Column("check %", lambda row: percent(row.share, 1)),
    Column("µs", "issued_seconds", fixed(0, 1e6)),
    Column("chain µs", "chain_seconds", fixed(0, 1e6)),
    Column("invariant", lambda row: f"{row.wrong} of {row.marked}" if row.marked else None),
    Column("kinds:", lambda row: ", ".join(f"{kind} {n}" for kind, n in sorted(row.kinds.items()))),
    Column("verdict:", lambda row: row.objection or "accepted"),
)
_TITLE = (
    "what a GPU will run; MB of 2^20 bytes, CPU seconds; check: of bytes alone; µs: predicted, as "
    "issued, and the longest chain of thunks that share bytes; invariant: fusions that read as "
    "such what they must not"
)


def thunks_table(rows: Sequence[Row]) -> Table:
    """A line for each executable."""
    return table_of(rows, _COLUMNS, _TITLE)


def in_pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """XLA's own executable and the planned one of each step."""
    own = {row.case: row for row in rows if row.way == "XLA"}
    return [(own[row.case], row) for row in rows if row.way != "XLA"]


def summary_table(rows: Sequence[Row]) -> Table:
    """Figures over all executables, one line each."""
    pairs, dumped = in_pairs(rows), sum(row.placed > 0 for row in rows)
    lines = [
        ("executables", f"{len(rows):,}"),
        ("of steps that are planned", f"{sum(row.planned for row in rows):,}"),
        ("that the check rejects", f"{sum(bool(row.objection) for row in rows):,}"),
        ("kinds of thunks", ", ".join(f"{k} {n:,}" for k, n in sorted(_kinds(rows).items()))),
        ("kinds not known", ", ".join(sorted({k for row in rows for k in row.unknown})) or "none"),
        ("tensors as dumped", f"{sum(r.placed for r in rows):,} of {dumped:,} executables"),
        ("fusions marked, XLA's own order", f"{sum(own.marked for own, _ in pairs):,}"),
        ("of these with a wrong kernel", f"{sum(own.wrong for own, _ in pairs):,}"),
        ("fusions marked, planned", f"{sum(plan.marked for _, plan in pairs):,}"),
        ("of these with a wrong kernel", f"{sum(plan.wrong for _, plan in pairs):,}"),
        ("steps with more under the plan", f"{sum(p.wrong > o.wrong for o, p in pairs):,}"),
    ]
    if rows:
        most = max(rows, key=lambda row: row.share)
        total = sum(row.seconds for row in rows) / sum(row.compile_seconds for row in rows)
        lines += [
            ("check, fraction of all compiles", f"{total:.1%}"),
            ("check, largest fraction", f"{most.share:.1%}: {most.case}, {most.way}"),
        ]
    for name, field in (("run", "issued_seconds"), ("chain", "chain_seconds")):
        changes = [(getattr(p, field) / getattr(o, field) - 1, o.case) for o, p in pairs]
        if changes:
            change, case = max(changes)
            lines.append((f"{name} planned, longest against XLA's", f"{change:+.2%}: {case}"))
    return Table(headings=("all:", "together:"), rows=lines, title="all together")


def _kinds(rows: Sequence[Row]) -> collections.Counter[str]:
    kinds: collections.Counter[str] = collections.Counter()
    for row in rows:
        kinds.update(row.kinds)
    return kinds
