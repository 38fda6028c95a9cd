"""What a fusion computes itself, and what of that others see.

A fusion may round by the code that XLA makes of it, so that what it computes counts with that code.
What it only moves, or computes in the same bits by whatever code, is not its own. Where all of it
is computed element by element, the code counts for the elements, wherever the fusion puts them.
"""

from __future__ import annotations

from olla_xla.check.executable.converts import exposed, narrowed, widened
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.exact import divides
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.program import Body, Op
from olla_xla.check.executable.transposes import reordered

__all__ = ["from_outside", "is_elementwise", "note_own", "put"]

_PUT = hashed(b"put")

_PASSING = frozenset(
    "bitcast copy tuple get-tuple-element opt-barrier optimization-barrier domain".split()
)
"""Opcodes whose result's elements are those of their operands."""

_MOVING = frozenset(
    "broadcast concatenate constant dynamic-slice dynamic-update-slice iota reshape reverse slice "
    "transpose".split()
)
"""Opcodes that compute nothing: whoever runs them, the bits are the same."""

_EACH = frozenset(
    "abs add and atan2 bitcast-convert cbrt ceil clamp clz compare convert cosine divide erf "
    "exponential exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum "
    "multiply negate not or pad parameter popcnt power reduce-precision remainder "
    "round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sqrt subtract tan tanh xor".split()
)
"""Opcodes that compute every element of their result for itself."""

_EXACT = frozenset(
    "abs add and clamp compare convert maximum minimum multiply negate not or select sign subtract "
    "xor".split()
)
_WHOLE = frozenset(range(1, 10))
"""Opcodes that round nothing where all they read and give is of these types: integers and pred."""


def note_own(
    numbering: ElementNumbering, op: Op, read: list[Numbers], result: Numbers, own: set[bytes]
) -> None:
    """Notes what an operation inside a fusion computes, if it does not only move.

    Args:
      numbering: of the module. op: the operation. read: numbers of its operands.
      result: its own. own: gets the numbers of what the fusion computes itself.
    """
    if op.opcode in _PASSING or (op.opcode == "reduce-precision" and result == read[0]):
        return
    if op.opcode in _MOVING:
        if not any(n in own for numbers in read for n in numbers.values()):
            return
        if op.opcode == "slice" and _is_handed_on(numbering, read[0], result):
            return
    elif _is_exact(op) and not any(n in own for numbers in read for n in numbers.values()):
        return
    elif op.opcode == "convert":
        (number,), (before,) = result.values(), read[0].values()
        is_narrowed = narrowed(numbering, before, op.shape) == number
        if is_narrowed or (numbering.unmoved(number) in numbering.widened and before not in own):
            return
    elif all(n in numbering.comparisons or numbering.integers.form(n) for n in result.values()):
        return
    own.update(result.values())


def _is_handed_on(numbering: ElementNumbering, whole: Numbers, result: Numbers) -> bool:
    """Whether a slice gives just what a concatenation was given."""
    ((number,), (part,)) = whole.values(), result.values()
    made = numbering.concatenations.get(number)
    return made is not None and part in made.numbers


def _is_exact(op: Op) -> bool:
    """Whether it gives the same bits by whatever code it is computed."""
    kinds = (o.shape.element_type for o in (op, *op.operands))
    return (op.opcode in _EXACT or divides(op)) and all(kind in _WHOLE for kind in kinds)


def is_elementwise(body: Body) -> bool:
    """Whether a fused computation has nothing that depends on how its code is arranged."""
    return all(
        op.opcode in _EACH or op.opcode in _MOVING or op.opcode in _PASSING for op in body.ops
    )


def from_outside(numbering: ElementNumbering, number: bytes, code: bytes, own: set[bytes]) -> bytes:
    """The number that others see of what an elementwise fusion gives, wherever it puts that.

    Args:
      numbering: of the module. number: of what it gives, as it is inside. code: number of its code.
      own: numbers of what it computes itself.
    """

    def seen(number: bytes) -> bytes:
        return from_outside(numbering, number, code, own)

    if number not in own:
        return number
    if number in numbering.bitcasts:
        first, old, new = numbering.bitcasts[number]
        return numbering.cast(seen(first), old, new)
    if number in numbering.widened:
        first, old, new = numbering.widened[number]
        return widened(numbering, seen(first), old, new)
    if number in numbering.transposes:
        row, flat, steps = numbering.transposes[number]
        return reordered(numbering, seen(row), flat, steps)
    if number in numbering.updates:
        update = numbering.updates[number]
        return numbering.updated(update._replace(numbers=tuple(map(seen, update.numbers))))
    if number in numbering.concatenations:
        whole = numbering.concatenations[number]
        return numbering.joined(whole._replace(numbers=tuple(map(seen, whole.numbers))))
    return exposed(numbering, number, code)


def put(numbering: ElementNumbering, number: bytes, code: bytes, own: set[bytes]) -> bytes:
    """The number that others see of what a fusion on a GPU or a TPU gives that is not elementwise.

    Where it puts what it computes into an array, a GPU's code goes over the elements that are put
    and computes each, whatever extents the array has (XLA's emitter of dynamic-update-slices in
    place). A TPU's makes one window after the other, for all results that it is part of.

    Args:
      numbering, number, code, own: as for `from_outside`.
    """
    if number not in own:
        return number
    if number in numbering.bitcasts:
        first, old, new = numbering.bitcasts[number]
        if first in numbering.updates:
            return numbering.cast(put(numbering, first, code, own), old, new)
    update = numbering.updates.get(number)
    if update is None:
        return hashed(code + number)
    array, value, *indices = update.numbers
    if array in own or not own.isdisjoint(indices):
        return hashed(code + number)
    if not numbering.is_tpu:
        made = hashed(code + _PUT + value)
    elif value in numbering.bitcasts:
        first, old, new = numbering.bitcasts[value]
        made = numbering.cast(hashed(code + first), old, new)
    else:
        made = hashed(code + value)
    return numbering.updated(update._replace(numbers=(array, made, *indices)))
