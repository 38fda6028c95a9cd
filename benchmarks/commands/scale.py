"""Plans train steps of 1,000 to 100,000 operators and prints operators against seconds.

Exit code 1 if a case fails, takes more than 5 minutes or 8 GiB, or gets worse than its own order.
"""

from __future__ import annotations

import dataclasses

from absl import flags

from benchmarks import scale as bench
from benchmarks.driver import Column, Flags, count, fixed, measured, table_of, write_json
from olla_xla.cli.commands import shared
from olla_xla.cli.report.tables import megabytes, percent

_COLUMNS = (
    Column("case:", "case"),
    Column("operators", "operators", count),
    Column("seconds", "seconds", fixed(1)),
    Column("CPU s", "cpu_seconds", fixed(1)),
    Column("resident", "resident_bytes", megabytes),
    Column("own peak", "xla_peak_bytes", megabytes),
    Column("peak", "peak_bytes", megabytes),
    Column("bound", "bound_bytes", megabytes),
    Column("gap %", lambda row: percent(row.gap, 3)),
    Column("own total", "xla_bytes", megabytes),
    Column("total", "planned_bytes", megabytes),
    Column("stopped by:", "stopped_by"),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.out()
    define.names("cases", bench.CASES, "synthetic/LAYERS, lstm/TOKENS or lstm_xla/TOKENS, several.")
    shared.define_limits(values)
    values.set_default("time_limit", 120.0)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table."""
    options = shared.options(values)
    for case in values.cases:
        bench.parse_case(case)
    rows, failed = measured(
        values.cases,
        lambda case, _: bench.measure(case, options),
        said=lambda row: f"{row.operators:,} operators, {row.seconds:.1f} s",
        out=values.out,
    )
    title = "own: of the module's own order; sizes in MB of 2^20 bytes"
    table_of(rows, _COLUMNS, title).print(shared.console())
    good = [bench.within_limits(row) for row in rows]
    written = [
        dataclasses.asdict(row) | {"within_limits": within}
        for row, within in zip(rows, good, strict=True)
    ]
    write_json(values.out, {"rows": written})
    return 1 if failed or not all(good) else 0
