"""Plans unfused graphs, as a framework has them that runs operator by operator: a grid of models.

Nothing is compiled. What an eager framework's allocator reserves stands beside the arena of our
order and places, both predicted. Rows go to --out (CSV), which `figures --sweep` reads, and beside
it as JSON lines; a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from benchmarks.papers.eager.unfused import COLUMNS
from olla_xla.cli.commands import sweep
from olla_xla.cli.report.tables import Table, megabytes, percent, seconds
from olla_xla.problem.options import parse_bytes
from olla_xla.tools.sweep.grid import Cell, Journal, cells
from olla_xla.tools.sweep.process import run_local, run_process

_MODE = "eager"


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    sweep.define_shared_flags(values, "eager.csv")


def run(values: flags.FlagValues) -> int:
    """Runs what is missing, and prints the table."""
    grid = cells(
        sweep.model_names(values), values.batch_sizes, ["cpu"], values.optimizers, [_MODE],
        targets=["cpu"], known_modes=[_MODE],
    )  # fmt: skip
    journal = Journal(values.out, grid, sweep.settings(values), COLUMNS)
    return sweep.fill(journal, values, _rows, eager_table)


def _rows(values: flags.FlagValues, missing: list[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    return run_local(
        missing,
        sweep.settings(values),
        workers=values.workers,
        worker_bytes=parse_bytes(values.worker_memory, "worker_memory"),
        run=functools.partial(run_process, program="benchmarks.papers.eager.unfused"),
    )


_HEADINGS = (
    "model:", "batch", "optimizer:", "eager", "planned", "less %", "bound", "gap %", "order s",
    "error:",
)  # fmt: skip


def eager_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each row: what an eager framework reserves, and our arena."""
    return Table(
        _HEADINGS,
        [_line(row) for row in rows],
        "Predicted, in MB: what an eager framework reserves, and our arena for the same unfused "
        "graph.",
    )


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
    key = tuple(str(row[k]) for k in ("model", "batch_size", "optimizer"))
    if row.get("error"):
        return (*key, *["-"] * 6, row["error"])
    before, planned = row["eager_reserved_bytes"], row["placed_bytes"]
    return (
        *key,
        megabytes(before),
        megabytes(planned),
        percent(1 - planned / before, 1),
        megabytes(row["bound_bytes"]),
        percent(row["lifetime_gap"]),
        seconds(row["order_seconds"]),
        "",
    )
