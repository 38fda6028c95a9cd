"""Programs as text, and back: calls of the spec's classes with literal arguments, no more."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

from benchmarks.random_programs import spec
from olla_xla.errors import InputError

_CLASSES = {
    name: found
    for name, found in vars(spec).items()
    if isinstance(found, type) and dataclasses.is_dataclass(found)
}


def to_text(value: Any) -> str:
    """A spec as an expression; fields with default values are left out."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        if isinstance(value, tuple):
            return f"({''.join(f'{to_text(part)}, ' for part in value).rstrip()})"
        return repr(value)
    fields = [
        f"{field.name}={to_text(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(fields)})"


def from_text(text: str) -> Any:
    """The spec that `to_text`, or `repr`, wrote. Raises InputError if it is none."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    try:
        return _value(ast.parse("\n".join(lines).strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError) as error:
        raise InputError(f"not a random program: {error}") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _CLASSES or node.args or any(k.arg is None for k in node.keywords):
        raise ValueError(f"line {node.lineno} calls what is not part of a program")
    return _CLASSES[name](**{str(k.arg): _value(k.value) for k in node.keywords})
