"""Loads the planner in a thread, while Python builds a model or XLA makes a schedule.
Loading begins when a function is decorated, with what needs no compilation, and usually ends before
XLA has a schedule. After a fresh installation loops are compiled, from the first large step on;
those that a small step needs take Python less time than it takes to compile them.
"""

import functools
import importlib
import logging
import os
import threading

from olla_xla.memory.jit import interpret

_FEW, _PATIENCE = 500, 0.2  # operations of StableHLO; seconds

_FIRST = "compiling olla_xla's inner loops (once after installation)"

_logger = logging.getLogger("olla_xla")


def begin(compile: bool = False) -> None:
    """Starts to import the planner in a background thread, once a process for either `compile`:
    whether also to compile its loops (by numba) that are not on disk from an earlier process.
    """
    _thread(compile)


def planner():
    """Imports and returns the package `olla_xla.planner`, which takes a while."""
    import olla_xla.planner

    return olla_xla.planner


def is_needed(operations: int) -> bool:
    """Whether planning a step of so many StableHLO operations waits for the planner's inner loops:
    not if the step is small and numba would have to compile them first. Also sets for how long
    Python may interpret such loops: not at all for a large step.
    """
    few = operations <= _FEW
    interpret(_PATIENCE if few else 0.0)
    return not few or what() != _FIRST


def what() -> str:
    """Says for users what loading does: "loading", or that it compiles the planner's loops."""
    loops = importlib.import_module("olla_xla.memory.lifetimes").live_spans
    return "loading" if loops.is_kept else _FIRST


def finish() -> None:
    """Imports the planner and compiles its loops in a thread, and waits; errors are only logged."""
    _thread(compile=True).join()


@functools.cache
def _thread(compile: bool) -> threading.Thread:
    # Not a daemon: a process must not end while compiled loops are being loaded.
    thread = threading.Thread(target=_load, args=(compile,), name="olla_xla loading")
    # A child forked meanwhile would wait for import locks that no thread of it releases.
    os.register_at_fork(before=functools.partial(_wait, thread))
    thread.start()
    return thread


def _load(compile: bool) -> None:
    try:
        warm_up = importlib.import_module("olla_xla.planner.warm_up")
        warm_up.loaded() if compile else warm_up.load_kept()
    except Exception as error:
        _logger.debug("loading the planner failed", exc_info=error)


def _wait(thread: threading.Thread) -> None:
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join()
