"""What a referee refused while a plan was made: the planner goes on without it, and it is counted.

A planner proposes what it believes to be right. A referee's refusal is a fault of one of the two,
though the step that runs is none the worse for it; so each is logged for who looks for it (at the
level INFO, which Python does not print by itself), and whoever tests collects them.
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
      what: was proposed. reason: what was said against it.
    """

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what} was refused: {self.reason}"


def note(what: str, error: Exception) -> None:
    """Logs a refusal, and hands it to all that collect them, in whatever thread it came up."""
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
            # By identity: two that are equal may be empty both.
            _collecting[:] = [other for other in _collecting if other is not found]
