"""What a loop's body computes in one of its iterations, after the loop was numbered.

The body is numbered again, with the iteration's number in place of the counter's. The number of any
other element that changes is hashed from the element's own number and the iteration's. These
determine its value, since its own number covers all equations that it depends on (`loops`).
Checkpoint arrays (`checkpoints`) get numbers for which the iterations of their slices are recorded.
"""

from __future__ import annotations

from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.records import Held, Loop, Tracked

ARRAY = hashed(b"array")
"""Prefix of the bytes that a checkpoint array's number is hashed from."""


def follow(numbering: ElementNumbering, loop: Loop, iteration: bytes, form: Form) -> Numbers | None:
    """Numbers of the body's results in an iteration; None while the body is being numbered.

    Args:
      numbering: of the module. loop: the loop. iteration: its number. form: of the iteration.
    """
    root = loop.runs.get(iteration)
    if root is None:
        if loop.is_followed:
            return None  # the body reads a value with the number of this loop's own scan residual
        given = loop.state(iteration)
        if loop.tracked is not None:
            given |= _arrays(numbering, loop.tracked, iteration, form)
        loop.is_followed = True
        root = loop.runs[iteration] = numbering.apart(loop.body, given)
        loop.is_followed = False
    return root


def _arrays(numbering: ElementNumbering, tracked: Tracked, iteration: bytes, form: Form) -> Numbers:
    """Numbers of the arrays in one iteration, given by its number and its form."""
    numbers = {i: hashed(ARRAY + n + iteration) for i, n in tracked.names.items()}
    if form.symbol is not None:
        for i, held in tracked.arrays.items():
            numbering.held[numbers[i]] = Held(held.kept, held.taken, {form.symbol: form})
    return numbers


def note_counter(numbering: ElementNumbering, tracked: Tracked, symbol: bytes) -> None:
    """Records a symbol that counts the iterations of the loop that changes the arrays."""
    for i, held in tracked.arrays.items():
        held.counted[symbol] = Form(symbol, 1, 0)
        numbering.held[tracked.names[i]] = held
