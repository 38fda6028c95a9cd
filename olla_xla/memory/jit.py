"""Compiled loops: numba, with the machine code kept on disk wherever a directory allows it.

Loops take NamedTuples of arrays. Mind that a function compiled by `jit` counts a reference to every
array that it is given, at some 10 ns each: large tuples go to functions with a loop of their own,
not to those called within one.

The first plan after installation compiles all that it calls, so that is kept cheap. What costs most
there is what surrounds a loop: its entry from Python (some 10 ms for each array), the counting of
references, and NumPy's sorts, which bring ten functions of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

__all__ = ["inner", "is_kept", "jit", "loop"]

_njit: Callable[..., Any] = numba.njit  # its type does not know all of its options


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles with numba; the machine code is cached on disk wherever a directory allows it."""
    return _compiled(function)


def loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same without counting references: for what neither makes an array nor returns one."""
    return _compiled(function, _nrt=False)


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `loop` that only compiled functions call; it compiles in half the time or less.

    Called from Python it would end the process, so it must be private to its module.
    """
    return _compiled(function, no_cpython_wrapper=True, _nrt=False)


def is_kept(function: Any) -> bool:
    """Whether an earlier process left machine code of a compiled function on disk."""
    folder = function.stats.cache_path
    return folder is not None and any(Path(folder).glob(f"*{function.py_func.__name__}*.nbi"))


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    try:
        return _njit(cache=True, no_cfunc_wrapper=True, **options)(function)
    except RuntimeError:  # read-only installation and no writable user cache directory
        return _njit(no_cfunc_wrapper=True, **options)(function)
