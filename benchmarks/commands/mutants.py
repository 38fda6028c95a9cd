"""Puts faults into planned modules, compiles and runs each, and lets olla_xla's check judge it.

With --audit, XLA's own executables get the faults, and olla_xla.audit judges.

Exit code 1 if a mutant whose outputs differ from those of XLA's own executable passes, or if
the check rejects a module without a fault.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Sequence

from absl import flags

from benchmarks.driver import Flags, known
from benchmarks.growing_file import GrowingFile
from benchmarks.mutants import driver
from benchmarks.mutants.cases import AUDITED as AUDITED_CASES
from benchmarks.mutants.cases import CASES
from benchmarks.mutants.driver import UNMUTATED, Row
from benchmarks.mutants.kinds import AUDITED, KINDS
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.whole("count", 1000, "Mutants in all.", least=1)
    define.whole("seed", 0, "Equal seeds give equal mutants.")
    define.whole("workers", 1, "Processes at a time.", least=1)
    define.text("out", None, "File for a line of JSON a mutant.")
    define.switch("audit", False, "Whether olla_xla.audit judges, executables of plain jax.jit.")
    define.names("kinds", None, "Kinds of fault, several; all by default.")
    define.names("cases", None, "Steps, several; all by default.")


def run(values: flags.FlagValues) -> int:
    """Judges the mutants and prints the tables."""
    kinds = AUDITED if values.audit else KINDS
    kinds = known("kinds", values.kinds or list(kinds), kinds)
    cases = known("cases", values.cases or list(AUDITED_CASES if values.audit else CASES), CASES)
    file = GrowingFile(values.out)
    started = time.monotonic()
    with Progress() as progress:

        def say(row: driver.Row) -> None:
            file.add(json.dumps(dataclasses.asdict(row)))
            verdict = "caught" if row.caught else "passes"
            line = f"{row.case}, {row.kind} {row.number}: {row.outcome}, {verdict}"
            (progress.stage if row.is_wrong else progress)(line)

        rows = driver.run(
            cases,
            kinds,
            count=values.count,
            seed=values.seed,
            workers=values.workers,
            audit=values.audit,
            row=say,
        )
    seconds = time.monotonic() - started
    console = shared.console()
    kinds_table(rows).print(console)
    unmutated_table(rows).print(console)
    print(f"{len(rows):,} executables in {seconds:,.0f} s")
    for line in wrong_lines(rows):
        print(line, file=sys.stderr)
    return 1 if any(row.is_wrong for row in rows) else 0


def kinds_table(rows: Sequence[Row]) -> Table:
    """A line for each kind of fault, and one for all."""
    seeded = [row for row in rows if row.kind not in UNMUTATED]
    kinds = list(dict.fromkeys(row.kind for row in seeded))
    lines = [_cells(kind, [r for r in seeded if r.kind == kind]) for kind in sorted(kinds)]
    return Table(
        headings=(
            "fault:", "mutants", "refused", "aborted", "caught", "outputs differ", "caught",
            "missed", "outputs equal", "caught",
        ),
        rows=[*lines, _cells("all", seeded)],
        title="refused: by XLA, which makes no executable of it; aborted: XLA ends the process",
    )  # fmt: skip


def _cells(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    differ = [row for row in rows if row.differs]
    aborted = [row for row in rows if row.outcome == "aborted"]
    equal = [row for row in rows if row.outcome == "same"]
    numbers = (
        len(rows),
        sum(row.outcome == "refused" for row in rows),
        len(aborted),
        sum(row.caught for row in aborted),
        len(differ),
        sum(row.caught for row in differ),
        sum(not row.caught for row in differ),
        len(equal),
        sum(row.caught for row in equal),
    )
    return (name, *(f"{n:,}" for n in numbers))


def unmutated_table(rows: Sequence[Row]) -> Table:
    """Whether the referee accepts what has no fault."""
    cases = list(dict.fromkeys(row.case for row in rows))
    lines = []
    for kind in UNMUTATED:
        found = [row for row in rows if row.kind == kind]
        counts = (sum(row.caught for row in found), sum(row.differs for row in found))
        lines.append((kind, *map(str, (len(cases), *counts))))
    return Table(
        headings=("without a fault:", "modules", "objections", "outputs differ"), rows=lines
    )


def wrong_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each mutant that was missed and each false alarm."""
    lines = []
    for row in rows:
        if row.is_wrong and row.kind in UNMUTATED:
            says = row.error or row.planned or row.executable or "its outputs differ"
            lines.append(f"{row.case}, {row.kind} module without a fault: {says}")
        elif row.is_wrong:
            lines.append(f"{row.case}, {row.kind} {row.number}, missed: {row.description}")
    return lines
