"""Plan files: a `Plan` as versioned JSON, written and read back without loss.

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
from olla_xla.problem import CloneRecord, Plan

__all__ = ["VERSION", "dumps", "load", "loads", "save"]

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
