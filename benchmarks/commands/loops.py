"""What a scan keeps for its gradient: every policy of jax.checkpoint on its body, and our plans.

Each policy is put around the body of every scan of the step. Beside it stands our plan of the step
without any, which may add as much predicted time as the policy does; then plans within each of
--overheads, and with --spill the step spilled to host memory, and a plan of that. Totals are XLA's
of the compiled step, of the device and of the host; times are predicted as by olla_xla pareto, and
on CPU measured too (in the file of --out).
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from benchmarks import loops as bench
from benchmarks.driver import Column, Flags, fixed, known, measured, table_of, write_json
from benchmarks.loops import LoopsRow
from benchmarks.schedule import Case, parse_cases
from olla_xla import targets
from olla_xla.analysis.checkpointed import POLICIES
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes, percent


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.cases("a Llama and a GPT on h100")
    define.names("policies", POLICIES, "Of them, several.")
    shared.define_overheads(values, "0.05,0.35")
    define.switch("spill", False, "Also with olla_xla.spill, and planned then.")
    shared.define_format(values)
    shared.define_limits(values)
    values.set_default("time_limit", 60.0)


def run(values: flags.FlagValues) -> int:
    """Compiles every case in every way and prints a table for each; 1 if one fails."""
    options = shared.options(values)
    overheads = shared.overheads(values)
    cases = parse_cases(values.cases) if values.cases else bench.CASES
    policies = known("policies", values.policies, POLICIES)
    for name in known("cases", [case.target for case in cases], targets.TARGETS):
        targets.prepare_environment(name)

    def rows_of(case: Case, progress: Progress) -> tuple[Case, list[LoopsRow]]:
        def stage(text: str) -> None:
            progress.stage(f"{case.name}: {text}")

        return case, bench.loops(case, options, overheads, stage, policies, values.spill)

    found, failed = measured(
        cases,
        rows_of,
        name=lambda case: case.name,
        said=lambda pair: loops_summary(pair[1]),
        out=values.out,
    )
    write_json(values.out, bench.as_json(found))
    for case, rows in found:
        shared.print_table(values, loops_table(rows, case.name))
    return 1 if failed else 0


def loops_table(rows: Sequence[LoopsRow], title: str) -> Table:
    """A line for each row, against the first; for policies also our plan that may add as much.

    Totals are XLA's, in MB.
    """
    first = rows[0].way
    columns = (
        Column("way:", lambda row: row.way.name),
        Column("total", lambda row: row.way.bytes, megabytes),
        Column("on the host", lambda row: row.way.host_bytes, megabytes),
        Column("less %", lambda row: percent(1 - row.way.bytes / first.bytes, 1)),
        Column("predicted ms", lambda row: row.way.seconds, fixed(2, 1e3)),
        Column("more %", lambda row: percent(row.added, 1)),
        Column("planned for as much", lambda row: row.planned and row.planned.bytes, megabytes),
        Column("more %", lambda row: percent(row.planned_added, 1)),
        Column("at or below:", lambda row: {None: "", True: "yes", False: "no"}[row.at_or_below]),
    )
    return table_of(rows, columns, title)


def loops_summary(rows: Sequence[LoopsRow]) -> str:
    """In one line how many policies our plans are at or below, and which they are not."""
    compared = [row for row in rows if row.planned is not None]
    above = [row.way.name for row in compared if not row.at_or_below]
    text = f"at or below {len(compared) - len(above)} of {len(compared)} policies at their own time"
    return text + (f"; above {', '.join(above)}" if above else "")
