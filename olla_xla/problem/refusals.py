"""Proposals that a referee refused while a plan was made; the planner goes on without them.

A refusal means a bug in the planner or in the referee, though the step that runs is not affected.
So each is logged (at the level INFO, which Python does not print by default), and tests collect
them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator

__all__ = ["Refusal", "collected", "note"]

_logger = logging.getLogger("olla_xla")

_lock = threading.Lock()
_collecting: list[list[Refusal]] = []


@dataclasses.dataclass(frozen=True)
class Refusal:
    """One proposal of the planner that was refused.

    Attributes:
      what: the proposal. reason: the referee's message.
    """

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} was refused: {self.reason}"


def note(what: str, error: Exception) -> None:
    """Logs a refusal, and adds it to all lists of `collected` in use, of any thread."""
    refusal = Refusal(what, f"{error}" or type(error).__name__)
    _logger.info("%s", refusal)
    with _lock:
        for found in _collecting:
            found.append(refusal)


@contextlib.contextmanager
def collected() -> Iterator[list[Refusal]]:
    """The refusals from here to the end of the block, of this process."""
    found: list[Refusal] = []
    with _lock:
        _collecting.append(found)
    try:
        yield found
    finally:
        with _lock:
            # By identity: lists in use at the same time may be equal.
            _collecting[:] = [other for other in _collecting if other is not found]
