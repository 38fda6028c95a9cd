"""Compiled loops: numba, with the machine code kept on disk wherever a directory allows it.

Loops take NamedTuples of arrays. Mind that a function compiled by `jit` counts a reference to every
array that it is given, at some 10 ns each: large tuples go to functions with a loop of their own,
not to those called within one.

What a first plan needs is made by `loop`: its machine code is run without numba, whose import and
wrappers for Python take longer than a small step's compile (code_store.py). The first plan after
installation compiles all loops that it calls, so these are kept cheap to compile: no reference
counting, no NumPy sorts, which bring ten functions of their own. A small step's plan compiles none
(`interpret`).

numba itself is imported where a loop is to be compiled, or is made by `jit`.
"""

import functools
import logging
import math
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from olla_xla.memory import clock, code_store
from olla_xla.memory.arguments import Kinds, flattened

_logger = logging.getLogger("olla_xla")


class CompiledLoop:
    """A function that numba compiles, or that is loaded from disk, when it is first called.

    Attributes:
      interpreted: the Python function, for calls that take less time than importing numba.
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
        """The function as numba's dispatcher. Its first use imports numba, which is slow."""
        with clock.stopped(), _lock:
            import numba

            njit: Callable[..., Any] = numba.njit  # its type does not know all of its options
            if "compiled" in self.__dict__:  # by another thread meanwhile
                return self.__dict__["compiled"]
            try:
                made = njit(no_cfunc_wrapper=True, **self._options)(self.interpreted)
                if self._options.get("cache"):
                    made._cache._cache_file = _Files(self._name, self._source)
            except RuntimeError:  # read-only installation and no writable user cache directory
                options = {**self._options, "cache": False}
                made = njit(no_cfunc_wrapper=True, **options)(self.interpreted)
            made.compile = clock.stopped()(made.compile)  # which a call with new types calls
            return made

    @property
    def _name(self) -> str:
        return f"{self.interpreted.__module__}.{self.interpreted.__qualname__}"

    @functools.cached_property
    def _source(self) -> str:
        return code_store.source(self.interpreted, lambda x: getattr(x, "interpreted", None))

    @property
    def _numba_type_(self) -> Any:
        """The numba type of this function, for other compiled functions that call it."""
        return self.compiled._numba_type_


class _Inner(CompiledLoop):
    """A helper of compiled loops; Python interprets it, as numba compiles no entry from Python."""

    def __call__(self, *args: Any) -> Any:
        """Runs the Python function itself, which is not compiled."""
        return self.interpreted(*args)


class _StoredLoop(CompiledLoop):
    """A loop whose machine code is kept on disk, where later processes run it without numba."""

    def __init__(self, function: Callable[..., Any], *, long: bool, **options: Any) -> None:
        super().__init__(function, **options)
        self._linked: dict[Kinds, Callable[[bytes], Any]] = {}
        self._took = math.inf if long else 0.0  # seconds in Python

    def __call__(self, *args: Any) -> Any:
        """Runs the machine code, loaded or compiled at the first call with these types; or has
        Python interpret the loop, as far as `interpret` allows.
        """
        kinds, words = flattened(args)
        run = self._linked.get(kinds)
        if run is None:
            run = self._link(kinds, args)
        return run(words)

    @property
    def is_kept(self) -> bool:
        """Whether an earlier process left this loop's machine code on disk."""
        return code_store.holds(self._name, self._source)

    def _link(self, kinds: Kinds, args: tuple[Any, ...]) -> Callable[..., Any]:
        with clock.stopped(), _compiling:
            if kinds in self._linked:  # by another thread meanwhile
                return self._linked[kinds]
            kept = self._name, kinds, self._source
            run, code = None, code_store.load(*kept)
            if code is not None:
                try:
                    run = code.linked(self._name)
                except RuntimeError as error:  # LLVM's
                    _logger.warning("%s is compiled again: %s", self._name, error)
                    code_store.drop(*kept)
            if run is None and self._took < _patience:
                return lambda _: self._interpret(args)
            if run is None:
                code = code_store.compiled(self.compiled, args)
                code_store.save(*kept, code)
                run = code.linked(self._name)
            self._linked[kinds] = run
        return run

    def _interpret(self, args: tuple[Any, ...]) -> Any:
        began = time.thread_time()
        with clock.stopped():  # as where it is compiled instead
            result = self.interpreted(*args)
        self._took += time.thread_time() - began
        return tuple(map(_plain, result)) if isinstance(result, tuple) else _plain(result)


def _plain(result: Any) -> Any:
    """Converts a NumPy number to Python's, as compiled code returns it; other results unchanged."""
    return result.item() if isinstance(result, np.generic) else result


class _Files:
    """Replaces numba's cache files, which do not depend on a function's callees, and from which
    numba unpickles whatever lies there: keeps what it compiles as loops' machine code is kept.

    Args:
      name: the function's. source: digest of its source, and of its callees'.
    """

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source

    def load(self, key: Any) -> Any:
        """Reads from disk what numba compiled for a key (argument types and the like), or None."""
        data = code_store.read(self._name, repr(key), self._source)
        return None if data is None else pickle.loads(data)

    def save(self, key: Any, data: Any) -> None:
        """Writes to disk what numba compiled for a key (argument types and the like)."""
        from numba.core.serialize import dumps

        code_store.write(self._name, repr(key), self._source, dumps(data))


_lock = threading.Lock()
_compiling = threading.Lock()
_patience = 0.0


def interpret(seconds: float) -> None:
    """Lets Python interpret compiled loops whose machine code is not on disk, up to `seconds` for
    each loop. Those that may run long in one call are compiled all the same.
    """
    global _patience
    _patience = seconds


def has_numba() -> bool:
    """Whether this process has imported numba."""
    return "numba" in sys.modules


def jit(function: Callable[..., Any]) -> CompiledLoop:
    """Decorator: numba compiles the function at its first call, and caches machine code on disk."""
    return CompiledLoop(function, cache=True)


def loop(function: Callable[..., Any], *, long: bool = False) -> _StoredLoop:
    """Decorator that compiles a function over arrays with numba, or loads its machine code from
    disk. Its arguments are arrays, numbers and NamedTuples of them; it returns nothing, a number or
    a tuple of numbers. Python never interprets one that is `long`, whose calls may take long.
    """
    return _StoredLoop(function, long=long, no_cpython_wrapper=True, _nrt=False)


def inner(function: Callable[..., Any]) -> CompiledLoop:
    """Decorator like `loop`, for helpers of compiled loops; calls from Python are interpreted."""
    return _Inner(function, no_cpython_wrapper=True, _nrt=False)
