"""What a sweep runs: every combination of models, batch sizes, targets, optimizers and modes."""

import csv
import dataclasses
import io
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from olla_xla.errors import InputError
from olla_xla.problem.whole_file import write_text

MODES = {
    "order": "a new order and in-place reuse, without recomputation",
    "overhead": "recomputation within 5 % added predicted time",
}
"""Mode -> what its rows say."""

KEY: tuple[str, ...] = ("model", "batch_size", "target", "optimizer", "mode")
"""The columns that name a cell."""

COLUMNS: tuple[str, ...] = (
    *KEY,
    "xla_bytes",
    "memory_optimized_bytes",
    "planned_bytes",
    "bound_bytes",
    "lifetime_gap",
    "assignment_loss",
    "xla_error",
    "planned_error",
    "clones",
    "added_time",
    "peak_bytes",
    "operators",
    "order_seconds",
    "seconds",
    "error",
)
"""The columns of a row: sizes in bytes, totals assigned; gaps and errors as shares of one."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination of model, batch size, target, optimizer and mode: a row of a sweep."""

    model: str
    batch_size: int
    target: str
    optimizer: str
    mode: str

    def __str__(self) -> str:
        return ", ".join(
            (self.model, f"batch {self.batch_size}", self.target, self.optimizer, self.mode)
        )


@dataclasses.dataclass(frozen=True)
class SweepSettings:
    """What all rows of a sweep have in common.

    Attributes:
      time_limit, step_limit, seed, placement: the planner's.
      cell_timeout: seconds after which the process of a row is ended.
    """

    time_limit: float | None
    step_limit: int | None
    seed: int
    cell_timeout: float
    placement: str = "xla"


def cells(
    models: Sequence[str],
    batch_sizes: Sequence[str],
    target_names: Sequence[str],
    optimizers: Sequence[str],
    modes: Sequence[str],
    *,
    targets: Sequence[str],
    known_modes: Sequence[str] = tuple(MODES),
) -> list[Cell]:
    """Makes a Cell of each combination, in the order of the lists; the first changes slowest.

    Args:
      models, batch_sizes, target_names, optimizers, modes: as given on the command line.
      targets: the targets there are. known_modes: the modes there are.

    Raises InputError if a list is empty or names something twice, a batch size is not a positive
    integer, or there is no such target or mode. Unknown models are not found out here.
    """
    given = {
        "models": models,
        "batch_sizes": batch_sizes,
        "targets": target_names,
        "optimizers": optimizers,
        "modes": modes,
    }
    for name, values in given.items():
        if not values:
            raise InputError(f"--{name} is empty; give names, separated by commas")
        if len(set(values)) < len(values):
            raise InputError(f"--{name} contains a name twice: {','.join(values)}")
    for size in batch_sizes:
        if not size.isdecimal() or int(size) < 1:
            raise InputError(f"--batch_sizes: {size!r} is not a positive integer")
    for name, known in (("targets", targets), ("modes", known_modes)):
        for value in given[name]:
            if value not in known:
                raise InputError(f"--{name}: {value!r} is not one of {', '.join(known)}")
    return [
        Cell(model, int(size), target, optimizer, mode)
        for model, size, target, optimizer, mode in itertools.product(*given.values())
    ]


# Rows on disk: JSON lines as they come, and a CSV in the order of the grid.
#
# Each row is one line, written and flushed to disk at once. A process that is killed leaves at most
# one torn line, which the next one drops. The CSV is rewritten with each row, and the old file is
# replaced atomically, so that it is complete at any time.


_FORMAT = "olla_xla.sweep/1"


class Journal:
    """The rows of one sweep, kept in two files; rows of an earlier run are read from there.
    Raises InputError if the files cannot be read or written, or are of another sweep.

    Args:
      path: the CSV file; the JSON lines lie beside it, ending in `.jsonl`.
      grid: the cells of the sweep (model, batch size, ... of each row), in the order of the CSV.
      settings: what else the rows depend on. columns: of the CSV, those of `KEY` first.
    """

    def __init__(
        self,
        path: str,
        grid: Sequence[Cell],
        settings: SweepSettings,
        columns: Sequence[str] = COLUMNS,
    ) -> None:
        self.path = Path(path)
        self._columns = columns
        self.lines = self.path.with_suffix(".jsonl")
        if self.lines == self.path:
            raise InputError(f"--out={path} must not end in .jsonl: the sweep writes that file too")
        self.grid = list(grid)
        self._header = {"format": _FORMAT, **dataclasses.asdict(settings)}
        self.rows: dict[Cell, dict[str, Any]] = {}
        try:
            self._read()
            self._write_csv()
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error

    @property
    def missing(self) -> list[Cell]:
        """The cells (model, batch size, ...) of the sweep that have no row yet, in order."""
        return [cell for cell in self.grid if cell not in self.rows]

    def add(self, cell: Cell, row: Mapping[str, Any]) -> None:
        """Adds a cell's row to both files. Raises InputError if they cannot be written, ValueError
        if the row has other columns.
        """
        full = {**dataclasses.asdict(cell), **row}
        if unknown := set(full) - set(self._columns):
            raise ValueError(f"no columns {sorted(unknown)}")
        try:
            with open(self.lines, "a", encoding="utf-8") as file:
                _write_line(file, full)
            self.rows[cell] = full
            self._write_csv()
        except OSError as error:
            raise InputError(f"cannot write {self.path}: {error.strerror}") from error

    def _read(self) -> None:
        """Reads the rows of an earlier run, or starts the file; removes an unfinished last line.
        Raises InputError if the file is of another sweep.
        """
        text = self.lines.read_text(encoding="utf-8") if self.lines.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if not whole:
            with open(self.lines, "w", encoding="utf-8") as file:
                _write_line(file, self._header)
            return
        try:
            header, *rows = [json.loads(line) for line in whole.splitlines()]
            made = {Cell(**{k: row[k] for k in KEY}): row for row in rows}
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.lines} was not written by a sweep; choose another --out"
            ) from error
        if header != self._header:
            raise InputError(
                f"{self.lines} is from a sweep with other limits or another seed; delete the file "
                "or give another --out"
            )
        self.rows = made
        if whole != text:
            os.truncate(self.lines, len(whole.encode()))

    def _write_csv(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        kept = [*self.grid, *(cell for cell in self.rows if cell not in set(self.grid))]
        writer.writerows(self.rows[cell] for cell in kept if cell in self.rows)
        write_text(self.path, text.getvalue())


def _write_line(file: io.TextIOBase | Any, fields: Mapping[str, Any]) -> None:
    file.write(json.dumps(fields) + "\n")
    file.flush()
    os.fsync(file.fileno())
