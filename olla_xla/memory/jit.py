"""Compiled loops: numba, with the machine code kept on disk wherever a directory allows it.

Loops take NamedTuples of arrays. Mind that a function compiled by `jit` counts a reference to every
array that it is given, at some 10 ns each: large tuples go to functions with a loop of their own,
not to those called within one.

The first plan after installation compiles all that it calls, so that is kept cheap. What costs most
there is what surrounds a loop: its entry from Python (some 10 ms for each array), the counting of
references, and NumPy's sorts, which bring ten functions of their own.

numba itself is imported with the first loop that is called: it takes longer than a command that
needs none of them.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Loop", "has_numba", "inner", "jit", "loop"]


class Loop:
    """A function that numba compiles, or finds on disk, when it is first called.

    Attributes:
      interpreted: the function itself, for what is less work than to import numba.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.interpreted = function
        self._options = options

    def __call__(self, *args: Any) -> Any:
        """Runs the compiled function."""
        return self.compiled(*args)

    @functools.cached_property
    def compiled(self) -> Any:
        """The dispatcher of numba, which is imported here."""
        import numba

        njit: Callable[..., Any] = numba.njit  # its type does not know all of its options
        options = {"no_cfunc_wrapper": True, **self._options}
        with _lock:
            if "compiled" in self.__dict__:  # by another thread meanwhile
                return self.__dict__["compiled"]
            try:
                return njit(cache=True, **options)(self.interpreted)
            except RuntimeError:  # read-only installation and no writable user cache directory
                return njit(**options)(self.interpreted)

    @property
    def _numba_type_(self) -> Any:
        """What numba takes this for where a compiled function calls it."""
        return self.compiled._numba_type_

    @property
    def is_kept(self) -> bool:
        """Whether an earlier process left its machine code on disk."""
        folder = self.compiled.stats.cache_path
        name = self.interpreted.__name__
        return folder is not None and any(Path(folder).glob(f"*{name}*.nbi"))


class _Inner(Loop):
    """Without an entry from Python, which would end the process there: Python interprets it."""

    def __call__(self, *args: Any) -> Any:
        """Runs the function itself."""
        return self.interpreted(*args)


_lock = threading.Lock()


def has_numba() -> bool:
    """Whether this process has imported numba, so that calling a loop does not wait for that."""
    return "numba" in sys.modules


def jit(function: Callable[..., Any]) -> Loop:
    """Compiles with numba; the machine code is cached on disk wherever a directory allows it."""
    return Loop(function)


def loop(function: Callable[..., Any]) -> Loop:
    """The same without counting references: for what neither makes an array nor returns one."""
    return Loop(function, _nrt=False)


def inner(function: Callable[..., Any]) -> Loop:
    """A `loop` that only compiled functions call; it compiles in half the time or less.

    Called from Python it is interpreted.
    """
    return _Inner(function, no_cpython_wrapper=True, _nrt=False)
