"""Counts the planner's proposals that a referee (a checker) refused; planning goes on without them.

A refusal means a bug in the planner or in the referee, though the step that runs is not affected.
So each is logged (at the level INFO, which Python does not print by default) and counted in the
plan (`Plan.proposed`, `Plan.refused`); tests and benchmarks fail on it.
"""

import contextlib
import contextvars
import dataclasses
import logging
from collections.abc import Iterator

_logger = logging.getLogger("olla_xla.refusals")


@dataclasses.dataclass
class Tally:
    """Counts of the planner's proposals (changed modules, solvers' orders) for one plan.

    Attributes:
      accepted: number of proposals that the referee, which checks them, accepted.
      errors: why the others were refused, an error for each.
    """

    accepted: int = 0
    errors: list[Exception] = dataclasses.field(default_factory=list)

    @property
    def proposed(self) -> int:
        """How many changes were proposed to the referee, accepted or refused."""
        return self.accepted + len(self.errors)


_tally: contextvars.ContextVar[Tally | None] = contextvars.ContextVar("tally", default=None)


@contextlib.contextmanager
def counted() -> Iterator[Tally]:
    """Context manager that gives a Tally of proposals accepted and refused within its block."""
    tally = Tally()
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)


def accepted() -> None:
    """Counts an accepted proposal in the Tally of the enclosing `counted` block, if any."""
    if (tally := _tally.get()) is not None:
        tally.accepted += 1


def note(what: str, error: Exception) -> None:
    """Logs a refused proposal, `what`, and counts it in the enclosing `counted` block, if any.

    There, an error that is noted again, as the same proposal was asked for again, is ignored.
    """
    if (tally := _tally.get()) is not None:
        if any(error is known for known in tally.errors):
            return
        tally.errors.append(error)
    _logger.info("%s was refused: %s", what, f"{error}" or type(error).__name__)
