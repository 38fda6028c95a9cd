"""Numbers of converts, and of slices of them, whatever bitcasts and transposes come before.

A convert is elementwise, so the array before bitcasts and transposes is converted, and these are
applied to the result. A convert to a wider type is exact. Any other may round, and the code that
computes it is part of its number (`Numbering.code`).
"""

from collections.abc import Callable

from hlo.shapes import Shape
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import as_row, row_major, typed
from olla_xla.check.executable.numbering import END, SHAPED, hashed
from olla_xla.check.executable.records import Digit, Rounded

_WIDER = frozenset({(10, 11), (16, 11), (10, 12), (16, 12), (11, 12)})
"""(from, to) element types, of f16, bf16, f32 and f64, between which a convert is exact."""

_FLOATS = frozenset({10, 11, 12, 16})


def convert_of(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes | None:
    """Value number of a convert of value `number` from shape `old` to `new`.

    None if no rule here applies: for types other than floats of 16 bits or more, or for one that
    may round and changes the layout. What was widened and is narrowed again has its first number.
    """
    if (original := narrowed(numbering, number, new)) is not None:
        return original
    if is_wider(old, new):
        return widened(numbering, number, old, new)
    return rounded(numbering, number, old, new)


def converted(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes:
    """Value number of an implicit convert of value `number`: by `convert_of`, else a plain hash."""
    new_number = convert_of(numbering, number, old, new)
    if new_number is None:
        new_number = _plain(numbering, number, new)
        numbering.note_computed(new_number)
    return new_number


def is_wider(old: Shape, new: Shape) -> bool:
    """Whether a convert from `old`'s element type to `new`'s is to a wider float, and so exact."""
    return (old.element_type, new.element_type) in _WIDER


def rounded(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes | None:
    """Returns, and records, the value number of a convert that may round.

    None if one of the types is no float of 16 bits or more, or if the layouts differ.
    """
    if old.minor_to_major != new.minor_to_major:
        return None
    if not {old.element_type, new.element_type} <= _FLOATS:
        return None

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = _plain(numbering, number, new)
        numbering.note_term(result, _again, (old, new), number)
        numbering.rounded[result] = Rounded(b"", number, old, new)
        numbering.note_computed(result)
        return result

    return _behind_moves(numbering, number, old, new, made)


def _again(numbering: ElementNumbering, shapes: tuple[Shape, Shape], number: bytes) -> bytes:
    """Recomputes a recorded convert's value number for another operand; `shapes`: (old, new)."""
    new_number = convert_of(numbering, number, *shapes)
    assert new_number is not None  # that depends on the shapes alone
    return new_number


def exposed(numbering: ElementNumbering, number: bytes, code: bytes) -> bytes:
    """Value number of result `number` outside of its fusion: hashed with the fusion's code.

    `code`, a hash of the code, may decide how a result is rounded. A convert stays recorded as one.
    """
    if (inner := numbering.rounded.get(number)) is not None and not inner.code:
        return _rounded_by(numbering, (inner.old, inner.new), code, inner.operand)
    result = numbering.coded(code, number)
    if inner is not None:
        numbering.rounded[result] = inner._replace(code=code)
    return result


def _rounded_by(
    numbering: ElementNumbering, shapes: tuple[Shape, Shape], code: bytes, number: bytes
) -> bytes:
    """Value number of a convert of value `number`, of `shapes` (old, new), in a fusion.

    The fusion's code (`code`: a hash of it) may decide how it is rounded. Bitcasts and transposes
    of the operand are numbered as if they came after the convert.
    """
    if (original := narrowed(numbering, number, shapes[1])) is not None:
        return original

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = numbering.term(code, _plain(numbering, number, new))
        numbering.note_term(result, _rounded_by, (old, new), code, number)
        numbering.rounded[result] = Rounded(code, number, old, new)
        return result

    return _behind_moves(numbering, number, *shapes, made)


def widened(numbering: ElementNumbering, number: bytes, old: Shape, new: Shape) -> bytes:
    """Value number of a convert of value `number` to a wider type, which is exact; records it."""

    def made(number: bytes, old: Shape, new: Shape) -> bytes:
        result = _plain(numbering, number, new)
        numbering.note_term(result, _again, (old, new), number)
        numbering.widened[result] = number, old, new
        numbering.note_moved(number, result)
        return result

    return _behind_moves(numbering, number, old, new, made)


def narrowed(numbering: ElementNumbering, number: bytes, new: Shape) -> bytes | None:
    """Undoes a convert to a wider type: returns the value number of what was converted.

    None if `number` is not a widened value, or that had another type before than `new` has.
    Bitcasts and transposes after the widening are applied to what is returned.
    """
    if number in numbering.widened:
        first, before, _ = numbering.widened[number]
        return first if before.element_type == new.element_type else None
    if number not in numbering.moves:
        return None
    move = numbering.moves[number]
    inner = narrowed(numbering, move.base, new)
    return None if inner is None else numbering.rearranged(inner, move, new)


def slice_of_converted(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit
) -> bytes | None:
    """Value number of one slice of a convert's result, flattened; None if `number` is no convert's.

    `number`, `at`: value numbers of the array and the index. `digit`: (count, stride in elements)
    of the sliced dimension, in row-major order.
    """

    def part_of(operand: bytes, shape: Shape, new: Shape) -> tuple[bytes, Shape, Shape]:
        part = as_row(shape, shape.num_elements // digit[0])
        return numbering.taken(operand, at, shape, digit), part, typed(part, new)

    if number in numbering.widened:
        return widened(numbering, *part_of(*numbering.widened[number]))
    if number not in numbering.rounded:
        return None
    code, operand, old, new = numbering.rounded[number]
    part, old, new = part_of(operand, old, new)
    if not code:
        return _again(numbering, (old, new), part)
    result = _rounded_by(numbering, (old, new), code, part)
    numbering.note_moved(number, result)
    return result


def _plain(numbering: ElementNumbering, number: bytes, new: Shape) -> bytes:
    """Value number of a convert of value `number`: a hash of it and of `new`'s type and extents."""
    shape = numbering.shape(row_major(new))
    return numbering.term(hashed(SHAPED + b"convert" + shape), END, number)


def _behind_moves(
    numbering: ElementNumbering,
    number: bytes,
    old: Shape,
    new: Shape,
    made: Callable[[bytes, Shape, Shape], bytes],
) -> bytes:
    """Numbers a convert as if done before the bitcasts and transposes that made array `number`.

    `made(number, old, new)` numbers that convert; they are then applied to its result.
    """
    if number in numbering.moves:
        move = numbering.moves[number]
        wide = typed(move.shape, new)
        inner = _behind_moves(numbering, move.base, move.shape, wide, made)
        return numbering.rearranged(inner, move, new)
    return made(number, old, new)
