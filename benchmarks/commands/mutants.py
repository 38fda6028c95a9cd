"""Puts faults into planned modules, compiles and runs each, and lets olla_xla's check judge it.

Exit code 1 if a mutant whose outputs differ from those of XLA's own executable passes, or if
the check rejects a module without a fault.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time

from absl import flags

from benchmarks.growing_file import GrowingFile
from benchmarks.mutants import driver
from benchmarks.mutants.cases import CASES
from benchmarks.mutants.kinds import KINDS
from benchmarks.report import mutants as report
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_integer("count", 1000, "Mutants in all.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "Equal seeds give equal mutants.", flag_values=values)
    flags.DEFINE_integer("workers", 1, "Processes at a time.", lower_bound=1, flag_values=values)
    flags.DEFINE_string("out", None, "File for a line of JSON a mutant.", flag_values=values)
    flags.DEFINE_list("kinds", None, "Kinds of fault, several; all by default.", flag_values=values)
    flags.DEFINE_list("cases", None, "Steps, several; all by default.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Judges the mutants and prints the tables."""
    kinds = _known("kinds", values.kinds, tuple(KINDS))
    cases = _known("cases", values.cases, tuple(CASES))
    file = GrowingFile(values.out)
    started = time.monotonic()
    with Progress() as progress:

        def say(row: driver.Row) -> None:
            file.add(json.dumps(dataclasses.asdict(row)))
            verdict = "caught" if row.caught else "passes"
            line = f"{row.case}, {row.kind} {row.number}: {row.outcome}, {verdict}"
            (progress.stage if row.is_wrong else progress)(line)

        rows = driver.run(
            cases, kinds, count=values.count, seed=values.seed, workers=values.workers, row=say
        )
    seconds = time.monotonic() - started
    console = shared.console()
    report.kinds_table(rows).print(console)
    report.unmutated_table(rows).print(console)
    print(f"{len(rows):,} executables in {seconds:,.0f} s")
    for line in report.wrong_lines(rows):
        print(line, file=sys.stderr)
    return 1 if any(row.is_wrong for row in rows) else 0


def _known(flag: str, given: list[str] | None, all_names: tuple[str, ...]) -> tuple[str, ...]:
    for name in given or ():
        if name not in all_names:
            raise InputError(f"--{flag}: no {name!r}; known are {', '.join(all_names)}")
    return tuple(given or all_names)
