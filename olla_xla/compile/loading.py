"""Loads the planner while others wait for something else: Python for a model, XLA for a schedule.

It begins as a function is decorated, with what needs no compiler, and is done with before XLA has a
schedule; after a fresh installation what is to be compiled begins with the first large step.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading

__all__ = ["begin", "finish", "planner", "what"]

_FIRST = "compiling the planner's loops, once after installation"

_logger = logging.getLogger("olla_xla")


def begin(compile: bool = False) -> None:
    """Starts to load the planner, in a thread of its own, once in a process.

    An error shows where what is loaded is used.

    Args:
      compile: also compile loops that no earlier process left on disk.
    """
    _thread(compile)


def planner():
    """The package `olla_xla.planner`, which takes numba with it: not needed until a plan is."""
    import olla_xla.planner

    return olla_xla.planner


def what() -> str:
    """What loading does: the first time after installation it compiles the planner's loops."""
    loops = importlib.import_module("olla_xla.memory.lifetimes").live_spans
    return "loading" if loops.is_kept else _FIRST


def finish() -> None:
    """Loads all that there is to load, or waits for that."""
    _thread(compile=True).join()


@functools.cache
def _thread(compile: bool) -> threading.Thread:
    # Not a daemon: a process must not end amid compiled loops being loaded.
    thread = threading.Thread(target=_load, args=(compile,), name="olla_xla loading")
    # A child that is forked meanwhile would wait for locks of imports that nobody releases.
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
