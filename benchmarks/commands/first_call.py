"""Times the first call of real train steps, from lower() to compiled, against jax.jit's.

Each turn is a fresh process. With --cached they find plans and executables of an earlier one.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Sequence

from absl import flags

from benchmarks import library_steps
from benchmarks.driver import Column, Flags, fixed, measured, table_of
from benchmarks.first_call import Row, measure
from benchmarks.schedule import CASES, parse_cases
from olla_xla.cli.commands import shared
from olla_xla.cli.report.tables import Table, megabytes, percent
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.cases("those of benchmarks schedule")
    define.switch(
        "libraries", False, "Small steps of other libraries instead; uv run --group libraries."
    )
    define.switch("dropout", False, "Steps with many dropout masks instead.")
    define.whole("turns", 3, "Processes for each of both.", least=1)
    define.real("max_overhead", None, "That of the plans.", least=0.0)
    define.switch("cached", False, "Find plans and executables on disk.")


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table; 1 if one fails."""
    if values.libraries and values.dropout:
        raise InputError("--libraries and --dropout each name other steps; give one of them")
    cases = CASES
    if values.libraries:
        cases = library_steps.CASES
    if values.dropout:
        # Flax and optax are what these steps are made of, not what the command needs.
        cases = importlib.import_module("benchmarks.dropout_steps").CASES
    if values.cases:
        cases = parse_cases(values.cases)
    rows, failed = measured(
        cases,
        lambda case, _: measure(case, values.turns, values.cached, values.max_overhead),
        name=lambda case: case.name,
        out=values.out,
    )
    if rows:
        first_call_table(rows).print(shared.console())
    return int(failed > 0)


def first_call_table(rows: Sequence[Row]) -> Table:
    """A line for each step, and the median of all ratios; sizes in MB."""
    columns = (
        Column("case:", "case"),
        Column("jit s", "jit_seconds", fixed(2)),
        Column("plan s", "plan_seconds", fixed(2)),
        Column("ratio", "ratio", fixed(2)),
        Column("search s", "search_seconds", fixed(2)),
        Column("XLA", "xla_bytes", megabytes),
        Column("planned", "planned_bytes", megabytes),
        Column("saved %", lambda row: percent(row.saving, 1)),
    )
    table = table_of(
        rows, columns, "from lower() to the compiled step; assigned, in MB of 2^20 bytes"
    )
    median = f"{statistics.median(row.ratio for row in rows):.2f}"
    return Table(
        table.headings, [*table.rows, ("median", "", "", median, "", "", "", "")], table.title
    )
