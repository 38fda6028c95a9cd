"""Runs a grid of models, batch sizes, targets, optimizers and modes, one process for each cell.

Rows go to --out (CSV) and beside it as JSON lines. A sweep that was stopped or killed goes on where
it was when it is called again; a cell that fails gives a row that says why. With --executor=dask
the cells run on the cluster of --scheduler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from absl import flags

import olla_xla.targets as targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.sweeps import sweep_table
from olla_xla.errors import InputError
from olla_xla.problem.options import parse_bytes
from olla_xla.tools.models import zoo
from olla_xla.tools.sweep.cluster import run_dask
from olla_xla.tools.sweep.grid import Settings, cells
from olla_xla.tools.sweep.journal import Journal
from olla_xla.tools.sweep.local import run_local

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    for name, default, text in (
        ("models", "zoo", "Model names, or zoo for the 20 of the benchmarks."),
        ("batch_sizes", "1,32", "Examples in a batch."),
        ("targets", "cpu,h100", f"What to plan for, of {', '.join(targets.TARGETS)}."),
        ("optimizers", "adam", "The models' optimizers."),
        ("modes", "order", "What to find out: order, overhead, eager."),
    ):
        flags.DEFINE_list(name, default, text, flag_values=values)
    flags.DEFINE_string("out", "sweep.csv", "CSV file for the rows.", flag_values=values)
    flags.DEFINE_enum(
        "executor", "local", ["local", "dask"], "What runs the cells.", flag_values=values
    )
    flags.DEFINE_string("scheduler", None, "Address of Dask's scheduler.", flag_values=values)
    flags.DEFINE_integer(
        "workers", os.cpu_count() or 1, "Processes at a time, at most.", lower_bound=1,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string(
        "worker_memory", "4GiB", "Memory that must be free to start one more process.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_float(
        "cell_timeout", 3600.0, "Seconds after which a cell is given up.", lower_bound=1.0,
        flag_values=values,
    )  # fmt: skip
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Runs what is missing, and prints the table."""
    options = shared.options(values)
    models = values.models
    if models == ["zoo"]:
        models = list(zoo().ZOO)
    if (values.executor == "dask") != (values.scheduler is not None):
        raise InputError("--executor=dask and --scheduler=ADDRESS go together")
    grid = cells(
        models, values.batch_sizes, values.targets, values.optimizers, values.modes,
        targets=list(targets.TARGETS),
    )  # fmt: skip
    worker_bytes = parse_bytes(values.worker_memory, "worker_memory")
    settings = Settings(
        time_limit=values.time_limit,
        step_limit=options.step_limit,
        seed=options.seed,
        cell_timeout=values.cell_timeout,
    )
    journal = Journal(values.out, grid, settings)
    missing = journal.missing
    with Progress() as progress:
        progress.stage(f"{len(grid) - len(missing)} of {len(grid)} cells are done")
        started = time.monotonic()
        for count, (cell, row) in enumerate(_rows(values, missing, settings, worker_bytes), 1):
            journal.add(cell, row)
            left = (time.monotonic() - started) / count * (len(missing) - count)
            what = row.get("error") or "done"
            done = len(grid) - len(missing) + count
            progress.stage(f"{done} of {len(grid)}, about {_time(left)} left: {cell}: {what}")
    console = shared.console()
    sweep_table([journal.rows[cell] for cell in grid]).print(console)
    failed = sum(bool(journal.rows[cell].get("error")) for cell in grid)
    console.print(
        f"{len(grid) - failed} cells done, {failed} failed; rows in {journal.path} and "
        f"{journal.lines}",
        markup=False,
        soft_wrap=True,
    )
    return 1 if failed else 0


def _rows(
    values: flags.FlagValues, missing: list[Any], settings: Any, worker_bytes: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    if values.executor == "dask":
        return run_dask(missing, settings, values.scheduler)

    return run_local(missing, settings, workers=values.workers, worker_bytes=worker_bytes)


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
