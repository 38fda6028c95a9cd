"""The answer: a Plan for one module, and plan files, which keep it without loss.

A plan file is one JSON object: `{"format": "olla_xla.plan", "version": 14, "plan": {...}}`, where
"plan" has every field of `Plan` by name. Sizes are bytes, times seconds; an infinite time limit is
null.
"""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import msgspec

from hlo.files import read_regular
from olla_xla.errors import PlanFileError
from olla_xla.problem import summary
from olla_xla.problem.plan_parts import (
    CloneRecord,
    LoopRecord,
    PlanEdits,
    PlanFigures,
    PlanSchedule,
    PlanSearch,
    PlanStatus,
)
from olla_xla.problem.whole_file import written_whole

__all__ = [
    "LONGEST_PATH",
    "VERSION",
    "CloneRecord",
    "LoopRecord",
    "Plan",
    "PlanStatus",
    "dumps",
    "flat",
    "loads",
]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Plan(PlanSearch, PlanFigures, PlanEdits, PlanSchedule):
    """A schedule for every planned computation of one module, with what is known about it.

    Its fields are those of its parts (`olla_xla.problem.plan_parts`): `PlanSchedule`, the order
    itself; `PlanEdits`, what is computed again; `PlanFigures`, bytes; `PlanSearch`, how it was
    found.
    """

    @property
    def gap(self) -> float:
        """Lifetime gap, (least peak - bound) / bound: how far any order's peak could still fall."""
        return (self.least_peak_bytes - self.lower_bound_bytes) / max(self.lower_bound_bytes, 1)

    @property
    def loss(self) -> float:
        """Assignment loss, (total - least peak) / least peak: the cost of XLA's placement rule.

        Of the assigned total where it is known, else of the predicted one.
        """
        total = self.predicted_bytes if self.assigned_bytes is None else self.assigned_bytes
        return (total - self.least_peak_bytes) / max(self.least_peak_bytes, 1)

    @property
    def overhead(self) -> float:
        """Predicted time that is added, as a fraction of the step's."""
        return self.added_seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def slowdown(self) -> float:
        """Predicted time that a run takes longer on a GPU's streams, as a fraction of XLA's own."""
        return self.path_seconds / self.xla_path_seconds - 1 if self.xla_path_seconds else 0.0

    def is_longer(self, seconds: float) -> bool:
        """Whether a run of so many predicted seconds takes longer than the plan may.

        The limit is 1 % more than XLA's own order. It does not apply to plans with `added_seconds`,
        since the options allow these.
        """
        return self.added_seconds <= 0 and seconds > LONGEST_PATH * self.xla_path_seconds

    @property
    def is_rewritten(self) -> bool:
        """Whether it adds or removes instructions."""
        return bool(self.clones or self.loops or self.sunk)

    @property
    def keeps_xla(self) -> bool:
        """Whether nothing better than XLA's own order was found, so that this is kept."""
        return self.predicted_bytes >= self.xla_predicted_bytes

    def __repr__(self) -> str:
        return f"<Plan of {self.module}, {self.target}: {summary.in_a_line(self)}>"

    def summary(self) -> str:
        """What is known of it as a table in plain text, to print; sizes in MB of 2^20 bytes."""
        return summary.table(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan file atomically: no reader sees half of it.

        Raises:
          PlanFileError: the file cannot be written.
        """
        try:
            with written_whole(path) as beside:
                beside.write_bytes(dumps(self))
        except OSError as error:
            raise PlanFileError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a plan file.

        Raises:
          PlanFileError: it cannot be read, is not a plan file, or is of another version.
        """
        try:
            text = read_regular(path)
        except OSError as error:
            raise PlanFileError(f"cannot read {path}: {error.strerror}") from error
        return loads(text, str(path))


LONGEST_PATH = 1.01
"""Times the predicted time of a run in XLA's own order that a plan may take by default."""

VERSION = 14
"""Of the format; raised whenever a field is added, removed or changes its meaning, `loops` too."""

_FORMAT = "olla_xla.plan"


_FIELDS = (
    "module",
    "fingerprint",
    "target",
    "order",
    "offsets",
    "xla_bytes",
    "xla_predicted_bytes",
    "predicted_bytes",
    "peak_bytes",
    "least_peak_bytes",
    "lower_bound_bytes",
    "assigned_bytes",
    "results",
    "status",
    "stopped_by",
    "source",
    "candidates",
    "aliases",
    "holds",
    "kernels",
    "clones",
    "loops",
    "sunk",
    "step_seconds",
    "added_seconds",
    "least_added_seconds",
    "exposed_seconds",
    "path_seconds",
    "xla_path_seconds",
    "least_stack_bytes",
    "moved_bytes",
    "added_moved_bytes",
    "proposed",
    "refused",
    "proofs",
    "seconds",
    "steps",
    "seed",
    "time_limit",
    "step_limit",
    "tolerance",
)
"""Of a plan file, in its order."""


def flat(plan: Plan) -> dict[str, Any]:
    """The fields of a plan by name, as a plan file has them."""
    return {name: getattr(plan, name) for name in _FIELDS}


def dumps(plan: Plan) -> bytes:
    """The plan as the text of a plan file; equal plans give equal bytes."""
    document = {"format": _FORMAT, "version": VERSION, "plan": flat(plan)}
    # Options may be NumPy scalars, which msgspec does not encode by itself.
    return msgspec.json.encode(document, enc_hook=float) + b"\n"


def loads(text: bytes | str, name: str = "plan") -> Plan:
    """Reads the text of a plan file.

    Args:
      text: as `dumps` writes it.
      name: what to call the text in errors, such as the file's path.

    Raises:
      PlanFileError: not a plan file, of another version, or a field is missing or malformed.
    """
    try:
        document = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{name} is not JSON ({error}); save the plan again") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise PlanFileError(f"{name} is not a plan file; make one with --plan_out or Plan.save")
    if document.get("version") != VERSION:
        raise PlanFileError(
            f"{name} has plan version {document.get('version')}, this olla_xla reads {VERSION}; "
            "plan again"
        )
    fields = document.get("plan")
    if not isinstance(fields, dict):
        raise PlanFileError(f"{name} has no plan in it; save the plan again")
    known = set(_FIELDS)
    if missing := sorted(known - fields.keys()):
        raise PlanFileError(f"{name} has no field {missing[0]}; save the plan again")
    if unknown := sorted(fields.keys() - known):
        raise PlanFileError(f"{name} has an unknown field {unknown[0]}; save the plan again")
    if fields["time_limit"] is None:
        fields["time_limit"] = math.inf
    try:
        return msgspec.convert(fields, Plan)
    except msgspec.ValidationError as error:
        raise PlanFileError(
            f"{name} has a malformed field ({error}); save the plan again"
        ) from error
