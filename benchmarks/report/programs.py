"""Counts of the outcomes of many random programs, by kind."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from benchmarks.random_programs.check import FAILURES
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import percent


@dataclasses.dataclass
class Tally:
    """Counts of one kind of programs.

    Attributes:
      programs: how many. outcomes: plans by kind of outcome. planned: plans whose order was
        another than XLA's. unstacked: plans that recompute scan residuals. savings: parts of jit's
        total that plans saved, one each.
    """

    programs: int = 0
    planned: int = 0
    unstacked: int = 0
    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    savings: list[float] = dataclasses.field(default_factory=list)

    @property
    def plans(self) -> int:
        """How many plans."""
        return self.outcomes.total()

    @property
    def failures(self) -> int:
        """How many plans had an outcome that is a fault."""
        return sum(self.outcomes[kind] for kind in FAILURES)

    def add(self, row: dict[str, Any]) -> None:
        """Counts one program's row (`search.run_share`)."""
        self.programs += 1
        for outcome in row["outcomes"]:
            self.outcomes[outcome["kind"]] += 1
            self.planned += outcome["planned"]
            self.unstacked += outcome.get("stacks", 0) > 0
            if outcome["kind"] == "identical" and outcome["xla_bytes"]:
                self.savings.append(1 - outcome["bytes"] / outcome["xla_bytes"])


_COLUMNS = (
    *("identical", "wrong", "refused", "larger", "failed", "crashed"),
    *("budget", "unsteady", "invalid"),
)


def tally_table(tallies: dict[str, Tally]) -> Table:
    """A line for each kind, and one for all."""
    total = Tally()
    for tally in tallies.values():
        total.programs += tally.programs
        total.planned += tally.planned
        total.unstacked += tally.unstacked
        total.outcomes += tally.outcomes
        total.savings += tally.savings
    lines = [*sorted(tallies.items()), ("all", total)]
    return Table(
        headings=("kind:", "programs", "plans", "planned", "loops", *_COLUMNS, "saved %"),
        rows=[
            (
                kind,
                *(f"{n:,}" for n in (tally.programs, tally.plans, tally.planned, tally.unstacked)),
                *(f"{tally.outcomes[column]:,}" for column in _COLUMNS),
                percent(sum(tally.savings) / len(tally.savings) if tally.savings else None, 1),
            )
            for kind, tally in lines
        ],
        title="plans of random programs, two steps each against jax.jit; planned: in another "
        "order; loops: recompute residuals",
    )
