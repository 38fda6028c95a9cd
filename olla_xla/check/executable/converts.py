"""What converts make of arrays, wherever these were moved to before, and what a slice of that is.

A convert makes each element of one, so it is said of the array before bitcasts and transposes, and
these of what it makes. One to a wider type loses nothing. Of another one it matters by which code
it is made (`Numbering.code`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hlo.shapes import Shape
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import row_major
from olla_xla.check.executable.numbering import END, SHAPED, hashed
from olla_xla.check.executable.records import Rounded
from olla_xla.check.executable.slice_shapes import one_of
from olla_xla.check.executable.transposes import reordered

__all__ = [
    "converted",
    "convert_of",
    "exposed",
    "is_wider",
    "narrowed",
    "rounded",
    "slice_of_converted",
    "typed",
    "widened",
]

_WIDER = frozenset({(10, 11), (16, 11), (10, 12), (16, 12), (11, 12)})
"""Element types, f16, bf16, f32 and f64, from and to which converting keeps every value."""

_FLOATS = frozenset({10, 11, 12, 16})


def convert_of(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes | None:
    """The number of what a convert gives of one, None if it is nothing but this operation."""
    if (found := narrowed(numbering, number, new)) is not None:
        return found
    if is_wider(old, new):
        return widened(numbering, number, old, new)
    return rounded(numbering, number, old, new)


def converted(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes:
    """The number of a value in another element type, where no instruction of its own says so."""
    found = convert_of(numbering, number, old, new)
    if found is None:
        found = _plain(numbering, number, new)
        numbering.note_computed(found)
    return found


def is_wider(old: Shape, new: Shape) -> bool:
    """Whether each value of one element type is one of the other."""
    return (old.element_type, new.element_type) in _WIDER


def rounded(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes | None:
    """The number of what a convert gives of one, None if it is nothing but this operation."""
    if old.minor_to_major != new.minor_to_major:
        return None
    if not {old.element_type, new.element_type} <= _FLOATS:
        return None

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = _plain(numbering, number, new)
        numbering.rounded[result] = Rounded(b"", number, old, new)
        numbering.note_computed(result)
        return result

    return _behind_moves(numbering, number, old, new, made)


def exposed(numbering: ElementNumbering, number: bytes, code: bytes) -> bytes:
    """What code computes, as others see it."""
    result = hashed(code + number)
    if number in numbering.rounded:
        numbering.rounded[result] = numbering.rounded[number]._replace(code=code)
    return result


def widened(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes:
    """The number of what a convert to a wider type makes of a number."""

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = _plain(numbering, number, new)
        numbering.widened[result] = number, old, new
        numbering.note_moved(number, result)
        return result

    return _behind_moves(numbering, number, old, new, made)


def narrowed(numbering: ElementNumbering, number: bytes, new: Shape) -> bytes | None:
    """What was converted to a wider type, if it was of the new type; moves stay outside."""
    if number in numbering.widened:
        first, before, _ = numbering.widened[number]
        return first if before.element_type == new.element_type else None
    if number in numbering.transposes:
        row, flat, steps = numbering.transposes[number]
        inner = narrowed(numbering, row, new)
        return None if inner is None else reordered(numbering, inner, typed(flat, new), steps)
    if number not in numbering.bitcasts:
        return None
    first, old, made = numbering.bitcasts[number]
    inner = narrowed(numbering, first, new) if old.element_type == made.element_type else None
    return None if inner is None else numbering.cast(inner, typed(old, new), typed(made, new))


def slice_of_converted(
    numbering: ElementNumbering, number: bytes, at: bytes, axis: int
) -> bytes | None:
    """The number of one slice of what a convert gave; None where the number is no such thing.

    Args:
      numbering: of the module. number: of the array. at: of the place. axis: along which.
    """
    if number in numbering.widened:
        operand, old, new = numbering.widened[number]
        part = numbering.taken(operand, at, old, axis)
        return widened(numbering, part, one_of(old, axis), one_of(new, axis))
    if number not in numbering.rounded:
        return None
    code, operand, old, new = numbering.rounded[number]
    part = numbering.taken(operand, at, old, axis)
    old, new = one_of(old, axis), one_of(new, axis)
    is_inside = numbering.is_computed(number)

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = _plain(numbering, number, new)
        result = hashed(code + result) if code else result
        numbering.rounded[result] = Rounded(code, number, old, new)
        if is_inside:
            numbering.note_computed(result)
        return result

    return _behind_moves(numbering, part, old, new, made)


def _plain(numbering: ElementNumbering, number: bytes, new: Shape) -> bytes:
    """The number of a convert of a number: each element's, in whichever layout."""
    shape = numbering.shape(row_major(new))
    return hashed(hashed(SHAPED + b"convert" + shape) + END + number)


def _behind_moves(
    numbering: ElementNumbering,
    number: bytes,
    old: Shape,
    new: Shape,
    made: Callable[[bytes, Shape, Shape], bytes],
) -> bytes:
    """What is made of an array that was only moved, moved as it was."""
    if number in numbering.transposes:
        row, flat, steps = numbering.transposes[number]
        wide = typed(flat, new)
        return reordered(numbering, _behind_moves(numbering, row, flat, wide, made), wide, steps)
    if number in numbering.bitcasts:
        first, began, cast = numbering.bitcasts[number]
        if began.element_type == cast.element_type == old.element_type:
            inner = _behind_moves(numbering, first, began, typed(began, new), made)
            return numbering.cast(inner, typed(began, new), typed(cast, new))
    return made(number, old, new)


def typed(shape: Shape, like: Shape) -> Shape:
    """A shape with the element type of another one."""
    kind, bits = like.element_type, like.element_bits
    return dataclasses.replace(shape, element_type=kind, element_bits=bits, key=b"")
