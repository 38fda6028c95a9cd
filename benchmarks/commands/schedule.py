"""Plans a fixed set of real train steps and prints gap, total, loss and seconds of each.

Graphs are made on the spot by compiling each model for each target. Exit code 1 if a plan is above
XLA's own order, or a case fails.
"""

from __future__ import annotations

from absl import flags

from benchmarks import schedule as bench
from benchmarks.driver import Column, Flags, count, fixed, measured, table_of, write_json
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.tables import megabytes, percent

_COLUMNS = (
    Column("case:", "case"),
    Column("operators", "operators", count),
    Column("XLA", "xla_bytes", megabytes),
    Column("planned", "planned_bytes", megabytes),
    Column("gain %", lambda row: percent(1 - row.planned_bytes / row.xla_bytes, 1)),
    Column("least peak", "peak_bytes", megabytes),
    Column("bound", "bound_bytes", megabytes),
    Column("gap %", "gap", percent),
    Column("loss %", "loss", percent),
    Column("error %", lambda row: percent(row.error, 3)),
    Column("plan s", "seconds", fixed(2)),
    Column("compile s", "compile_seconds", fixed(2)),
    Column("ratio", "ratio", fixed(2)),
    Column("instr.", "instructions", count),
    Column("check s", "referee_seconds", fixed(3)),
    Column("ratio", "referee_ratio", fixed(3)),
    Column("stopped by:", "stopped_by"),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.cases()
    shared.define_limits(values)
    values.set_default("time_limit", 60.0)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table."""
    options = shared.options(values)
    cases = bench.parse_cases(values.cases) if values.cases else bench.CASES
    targets.prepare_environment("h100")  # both targets, in one process
    bench.warm_up(options)
    rows, failed = measured(
        cases,
        lambda case, _: bench.measure(case, options),
        name=lambda case: case.name,
        said=lambda row: f"gap {100 * row.gap:.2f} %, {row.seconds:.1f} s",
        out=values.out,
    )
    console = shared.console()
    title = "XLA: assigned; planned: predicted; sizes in MB of 2^20 bytes"
    table_of(rows, _COLUMNS, title).print(console)
    summary = bench.summarise(rows)
    console.print("\n".join(_lines(summary)), markup=False)
    write_json(values.out, {"rows": rows, "summary": summary})
    return 1 if failed or not summary.never_worse else 0


def _lines(summary: bench.Summary) -> list[str]:
    """All cases in one line each figure."""
    none = "none" if summary.never_worse else "SOME"
    least, most = (percent(x, 1) for x in (summary.within_1_percent, summary.within_5_percent))
    return [
        f"{summary.cases} cases; after 10 s {none} above XLA's order",
        f"certified gap of the lifetime peak at most 1 % on {least} %, at most 5 % on {most} %",
        f"mean assignment loss {percent(summary.mean_loss)} %",
        f"median planning {summary.median_seconds:.2f} s, "
        f"{summary.median_ratio:.2f} of XLA's compile",
        f"the check of the executable: {summary.median_referee_ratio:.3f} of XLA's compile in the "
        "median",
    ]
