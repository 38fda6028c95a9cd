"""Selects choices of scan residuals to recompute: free ones, or for a budget or an allowance."""

from collections.abc import Callable, Iterator

from hlo.module import HloError
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError, PlanMismatchError
from olla_xla.problem import refusals
from olla_xla.remat.loops.residual_choices import ResidualChoice, ResidualChoices

_HOPE = 1.25
"""A choice is ordered anew if its total in XLA's order is at most this many times the budget."""

_NEAR = 0.01
"""Choices count as equally fast whose times differ by less than this part of the fastest's gain."""

TRIES = 3
"""Choices that are ordered anew."""


def free(choices: ResidualChoices) -> ResidualChoice | None:
    """The choice that recomputes scan residuals at no added time and saves memory; None if none.

    Free are scan residuals that duplicate another one, those that nothing reads, and those whose
    slices take longer to write and to read than to compute again. If none of these saves memory of
    the device, some may save copies to the host's: of the fastest, the one of the lowest total.
    """
    written = [_if_possible(choices.choice, k) for k in range(choices.free)]
    kept = [choice for choice in written if choice is not None and choice.seconds <= 0]
    every = sorted(kept, key=lambda r: r.seconds)
    candidates = [choice for choice in every if choice.total < choices.total]
    if not candidates and (hosted := [c for c in every if choices.leaves_host(c)]):
        fast = [c for c in hosted if c.seconds <= (1 - _NEAR) * hosted[0].seconds]
        candidates = sorted(fast, key=lambda r: r.total)
    return next((choice for choice in candidates if is_right(choices, choice)), None)


def lowest(choices: ResidualChoices, allowance: float) -> ResidualChoice | None:
    """The last choice without checkpointed loops, which keeps few bytes of scan residuals; None if
    there is none, it cannot be written, or it adds more than `allowance` seconds.
    """
    choice = _if_possible(choices.choice, choices.thin - 1) if choices.thin else None
    return choice if choice is not None and choice.path_seconds <= allowance else None


def to_try(
    choices: ResidualChoices, budget: int | None, allowance: float | None
) -> Iterator[tuple[ResidualChoice, bool]]:
    """Yields the most promising choices, best first: (choice, if it was added for a low total).

    For a budget, the cheapest come first, the integer program's that meets it in XLA's order too.
    Under an allowance the integer program's choice for it is among them; without a budget it comes
    first, and the one without new residuals second. Choices of low total come last.
    """

    def allowed(k: int) -> ResidualChoice | None:
        choice = _if_possible(choices.choice, k)
        if choice is None or (allowance is not None and choice.path_seconds > allowance):
            return None
        return choice

    hopeful: list[ResidualChoice] = []
    fewest = None if allowance is None else _if_possible(choices.within, allowance)
    if budget is None:
        plain = None if choices.plain is None or fewest is None else allowed(choices.plain)
        for choice in (fewest, plain):
            if choice is not None and all(choice.records != other.records for other in hopeful):
                hopeful.append(choice)
                yield choice, False
    last = next((k for k in reversed(range(len(choices))) if allowed(k) is not None), -1)
    if budget is not None:
        for k in range(last):
            choice = allowed(k)
            if choice is not None and choice.total <= _HOPE * budget and len(hopeful) < TRIES - 1:
                hopeful.append(choice)
        meeting = _if_possible(choices.meeting, budget)
        if meeting is not None and (allowance is None or meeting.path_seconds <= allowance):
            others = [c for c in hopeful if c.records != meeting.records]
            hopeful = sorted([*others, meeting], key=lambda c: c.path_seconds)
        yield from ((choice, False) for choice in hopeful)
        if fewest is not None and all(fewest.records != other.records for other in hopeful):
            hopeful.append(fewest)
            yield fewest, False
    for k in _lowest_first(choices, last):  # the next only where the referee refuses the one before
        choice = allowed(k)
        if choice is not None and all(choice.records != other.records for other in hopeful):
            yield choice, True


def _lowest_first(choices: ResidualChoices, last: int) -> list[int]:
    """Numbers of the choices up to `last` by their totals, the lowest first. A choice that keeps
    fewer bytes of residuals may need more inside an iteration that recomputes them. Choices are
    looked at from the last down; one is skipped if its total would not be lower even with all its
    dropped bytes saved.
    """
    totals: list[tuple[int, int]] = []
    for k in reversed(range(last + 1)):
        if totals and choices.total - choices.gone(k) >= min(totals)[0]:
            continue
        choice = _if_possible(choices.choice, k)
        if choice is not None:
            totals.append((choice.total, last - k))
    return [last - k for _, k in sorted(totals)]


def _if_possible[Given](
    write: Callable[[Given], ResidualChoice | None], given: Given
) -> ResidualChoice | None:
    """Returns `write(given)`; None, with a note of it, if the module cannot be changed so."""
    try:
        return write(given)
    except (HloError, PlanMismatchError) as error:
        refusals.note("a change of loops that cannot be written", error)
        return None


def is_right(choices: ResidualChoices, choice: ResidualChoice) -> bool:
    """Whether the independent check accepts a choice of scan residuals; counted in `refusals`."""
    try:
        check_rewrite(choices.module.data, choice.module.data, choices.target, loops=True)
        check_executable(choice.module.data, choices.target)
    except CheckError as error:
        refusals.note("a change of loops", error)
        return False
    refusals.accepted()
    return True
