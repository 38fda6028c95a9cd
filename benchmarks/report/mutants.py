"""Tables of mutants: by kind of fault, the outcomes of XLA, of runs and of the referee."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.mutants.driver import UNMUTATED, Row
from olla_xla.cli.report.tables import Table


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
