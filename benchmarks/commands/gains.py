"""Plans the steps of the ledger of gains, and fails where one takes more than it once did.

`benchmarks/gains.toml` has for each step the least total that was ever reached, its date and
commit, and the predicted time added. Exit code 1 where a total is more than 0.3 % above that, or as
much memory takes longer by prediction, unless the row gives a reason; also where the referee
refused a choice. A better total is written into the file.
"""

from __future__ import annotations

from absl import flags

from benchmarks import gains
from benchmarks.driver import Flags
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.switch("quick", False, "Only the rows that are marked so.")
    define.names("rows", [], "Parts of steps' names, one of which a row must have.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Plans the rows, prints a table and what is worse, and writes what is better."""
    with Progress() as progress:
        table, wrong = _planned(values, progress)
    headings = ("step:", "XLA, MB", "planned", "best", "time +%", "worse:")
    shared.print_table(values, Table(headings, table, f"{len(table)} steps, {wrong} worse"))
    return int(wrong > 0)


def _planned(values: flags.FlagValues, progress: Progress) -> tuple[list[tuple[str, ...]], int]:
    """The rows of the table, and how many are worse."""
    ledger, table, wrong = gains.read(), [], 0
    for k, row in enumerate(ledger):
        asked = not values.rows or any(part in row.name for part in values.rows)
        if not asked or (values.quick and not row.quick):
            continue
        progress.stage(row.name)
        try:
            found = gains.planned(row)
        except OllaError as error:
            wrong += 1
            table.append((row.name, "-", "-", "-", "-", str(error)))
            continue
        faults = gains.faults(row, found)
        wrong += bool(faults)
        note = "; ".join(faults) or row.reason
        best = f"{row.best_mb:,.1f}"
        more = f"{100 * found.time:.1f}"
        table.append((row.name, f"{found.xla_mb:,.1f}", f"{found.mb:,.1f}", best, more, note))
        better = gains.improved(row, found)
        if better != row:
            ledger[k] = better
            gains.write(ledger)
    return table, wrong
