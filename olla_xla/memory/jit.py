"""Compiled loops: numba, with the machine code kept on disk wherever a directory allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

__all__ = ["jit"]


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles with numba; the machine code is cached on disk wherever a directory allows it."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # read-only installation and no writable user cache directory
        return numba.njit(function)
