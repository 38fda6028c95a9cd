"""The answer: a Plan for one module, and plan files, which keep it without loss.

A plan file is one JSON object: `{"format": "olla_xla.plan", "version": 3, "plan": {...}}`, where
"plan" has every field of `Plan` by name. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from olla_xla.errors import PlanFileError

__all__ = ["VERSION", "CloneRecord", "Plan", "dumps", "load", "loads", "save"]

CloneRecord = tuple[str, str, tuple[str, ...], tuple[tuple[str, int], ...]]
"""One instruction computed again; see `Plan.clones`."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule for every planned computation of one module, with what is known about it.

    "predicted" figures come from our simulation of XLA's assignment rule, "assigned" ones from
    XLA's buffer assignment. All totals are arguments + outputs - aliases + temp, in bytes.

    Attributes:
      module: HLO module name.
      fingerprint: digest of the module without its schedule; a plan fits only that module.
      results: digest of the module's results as expressions of its arguments (`check.executable`);
        "" until the plan is about to be compiled.
      target: "cpu" or "cuda".
      order: computation name -> instruction names in execution order.
      aliases: fusion name -> results that are bound to write over a dying operand, as (index of the
        result, operand number).
      clones: what is computed again, in execution order, as (name of the clone, name of its
        original, names of its operands, (reader, operand number) of those of the module's own
        instructions that read it instead). `order` and all figures but XLA's are of the module
        with the clones in it; the fingerprint is of the module without.
      step_seconds: predicted time of one run without clones; 0 where it was not asked for.
      added_seconds: predicted time that the clones add. least_added_seconds: no choice of clones
        that the integer programme knows adds less at the same peak; 0 where that is not known.
      moved_bytes, added_moved_bytes: bytes moved to and from memory, likewise.
      offsets: tensor name -> (offset, size) in one arena of `predicted_bytes` or less.
      xla_bytes: total of XLA's own order: assigned where that was compiled, else predicted.
      xla_predicted_bytes: predicted total of XLA's own order.
      predicted_bytes: predicted total of this order.
      peak_bytes: lifetime peak of this order (in-place reuse counted); 0 where the module makes so
        little that no plan was looked for.
      least_peak_bytes: the least lifetime peak of any order that was found; this order trades some
        of it where XLA's assignment rule makes that pay.
      lower_bound_bytes: no order of this module has a smaller lifetime peak or total.
      assigned_bytes: XLA's total for this order, once compiled; None before.
      status: "optimal" (the predicted total is within the tolerance of the bound), "feasible" (a
        limit or stall stopped the search), or "xla" (XLA's own order is kept).
      stopped_by: "bound", "time_limit", "step_limit", "stall" or "no_gain".
      source: name of the candidate that won, e.g. "xla", "list", "search".
      candidates: candidate name -> (predicted bytes, lifetime peak bytes).
      seconds: planning time.
      steps: search steps taken.
      seed: seed of the search.
      time_limit: seconds allowed. step_limit: steps allowed, or None.
      tolerance: relative gap to the bound at which the search was content.
    """

    module: str
    fingerprint: str
    target: str
    order: Mapping[str, tuple[str, ...]]
    offsets: Mapping[str, tuple[int, int]]
    xla_bytes: int
    xla_predicted_bytes: int
    predicted_bytes: int
    peak_bytes: int
    least_peak_bytes: int
    lower_bound_bytes: int
    assigned_bytes: int | None = None
    results: str = ""
    status: str = "feasible"
    stopped_by: str = "no_gain"
    source: str = "xla"
    candidates: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]] = dataclasses.field(
        default_factory=dict
    )
    clones: tuple[CloneRecord, ...] = ()
    step_seconds: float = 0.0
    added_seconds: float = 0.0
    least_added_seconds: float = 0.0
    moved_bytes: int = 0
    added_moved_bytes: int = 0
    seconds: float = 0.0
    steps: int = 0
    seed: int = 0
    time_limit: float = 0.0
    step_limit: int | None = None
    tolerance: float = 0.0

    @property
    def gap(self) -> float:
        """Lifetime gap, (least peak - bound) / bound: how far any order's peak could still fall."""
        return (self.least_peak_bytes - self.lower_bound_bytes) / max(self.lower_bound_bytes, 1)

    @property
    def loss(self) -> float:
        """Assignment loss, (total - least peak) / least peak: what XLA's placing rule costs.

        Of the assigned total where it is known, else of the predicted one.
        """
        total = self.predicted_bytes if self.assigned_bytes is None else self.assigned_bytes
        return (total - self.least_peak_bytes) / max(self.least_peak_bytes, 1)

    @property
    def overhead(self) -> float:
        """Predicted time that the clones add, as a part of the step's."""
        return self.added_seconds / self.step_seconds if self.step_seconds else 0.0

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan file, versioned JSON. Raises PlanFileError if that fails."""
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a plan file. Raises PlanFileError if it is not one, or of another version."""
        return load(path)


VERSION = 3
"""Of the format; raised whenever a field is added, removed or changes its meaning."""

_FORMAT = "olla_xla.plan"


def dumps(plan: Plan) -> str:
    """The plan as the text of a plan file."""
    fields = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
    if math.isinf(plan.time_limit):
        fields["time_limit"] = "inf"  # JSON has no infinity
    document = {"format": _FORMAT, "version": VERSION, "plan": fields}
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def loads(text: str, name: str = "plan") -> Plan:
    """Reads the text of a plan file.

    Args:
      text: as `dumps` writes it.
      name: what to call the text in errors, such as the file's path.

    Raises:
      PlanFileError: not a plan file, of another version, or a field is missing or malformed.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
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
    return _plan(fields, name)


def save(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes a plan file in one step: nobody ever reads half of it.

    Raises:
      PlanFileError: the file cannot be written.
    """
    path = Path(path)
    # Not tempfile's: its files are for their owner only, plan files are there to be shared.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(dumps(plan), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise PlanFileError(f"cannot write {path}: {error.strerror}") from error


def load(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan file.

    Raises:
      PlanFileError: it cannot be read, or `loads` refuses it.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PlanFileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{path} is not JSON (not UTF-8 text); save the plan again") from error
    return loads(text, str(path))


def _plan(fields: Mapping[str, Any], name: str) -> Plan:
    known = {f.name for f in dataclasses.fields(Plan)}
    if missing := sorted(known - fields.keys()):
        raise PlanFileError(f"{name} has no field {missing[0]}; save the plan again")
    if unknown := sorted(fields.keys() - known):
        raise PlanFileError(f"{name} has an unknown field {unknown[0]}; save the plan again")
    values = {}
    for key, value in fields.items():
        try:
            values[key] = _READERS[key](value)
        except (TypeError, ValueError, AttributeError) as error:
            raise PlanFileError(
                f"{name} has a malformed field {key} ({error}); save the plan again"
            ) from error
    return Plan(**values)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _number(value: Any) -> float:
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _optional(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _pair(value: Any) -> tuple[int, int]:
    first, second = _list(value)
    return _integer(first), _integer(second)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_text(v) for v in _list(value))


def _aliases(value: Any) -> tuple[tuple[tuple[int, ...], int], ...]:
    pairs = [_list(v) for v in _list(value)]
    return tuple((tuple(_integer(k) for k in _list(i)), _integer(o)) for i, o in pairs)


def _clones(value: Any) -> tuple[CloneRecord, ...]:
    records = []
    for name, original, operands, readers in map(_list, _list(value)):
        read = tuple((_text(r), _integer(k)) for r, k in map(_list, _list(readers)))
        records.append((_text(name), _text(original), _names(operands), read))
    return tuple(records)


def _mapping(read: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {k: read(v) for k, v in value.items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("module", "fingerprint", "results", "target", "status", "stopped_by", "source"), _text
    ),
    **dict.fromkeys(
        (
            "xla_bytes",
            "xla_predicted_bytes",
            "predicted_bytes",
            "peak_bytes",
            "least_peak_bytes",
            "lower_bound_bytes",
            "moved_bytes",
            "added_moved_bytes",
            "steps",
            "seed",
        ),
        _integer,
    ),
    **dict.fromkeys(
        (
            "seconds",
            "time_limit",
            "tolerance",
            "step_seconds",
            "added_seconds",
            "least_added_seconds",
        ),
        _number,
    ),
    **dict.fromkeys(("assigned_bytes", "step_limit"), _optional),
    "order": _mapping(_names),
    "offsets": _mapping(_pair),
    "candidates": _mapping(_pair),
    "aliases": _mapping(_aliases),
    "clones": _clones,
}
