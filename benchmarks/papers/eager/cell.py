"""Answers a sweep's request with the unfused graph; its argument is the request, as JSON."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

from benchmarks.papers.eager.unfused import Unfused, plan_unfused
from olla_xla.tools import models
from olla_xla.tools.sweep.cell import answer
from olla_xla.tools.sweep.grid import KEY, Cell, SweepSettings

COLUMNS: tuple[str, ...] = (
    *KEY,
    *(field.name for field in dataclasses.fields(Unfused)),
    "seconds",
    "error",
)
"""The columns of a row, of mode `eager`: predicted sizes in bytes, see `Unfused`."""


def unfused(cell: Cell, settings: SweepSettings) -> dict[str, Any]:
    """Simulates an eager run of a cell's model, and plans it. Raises OllaError."""
    model = models.build(cell.model, batch_size=cell.batch_size, optimizer=cell.optimizer)
    found = plan_unfused(
        model, settings.time_limit or math.inf, step_limit=settings.step_limit, seed=settings.seed
    )
    return dataclasses.asdict(found)


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], unfused))
