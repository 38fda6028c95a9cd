"""Which values a fusion computes itself, and their numbers outside it.

A fusion's rounding may depend on the code that XLA makes of it, so values that it computes are
numbered with that code. Values that it only moves, or computes with the same bits in any code, are
not its own. In an elementwise fusion the code is hashed into elements, wherever these are put.
"""

from __future__ import annotations

from olla_xla.check.executable.converts import exposed, narrowed, widened
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import permuted
from olla_xla.check.executable.exact import is_whole
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.program import Body, Op

_PUT = hashed(b"put")

_PASSING = frozenset(
    "bitcast copy tuple get-tuple-element opt-barrier optimization-barrier domain".split()
)
"""Opcodes whose result's elements are those of their operands."""

_MOVING = frozenset(
    "broadcast concatenate constant dynamic-slice dynamic-update-slice iota reshape reverse slice "
    "transpose".split()
)
"""Opcodes that compute nothing: the bits are the same in any code."""

_EACH = frozenset(
    "abs add and atan2 bitcast-convert cbrt ceil clamp clz compare convert cosine divide erf "
    "exponential exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum "
    "multiply negate not or pad parameter popcnt power reduce-precision remainder "
    "round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sqrt subtract tan tanh xor".split()
)
"""Opcodes that compute each element of their result independently of the others."""


def note_own(
    numbering: ElementNumbering, op: Op, read: list[Numbers], result: Numbers, own: set[bytes]
) -> None:
    """Adds an operation's results to `own` if their bits may depend on the code of its fusion.

    `read`, `result`: value numbers of its operands and its results. `own`: such values so far:
    the fusion computes them, and not exactly, as it would a sum of integers; or moves such ones.
    """
    if op.opcode in _PASSING or (op.opcode == "reduce-precision" and result == read[0]):
        return
    if op.opcode in _MOVING:
        if not any(n in own for numbers in read for n in numbers.values()):
            return
        if op.opcode == "slice" and _is_handed_on(numbering, read[0], result):
            return
    elif is_whole(op) and not any(n in own for numbers in read for n in numbers.values()):
        return
    elif op.opcode == "convert":
        (number,), (before,) = result.values(), read[0].values()
        is_narrowed = narrowed(numbering, before, op.shape) == number
        if is_narrowed or (numbering.unmoved(number) in numbering.widened and before not in own):
            return
    elif all(map(numbering.integers.is_known, result.values())):
        return
    given = {n for numbers in read for n in numbers.values()}  # as of a nested fusion that copies
    own.update(n for n in result.values() if n not in given)


def _is_handed_on(numbering: ElementNumbering, whole: Numbers, result: Numbers) -> bool:
    """Whether `result`, a slice of `whole`, is an operand of the concatenate that `whole` is."""
    ((number,), (part,)) = whole.values(), result.values()
    made = numbering.concatenations.get(number)
    return made is not None and part in made.numbers


def is_elementwise(body: Body) -> bool:
    """Whether all operations of a fused computation are elementwise or only move elements."""
    return all(
        op.opcode in _EACH or op.opcode in _MOVING or op.opcode in _PASSING for op in body.ops
    )


def from_outside(numbering: ElementNumbering, number: bytes, code: bytes, own: set[bytes]) -> bytes:
    """Value number that a result of an elementwise fusion has outside of it.

    The code is hashed into the elements that the fusion computes; moves of them are numbered after
    that, so that the number does not depend on where the fusion puts them. `number`: of the result
    inside. `code`: hash of the fusion's code. `own`: numbers that the fusion computes.
    """

    def seen(number: bytes) -> bytes:
        return from_outside(numbering, number, code, own)

    if number not in own:
        return number
    if number in numbering.moves:
        move = numbering.moves[number]
        return numbering.rearranged(seen(move.base), move)
    if number in numbering.casts:
        row, old, new = numbering.casts[number]
        return numbering.retyped(seen(row), old, new)
    if number in numbering.widened:
        first, old, new = numbering.widened[number]
        return widened(numbering, seen(first), old, new)
    if number in numbering.in_slices:
        flat, rows = numbering.in_slices[number]
        return numbering.of_slices(flat, list(map(seen, rows)))
    if number in numbering.updates:
        update = numbering.updates[number]
        return numbering.updated(update._replace(numbers=tuple(map(seen, update.numbers))))
    if number in numbering.concatenations:
        whole = numbering.concatenations[number]
        return numbering.joined(whole._replace(numbers=tuple(map(seen, whole.numbers))))
    return exposed(numbering, number, code)


def put(numbering: ElementNumbering, number: bytes, code: bytes, own: set[bytes]) -> bytes:
    """Value number that a result of a fusion that is not elementwise has outside of it.

    Where the result is a dynamic-update-slice, a GPU's code computes the elements of the update,
    whatever the array's extents (XLA's emitter of in-place dynamic-update-slices). A TPU's code
    computes one window after the other, each for all results that it is part of. A CPU's may run
    over the whole array, so that its vectors depend on the array's extents and on the place.

    `number`: of the result inside. `code`: hash of the code. `own`: numbers that it computes.
    """
    if number not in own:
        return number
    update = numbering.updates.get(number)
    if update is None:
        if number in numbering.moves and numbering.moves[number].base in numbering.updates:
            move = numbering.moves[number]
            return numbering.rearranged(put(numbering, move.base, code, own), move)
        if numbering.is_tpu:
            return _window(numbering, False, code, number)
        return numbering.coded(code, number)
    array, value, *indices = update.numbers
    if array in own or not own.isdisjoint(indices):
        return numbering.coded(code, number)
    if numbering.is_cpu:
        made = numbering.term(code, _PUT, update.made, value, *indices)
    elif numbering.is_tpu:
        made = _window(numbering, True, code, value)
    elif numbering.unmoved(value) in numbering.updates:  # a part of the slice that it replaces
        made = put(numbering, value, code, own)
    else:
        made = _window(numbering, True, numbering.term(code, _PUT), value)
    return numbering.updated(update._replace(numbers=(array, made, *indices)))


def _window(numbering: ElementNumbering, is_put: bool, code: bytes, value: bytes) -> bytes:
    """Value number of what a fusion computes as `value`: hashed with the fusion's code.

    A reordering of the value's elements is numbered after that: any one if the fusion puts the
    value into an array (`is_put`), else only a change of extents.
    """
    if numbering.integers.is_known(value):
        return value
    move = numbering.moves.get(value)
    if move is not None and (is_put or move.steps == permuted(move.shape)):
        return numbering.rearranged(_window(numbering, is_put, code, move.base), move)
    made = numbering.term(code, value)
    numbering.note_term(made, _window, is_put, code, value)
    return made
