"""A short name for an exact outcome, to be held against the one that was looked at before."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

__all__ = ["outcome"]


def outcome(*values: Any) -> str:
    """Twelve hexadecimal digits of all values: arrays, tuples of them, numbers, words."""
    return hashlib.sha256(repr(_plain(values)).encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """The value in words that are the same everywhere."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return [(_plain(k), _plain(v)) for k, v in value.items()]
    if isinstance(value, frozenset | set):
        return sorted(map(_plain, value))
    if isinstance(value, list | tuple | range):
        return [_plain(v) for v in value]
    return value
