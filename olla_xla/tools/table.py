"""Plans every combination of models, batch sizes, optimizers and targets, one row for each."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
from collections.abc import Callable, Iterator, Sequence

from olla_xla.errors import InputError, OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import PlanStatus
from olla_xla.problem.stop_reason import StopReason
from olla_xla.targets.target import target
from olla_xla.tools import models
from olla_xla.tools.step import PlannedModel, plan_model

__all__ = ["Cell", "Row", "cells", "row_json", "rows"]

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination."""

    model: str
    batch_size: int
    optimizer: str
    target: str

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch_size}, {self.optimizer}, {self.target}"


@dataclasses.dataclass(frozen=True)
class Row:
    """What planning one combination gave; nothing was run. Sizes in bytes, shares of one.

    Attributes:
      cell: the combination.
      xla_bytes: XLA's assigned total for its own order. memory_optimized_bytes: with its scheduler
        for memory, None on GPU.
      planned_bytes: XLA's assigned total for the planned order.
      bound_bytes: no order has a smaller total.
      lifetime_gap: least lifetime peak found, over the bound. assignment_loss: the planned total,
        over that peak.
      xla_error, planned_error: predicted total over the assigned one, less one; of both orders.
      seconds: of planning. all_seconds: of compiling and checking too.
      status, stopped_by: the plan's.
      tensors, as_predicted: compared with XLA's assignment; those that lie where predicted.
      planned: False where XLA's own order is kept. reason: why, or "".
      error: what went wrong, in which case the rest is None, or "".
    """

    cell: Cell
    xla_bytes: int | None = None
    memory_optimized_bytes: int | None = None
    planned_bytes: int | None = None
    bound_bytes: int | None = None
    lifetime_gap: float | None = None
    assignment_loss: float | None = None
    xla_error: float | None = None
    planned_error: float | None = None
    seconds: float | None = None
    all_seconds: float | None = None
    status: PlanStatus | None = None
    stopped_by: StopReason | None = None
    tensors: int | None = None
    as_predicted: int | None = None
    planned: bool = False
    reason: str = ""
    error: str = ""

    @property
    def gain(self) -> float | None:
        """Share of XLA's total that the plan saves."""
        if self.xla_bytes is None or self.planned_bytes is None:
            return None
        return 1 - self.planned_bytes / self.xla_bytes


def cells(
    models: Sequence[str],
    batch_sizes: Sequence[str],
    optimizers: Sequence[str],
    targets: Sequence[str],
) -> list[Cell]:
    """All combinations, targets together.

    Raises:
      InputError: a list is empty, or a batch size is not a positive integer.
    """
    for name, given in (
        ("models", models),
        ("batch_sizes", batch_sizes),
        ("optimizers", optimizers),
        ("targets", targets),
    ):
        if not given:
            raise InputError(f"--{name} names none; separate names by commas")
    for size in batch_sizes:
        if not size.isdecimal() or int(size) < 1:
            raise InputError(f"--batch_sizes: {size!r} is not a positive integer")
    combinations = itertools.product(targets, models, batch_sizes, optimizers)
    return [
        Cell(model, int(size), optimizer, target) for target, model, size, optimizer in combinations
    ]


def rows(
    table: Sequence[Cell], options: PlanOptions, stage: Progress, progress: Progress
) -> Iterator[Row]:
    """Plans cell by cell; a cell that fails gives a row that says so.

    Args:
      table: what to plan. options: limits and seed.
      stage: called with one line at each stage. progress: at each improvement.

    Raises:
      InputError: a model or target is unknown or cannot be built.
    """
    import jax

    devices = {name: target(name) for name in dict.fromkeys(cell.target for cell in table)}
    for cell in table:
        model = models.build(cell.model, batch_size=cell.batch_size, optimizer=cell.optimizer)
        label = f"{cell}: "
        try:
            result = plan_model(
                model,
                devices[cell.target],
                options,
                stage=lambda line, label=label: stage(label + line),
                progress=lambda line, label=label: progress(label + line),
            )
        except OllaError as error:
            yield Row(cell, error=str(error))
        else:
            yield _row(cell, result)
        jax.clear_caches()  # a table has more executables than need be kept
        gc.collect()


def _row(cell: Cell, result: PlannedModel) -> Row:
    plan = result.plan
    total = result.report.assigned_bytes
    return Row(
        cell=cell,
        xla_bytes=plan.xla_bytes,
        memory_optimized_bytes=result.memory_optimized_bytes,
        planned_bytes=total,
        bound_bytes=plan.lower_bound_bytes,
        lifetime_gap=plan.gap,
        assignment_loss=plan.loss,
        xla_error=plan.xla_predicted_bytes / plan.xla_bytes - 1,
        planned_error=plan.predicted_bytes / total - 1,
        seconds=plan.seconds,
        all_seconds=result.seconds,
        status=plan.status,
        stopped_by=plan.stopped_by,
        tensors=result.report.tensors,
        as_predicted=result.report.as_predicted,
        planned=result.planned,
        reason=result.reason,
    )


def row_json(row: Row) -> str:
    """A row as one JSON object on one line, the cell's fields beside the others."""
    fields = dataclasses.asdict(row)
    return json.dumps({**fields.pop("cell"), **fields, "gain": row.gain})
