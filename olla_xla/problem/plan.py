"""Plan, the result of planning one module, and plan files, which keep it without loss.

A plan file is one JSON object: `{"format": "olla_xla.plan", "version": 19, "plan": {...}}`, where
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
from olla_xla.problem.plan_parts import PlanFields
from olla_xla.problem.whole_file import written_whole


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Plan(PlanFields):
    """The result of planning one module: execution orders, changes of the module, and figures.

    Its fields are those of its parts (`olla_xla.problem.plan_parts`): `PlanSchedule`, the order
    itself; `PlanEdits`, what is computed again; `PlanFigures`, bytes; `PlanSearch`, how it was
    found.
    """

    def __repr__(self) -> str:
        return f"<Plan of {self.module}, {self.target}: {summary.in_a_line(self)}>"

    def summary(self) -> str:
        """Returns the plan's figures as a plain-text table to print; sizes in MB of 2^20 bytes."""
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
        """Reads a plan from a plan file.

        Raises:
          PlanFileError: it cannot be read, is not a plan file, or is of another version.
        """
        try:
            text = read_regular(path)
        except OSError as error:
            raise PlanFileError(f"cannot read {path}: {error.strerror}") from error
        return loads(text, str(path))


VERSION = 19
"""Of the format; raised whenever a field is added, removed or changes its meaning, `loops` too."""

_FORMAT = "olla_xla.plan"

_FIELDS = (
    "module",
    "fingerprint",
    "target",
    "order",
    "offsets",
    "placement",
    "placement_note",
    "without_rematerialization",
    "xla_bytes",
    "xla_predicted_bytes",
    "predicted_bytes",
    "peak_bytes",
    "least_peak_bytes",
    "lower_bound_bytes",
    "assigned_bytes",
    "recomputed_bytes",
    "recovered_bytes",
    "host_bytes",
    "host_arrays",
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
    "joined",
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
    "front",
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
    """Returns the fields of a plan as a dict, name -> value, in the order of a plan file."""
    return {name: getattr(plan, name) for name in _FIELDS}


def dumps(plan: Plan) -> bytes:
    """Encodes a plan as the JSON text of a plan file; equal plans give equal bytes."""
    document = {"format": _FORMAT, "version": VERSION, "plan": flat(plan)}
    # Options may be NumPy scalars, which msgspec does not encode by itself.
    return msgspec.json.encode(document, enc_hook=float) + b"\n"


def loads(text: bytes | str, name: str = "plan") -> Plan:
    """Decodes a plan from the JSON text of a plan file, as `dumps` writes it.

    Raises PlanFileError, which calls the text `name`, if it is no plan file, of another version, or
    if a field is missing or malformed.
    """
    try:
        document = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{name} is not JSON ({error}); save the plan again") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise PlanFileError(f"{name} is not a plan file; make one with --plan_out or Plan.save")
    if document.get("version") != VERSION:
        raise PlanFileError(
            f"{name} has plan version {document.get('version')}, but this olla_xla reads "
            f"{VERSION}; plan again"
        )
    fields = document.get("plan")
    if not isinstance(fields, dict):
        raise PlanFileError(f"the file {name} contains no plan; save the plan again")
    known = set(_FIELDS)
    if missing := sorted(known - fields.keys()):
        raise PlanFileError(f"the plan file {name} has no field {missing[0]}; save the plan again")
    if unknown := sorted(fields.keys() - known):
        raise PlanFileError(f"{name} has an unknown field {unknown[0]}; save the plan again")
    if fields["time_limit"] is None:
        fields["time_limit"] = math.inf
    try:
        return msgspec.convert(fields, Plan)
    except msgspec.ValidationError as error:
        raise PlanFileError(
            f"the plan file {name} has a malformed field ({error}); save the plan again"
        ) from error
