"""What the body of a loop makes of its state in one of its iterations, after the loop was numbered.

The body is numbered again, with a number for the iteration in place of the counter's. Every other
element that changes gets one of its own number and the iteration's. These two decide what the
element is then, as its own number says all equations that it depends on (`loops`). Arrays whose
slices are another loop's iterations (`checkpoints`) get numbers by which it is known whose their
slices are.
"""

from __future__ import annotations

from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.records import Held, Loop, Tracked

__all__ = ["ARRAY", "follow", "note_counter"]

ARRAY = hashed(b"array")
"""What the numbers of such arrays begin with, before they are hashed."""


def follow(numbering: ElementNumbering, loop: Loop, iteration: bytes, form: Form) -> Numbers | None:
    """What the body makes of the state in an iteration; None while that is being found out.

    Args:
      numbering: of the module. loop: the loop. iteration: number of the iteration. form: of that.
    """
    root = loop.runs.get(iteration)
    if root is None:
        if loop.is_followed:
            return None  # it reads what has the number of a scan residual of its own
        given = loop.state(iteration)
        if loop.tracked is not None:
            given |= _arrays(numbering, loop.tracked, iteration, form)
        loop.is_followed = True
        root = loop.runs[iteration] = numbering.apart(loop.body, given)
        loop.is_followed = False
    return root


def _arrays(numbering: ElementNumbering, tracked: Tracked, iteration: bytes, form: Form) -> Numbers:
    """Numbers of the arrays in one iteration, which has a number and is of a form."""
    numbers = {i: hashed(ARRAY + n + iteration) for i, n in tracked.names.items()}
    if form.symbol is not None:
        for i, held in tracked.arrays.items():
            numbering.held[numbers[i]] = Held(held.kept, held.taken, {form.symbol: form})
    return numbers


def note_counter(numbering: ElementNumbering, tracked: Tracked, symbol: bytes) -> None:
    """Says that a symbol counts the iterations of the loop that changes the arrays."""
    for i, held in tracked.arrays.items():
        held.counted[symbol] = Form(symbol, 1, 0)
        numbering.held[tracked.names[i]] = held
