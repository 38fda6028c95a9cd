"""Compiled loops: numba, with the machine code kept on disk wherever a directory allows it.

Loops take NamedTuples of arrays. Mind that a compiled function counts a reference to every array
that it is given, at some 10 ns each: large tuples go to functions with a loop of their own, not to
those called within one.
"""

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
