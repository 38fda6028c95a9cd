"""Numbers of converts, and of slices of them, whatever bitcasts and transposes come before.

A convert is elementwise, so the array before bitcasts and transposes is converted, and these are
applied to the result. A convert to a wider type is exact. Any other may round, and the code that
computes it is part of its number (`Numbering.code`).
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
"""(from, to) element types, of f16, bf16, f32 and f64, between which a convert is exact."""

_FLOATS = frozenset({10, 11, 12, 16})


def convert_of(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes | None:
    """The number of a convert's result; None if no rule applies, and it is numbered plainly."""
    if (found := narrowed(numbering, number, new)) is not None:
        return found
    if is_wider(old, new):
        return widened(numbering, number, old, new)
    return rounded(numbering, number, old, new)


def converted(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes:
    """The number of a value that an instruction other than a convert converts."""
    found = convert_of(numbering, number, old, new)
    if found is None:
        found = _plain(numbering, number, new)
        numbering.note_computed(found)
    return found


def is_wider(old: Shape, new: Shape) -> bool:
    """Whether a convert to the other element type is exact."""
    return (old.element_type, new.element_type) in _WIDER


def rounded(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes | None:
    """The number of a convert that may round; None if layouts differ or a type is no float."""
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
    """The number outside a fusion of what its code computes."""
    result = hashed(code + number)
    if number in numbering.rounded:
        numbering.rounded[result] = numbering.rounded[number]._replace(code=code)
    return result


def widened(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes:
    """The number of a convert to a wider type."""

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = _plain(numbering, number, new)
        numbering.widened[result] = number, old, new
        numbering.note_moved(number, result)
        return result

    return _behind_moves(numbering, number, old, new, made)


def narrowed(numbering: ElementNumbering, number: bytes, new: Shape) -> bytes | None:
    """The value before a convert to a wider type, moved alike, if of the new type; else None."""
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
    """The number of one slice of a convert's result; None where `number` is not one.

    Args:
      numbering: of the module. number: of the array. at: of the index. axis: dimension sliced.
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
    """The number of an elementwise convert, whatever the layout."""
    shape = numbering.shape(row_major(new))
    return hashed(hashed(SHAPED + b"convert" + shape) + END + number)


def _behind_moves(
    numbering: ElementNumbering,
    number: bytes,
    old: Shape,
    new: Shape,
    made: Callable[[bytes, Shape, Shape], bytes],
) -> bytes:
    """Applies `made` to the array before bitcasts and transposes, and these to the result."""
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
