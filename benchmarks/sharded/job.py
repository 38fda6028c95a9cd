"""Plans sharded steps in a process of its own, which has eight devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.sharded.steps import STEPS, Sizes
from benchmarks.worker_lines import worker_lines
from olla_xla.errors import InputError


@dataclasses.dataclass(frozen=True)
class Row:
    """One step on one target. Bytes are of one device, by XLA's buffer assignment.

    Attributes:
      step, target: which.
      planned: whether another order than XLA's runs. reason: why not, or "".
      xla_bytes, bytes: XLA's total for jit's executable, and for the planned one.
      predicted_xla_bytes, predicted_bytes: the same by our model, in XLA's order and planned; 0
        where nothing was planned.
      same: whether results are jit's bit for bit; None where nothing can be run.
      collectives: in one module. moved: computations that run them in another order than jit's.
      starts: asynchronous operations.
      hidden_seconds, planned_hidden_seconds: predicted, of what runs while they are under way.
      least_kept: the least part of any start's seconds that the plan keeps.
      exposed_seconds: predicted, that were given up because `max_overhead` allows it.
      least_overlap_bytes, least_overlap_seconds: predicted total, and seconds added, if transfers
        need hide nothing; 0 where there is nothing asynchronous.
    """

    step: str
    target: str
    planned: bool
    reason: str
    xla_bytes: int
    bytes: int
    same: bool | None
    collectives: int
    moved: int
    starts: int
    hidden_seconds: float
    planned_hidden_seconds: float
    least_kept: float
    exposed_seconds: float = 0.0
    predicted_xla_bytes: int = 0
    predicted_bytes: int = 0
    least_overlap_bytes: int = 0
    least_overlap_seconds: float = 0.0

    @property
    def wrong(self) -> str:
        """The fault of this row, or ""."""
        if self.same is False:
            return "results differ from jit's"
        if self.moved:
            return "collectives run in another order"
        if self.least_kept < 1 - 1e-9 and not self.exposed_seconds:
            return f"a transfer hides {self.least_kept:.0%} of what it hid"
        if self.bytes > self.xla_bytes:
            return "more bytes than by XLA alone"
        pairs = [(self.predicted_xla_bytes, self.xla_bytes)]
        pairs += [(self.predicted_bytes, self.bytes)] if self.planned else []
        off = max(abs(found - predicted) / found for predicted, found in pairs)
        return f"a prediction is off by {off:.2%}" if self.predicted_bytes and off > 1e-6 else ""


def run_steps(
    names: Sequence[str], target: str, sizes: Sizes, options: dict[str, Any]
) -> Iterator[Row]:
    """Plans, and on a CPU runs, the steps of these names.

    Args:
      names: of `steps.STEPS`. target: "cpu" or "h100". options: of `olla_xla.plan`.

    Raises:
      InputError: there is no such step. OllaError: the process ended with an error.
    """
    if unknown := [name for name in names if name not in STEPS]:
        raise InputError(f"no step {unknown[0]!r}; steps are {', '.join(map(repr, STEPS))}")
    about = {"steps": list(names), "target": target, "sizes": dataclasses.asdict(sizes)}
    given = {**about, "options": options}
    for line in worker_lines("benchmarks.sharded.worker", given, "the process with eight devices"):
        yield Row(**line)
