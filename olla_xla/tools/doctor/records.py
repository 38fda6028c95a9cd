"""What was found out about a machine: facts, checks, and rows of models that ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from olla_xla.tools.measure.records import Comparison


@dataclasses.dataclass(frozen=True)
class Check:
    """One check of a machine.

    Attributes:
      name: of the check. seen: what was found, as text.
      passed: None where it could not be made here.
    """

    name: str
    passed: bool | None
    seen: str


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """A step to run planned and unplanned; see `olla_xla.tools.models`."""

    model: str
    batch_size: int
    optimizer: str
    max_overhead: float | None = None

    @property
    def name(self) -> str:
        """A name for reports: model, batch size, optimizer, and the time that may be added."""
        more = "" if self.max_overhead is None else f", {100 * self.max_overhead:g} % allowed"
        return f"{self.model}, batch {self.batch_size}, {self.optimizer}{more}"


ROWS = (
    ModelRow("resnet50", 4, "adam"),
    ModelRow("vgg11", 4, "adam"),
    ModelRow("efficientnet_b0", 4, "adam"),
    ModelRow("gpt", 4, "adam"),
    ModelRow("resnet50", 32, "momentum", 0.05),
    ModelRow("llama_scan_saved", 8, "adam"),
    ModelRow("llama_scan_saved", 8, "adam", 0.05),
)
"""Of the zoo; the scans test recomputation in loops, which may round otherwise."""


@dataclasses.dataclass(frozen=True)
class RunRow:
    """The outcome of one ModelRow.

    Attributes:
      row: the step. commands: whether XLA made command buffers; None where it makes none.
      comparison: of both ways; None where a process failed, and `error` says why.
    """

    row: ModelRow
    commands: bool | None
    comparison: Comparison | None
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether the step ran both ways, and gave the same bits."""
        return self.comparison is not None and not self.comparison.difference


@dataclasses.dataclass(frozen=True)
class Examination:
    """All results of `olla_xla doctor`: versions, checks of the machine, and runs of models.

    Attributes:
      made: when, in UTC. versions: of Python and of packages. machine: system, processor, devices.
      environment: variables that JAX, XLA and this package read.
      device: kind of the device that models ran on; "" where there is none, so that none ran.
      checks: what was looked at. runs: models' steps (`ROWS`) run planned and unplanned.
      left: those that did not run.
    """

    made: str
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    environment: Mapping[str, str]
    device: str
    checks: tuple[Check, ...]
    runs: tuple[RunRow, ...]
    left: tuple[ModelRow, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed and all rows that ran passed."""
        failed = any(check.passed is False for check in self.checks)
        return not failed and all(run.passed for run in self.runs)
