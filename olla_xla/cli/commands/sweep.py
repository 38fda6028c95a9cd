"""Plans a grid of models, batch sizes, targets, optimizers and modes, each in a process.

Rows are written to --out (CSV) and to a file of JSON lines beside it. A sweep that was stopped or
killed goes on where it was when the same command is called again. A plan that fails gives a row
with the error. With --executor=dask the cluster of --scheduler runs the processes. Exit code 1 if a
plan failed.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

import olla_xla.targets as targets
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.sweeps import sweep_summary, sweep_table
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError
from olla_xla.problem.options import parse_bytes
from olla_xla.tools.models import zoo
from olla_xla.tools.sweep.grid import Cell, Journal, SweepSettings, cells
from olla_xla.tools.sweep.process import run_dask, run_local


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla sweep` in `values`."""
    define = Flags(values)
    about = f"Targets to plan for: {', '.join(targets.TARGETS)}. "
    about += "The default is cpu, and also h100 if JAX's CUDA plugin is installed."
    define.names("targets", None, about)
    about = 'What plans may do: "order" only reorders, "overhead" also recomputes values.'
    define.names("modes", "order", about)
    define.one_of(
        "executor", "local", ["local", "dask"], "What computes rows: this machine, or Dask."
    )
    define.text("scheduler", None, "Address of Dask's scheduler, for --executor=dask.")
    define_shared_flags(values, "sweep.csv")


def define_shared_flags(values: flags.FlagValues, out: str) -> None:
    """Defines the flags that all sweeps have in `values`; `out` is the CSV file's default path."""
    define = Flags(values)
    define.names("models", "zoo", "Names of models; zoo means the 20 models of the benchmarks.")
    define.names("batch_sizes", "1,32", "Batch sizes: numbers of examples.")
    define.names("optimizers", "adam", "Optimizers with which the models are trained.")
    define.text("out", out, "CSV file to write the rows to.")
    define.whole("workers", os.cpu_count() or 1, "Most processes that run at a time.", least=1)
    define.text("worker_memory", "4GiB", "Free memory required to start another process.")
    define.real("cell_timeout", 3600.0, "Time limit in seconds for each row.", least=1.0)
    shared.define_format(values)
    shared.define_limits(values)
    shared.define_placement(values)


def run(values: flags.FlagValues) -> int:
    """Runs the cells (one model, batch size and so on each) without a row; prints all rows.
    Returns 1 if a cell failed, else 0. Raises InputError if only one of --executor=dask and
    --scheduler is given, or the grid or its files cannot be used.
    """
    if (values.executor == "dask") != (values.scheduler is not None):
        raise InputError("--executor=dask and --scheduler=ADDRESS go together")
    asked = values.targets or targets.installed()
    grid = cells(
        model_names(values), values.batch_sizes, asked, values.optimizers, values.modes,
        targets=list(targets.TARGETS),
    )  # fmt: skip
    return fill(
        Journal(values.out, grid, settings(values)), values, _rows, sweep_table, sweep_summary
    )


def model_names(values: flags.FlagValues) -> list[str]:
    """Returns the names of --models; "zoo" alone stands for the zoo's models of the benchmarks."""
    return list(zoo().ZOO) if values.models == ["zoo"] else values.models


def settings(values: flags.FlagValues) -> SweepSettings:
    """Makes the settings that all rows of the sweep share, from the flags."""
    options = shared.options(values)
    return SweepSettings(
        time_limit=options.time_limit,
        step_limit=options.step_limit,
        seed=options.seed,
        placement=options.placement,
        cell_timeout=values.cell_timeout,
    )


def fill(
    journal: Journal,
    values: flags.FlagValues,
    rows: Callable[[flags.FlagValues, list[Cell]], Iterator[tuple[Cell, dict[str, Any]]]],
    table: Callable[[Sequence[Mapping[str, Any]]], Table],
    summary: Callable[[Sequence[Mapping[str, Any]]], Sequence[str]] = lambda rows: (),
) -> int:
    """Runs cells of a sweep (model, batch size, ...) without a row, stores rows, prints the table.

    Args:
      journal: the file with the rows that are there already. values: the flags.
      rows: runs the given cells, and yields each cell with its row.
      table: makes the table that is printed, from all rows.
      summary: makes lines that are printed below the table, from all rows.

    Returns 1, as exit code, if a cell failed in this run or an earlier one, else 0.
    """
    missing, total = journal.missing, len(journal.grid)
    with Progress() as progress:
        progress.stage(f"{total - len(missing)} of {total} rows of the table are done")
        started = time.monotonic()
        for count, (cell, row) in enumerate(rows(values, missing), 1):
            journal.add(cell, row)
            left = (time.monotonic() - started) / count * (len(missing) - count)
            what = row.get("error") or "done"
            done = total - len(missing) + count
            progress.stage(f"{done} of {total}, about {_time(left)} left: {cell}: {what}")
    stored = [journal.rows[cell] for cell in journal.grid]
    shared.print_table(values, table(stored))
    failed = sum(bool(row.get("error")) for row in stored)
    where = f"the rows are in {journal.path} and {journal.lines}"
    console = shared.console()
    for line in (*summary(stored), f"{total - failed} rows done, {failed} failed; {where}"):
        console.print(line, markup=False, soft_wrap=True)
    return 1 if failed else 0


def _rows(values: flags.FlagValues, missing: list[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if values.executor == "dask":
        return run_dask(missing, settings(values), values.scheduler)
    return run_local(
        missing,
        settings(values),
        workers=values.workers,
        worker_bytes=parse_bytes(values.worker_memory, "worker_memory"),
    )


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
