"""What a sweep runs: every combination of models, batch sizes, targets, optimizers and modes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from olla_xla.errors import InputError

MODES = {
    "order": "order and in-place reuse, no recomputation",
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
    """What all cells of a sweep have in common.

    Attributes:
      time_limit, step_limit, seed, placement: the planner's.
      cell_timeout: seconds after which a cell is given up.
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
    """All combinations, in the order of the lists; the first list changes slowest.

    Args:
      models, batch_sizes, target_names, optimizers, modes: as given on the command line.
      targets: the targets there are. known_modes: the modes there are.

    Raises:
      InputError: a list is empty or names something twice, a batch size is not a positive integer,
        or there is no such target or mode. Models are not checked: one that is unknown gives rows
        that say so.
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
