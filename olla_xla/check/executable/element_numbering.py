"""Base class of the numbering of elements: records of how values were made.

From these (`records`) the number of a slice, a bitcast or a convert of a value follows. This class
keeps them, with what needs nothing else: bitcasts, updates, scalar integers, and the state of the
fusion being numbered. Its one subclass, in `element_expressions`, gives operations their numbers.
Helper modules take this class as their argument, so that imports have no cycle.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from hlo.shapes import Shape
from olla_xla.check.executable.arrays import Alike, several
from olla_xla.check.executable.element_order import (
    as_dimensions,
    as_row,
    composed,
    inverse,
    joined,
    lying,
    permuted,
    places,
    row_major,
    steps_of,
    typed,
    without,
)
from olla_xla.check.executable.integers import Integers
from olla_xla.check.executable.numbering import BITCAST, END, Numbering, hashed
from olla_xla.check.executable.records import (
    Concatenation,
    Cut,
    Digit,
    Move,
    Rounded,
    Steps,
    Term,
    Update,
    WrittenSlices,
    sliced,
)

_MOVED, _SEVERAL, _LATER, _COMPLETE, _TAKEN = (
    hashed(n.encode()) for n in "moved several later complete taken".split()
)
_MOST_PLACES = 1 << 16


class ElementNumbering(Numbering):
    """Value numbering that also records how each value was made, by its number.

    Attributes:
      integers: scalar integers whose values are known.
      updates: by number, the dynamic-update-slice that it is.
      written: slices of arrays that were written at constant indices.
      concatenations: by number, the concatenate that it is.
      repeated: by number, the broadcast that it is: its operand's number, dimensions, both shapes.
      in_slices: by number, the array that it is, all of whose slices are known, one behind the
        other: its flat shape and their numbers.
      moves: by number, the bitcast or transpose that it is, of an array in another order.
      casts: by number, the bitcast of a flat array to another type: its number, both shapes.
      widened: by number, the convert to a wider type: its operand's number, old shape, new shape.
      rounded: by number, the convert that it is, to a type that is not wider.
      cuts: by number, the flattened slice that it is: the array's number, the index's, and (count,
        stride) of the sliced dimension.
      alike: state elements that no iteration of their loop changes -> the array that they are.
      terms: while a loop's body is numbered for all of its iterations (`iterations`): by number,
        how it is made of others; else None.
      depth: how many loops without a known trip count are being numbered.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.integers = Integers()
        self.updates: dict[bytes, Update] = {}
        self.written = WrittenSlices()
        self.in_slices: dict[bytes, tuple[Shape, list[bytes]]] = {}
        self.concatenations: dict[bytes, Concatenation] = {}
        self.repeated: dict[bytes, tuple[bytes, tuple[int, ...], Shape, Shape]] = {}
        self.moves: dict[bytes, Move] = {}
        self.casts: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.widened: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.rounded: dict[bytes, Rounded] = {}
        self.cuts: dict[bytes, Cut] = {}
        self.alike: Alike = {}
        self.terms: dict[bytes, Term] | None = None
        self.depth = 0
        self._fused: set[bytes] | None = None
        """Numbers that the fusion being numbered computes, and does not only move; or None."""

    @abc.abstractmethod
    def taken(self, number: bytes, at: bytes, shape: Shape, digit: Digit) -> bytes:
        """The value number of an array's slice at one index; the slice is flattened, row-major.

        `number`, `at`: value numbers of the array and the index. `shape`: of the array. `digit`:
        (count, stride in elements) of the sliced dimension, as if the array were row-major.
        """

    def term(self, *parts: bytes) -> bytes:
        """The value number of `parts`: the hash of them, joined; recorded in a loop's body."""
        data = b"".join(parts)
        number = hashed(data)
        if self.terms is not None:
            self.terms.setdefault(number, Term(None, None, (data,)))
        return number

    def note_term(
        self, number: bytes, again: Callable[..., Any], given: Any, *operands: bytes
    ) -> None:
        """Records that a loop's iterations compute `number` as `again(self, given, *operands)`.

        Operands are value numbers, `given` is other data. Nothing is recorded outside of a loop's
        body, or if `number` is one of the operands.
        """
        if self.terms is not None and number not in operands:
            self.terms[number] = Term(again, given, operands)

    def later(self, again: Callable[..., Any], given: Any, *operands: bytes) -> bytes:
        """Records, in a loop's body, and returns a placeholder (a value number), which iterations
        replace by `again(self, given, *operands)`.
        """
        said = hashed(repr((again.__qualname__, hash(given))).encode())
        number = hashed(b"".join((_LATER, said, *operands)))
        assert self.terms is not None
        self.terms[number] = Term(again, given, operands, is_later=True)
        return number

    def is_computed(self, number: bytes) -> bool:
        """Whether the fusion being numbered computes this value, not only moves its elements."""
        return self._fused is not None and number in self._fused

    def note_computed(self, number: bytes) -> None:
        """Records that the fusion being numbered (if any) computes `number`, not only moves it."""
        if self._fused is not None:
            self._fused.add(number)

    def note_moved(self, number: bytes, result: bytes) -> None:
        """Records that the fusion being numbered computes value `result` if it computes `number`.

        The elements of `result` are all elements of `number`, in whatever order.
        """
        if self.is_computed(number):
            self.note_computed(result)

    def unmoved(self, number: bytes) -> bytes:
        """The number of the array from which bitcasts and transposes made `number`, or `number`."""
        while number in self.moves:
            number = self.moves[number].base
        return number

    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The value number of a bitcast of `number` from shape `old` to shape `new`."""
        row, flat = self.arranged(number, old, lying(old), as_row(old)), as_row(new)
        if _typed(old) != _typed(new):
            row = self.retyped(row, as_row(old), flat)
        return self.arranged(row, flat, as_dimensions(new), new)

    def retyped(self, row: bytes, old: Shape, new: Shape) -> bytes:
        """Value number of a bitcast of flat array `row` from `old` to `new`, whose types differ.
        Of several in a row only the first and last shapes count; if equal, it has the first number.
        """
        row, old, _ = self.casts.get(row, (row, old, old))
        if self.shape(old) == self.shape(new):
            return row
        result = self.term(BITCAST, row, self.shape(old), self.shape(new))
        self.note_term(result, lambda it, shapes, row: it.retyped(row, *shapes), (old, new), row)
        self.casts[result] = row, old, new
        self.note_moved(row, result)
        return result

    def rearranged(self, base: bytes, move: Move, shape: Shape | None = None) -> bytes:
        """Value number of array `base` in the order of `move`, of the type of `shape` if given."""
        old, new = move.shape, move.new
        if shape is not None:
            old, new = typed(old, shape), typed(new, shape)
        return self.arranged(base, old, move.steps, new)

    def arranged(self, number: bytes, shape: Shape, steps: Steps, new: Shape) -> bytes:
        """Value number of an array that has another array's elements in another order.

        It depends on the order alone, not on the bitcasts and transposes that led to it, but for
        those of large arrays that no nested loops describe together.

        Args:
          number: of the other array. shape: of the other array. new: shape of the new array.
          steps: the order, as nested loops (count, stride in elements) over the other array; both
            arrays are taken in row-major order.
        """
        while number in self.moves:
            inner = self.moves[number]
            merged = composed(inner.steps, steps)
            if merged is None:
                break
            number, shape, steps = inner.base, inner.shape, merged
        first, said = number, repr(steps).encode()
        if number in self.moves and new.num_elements <= _MOST_PLACES:
            order = places(steps)
            while first in self.moves:
                inner = self.moves[first]
                first, order = inner.base, places(inner.steps)[order]
                if (merged := steps_of(order)) is not None:
                    return self.arranged(first, inner.shape, merged, new)
            said = order.tobytes()
        if steps == permuted(shape) and shape.dimensions == new.dimensions:
            return number
        kind = hashed(repr((*_typed(new), new.dimensions)).encode()) + hashed(said)
        result = hashed(_MOVED + first + kind)
        move = Move(number, row_major(shape), steps, row_major(new))
        self.note_term(result, ElementNumbering._moved, (move, first, kind), number)
        self.moves.setdefault(result, move)
        self.note_moved(number, result)
        return result

    def _moved(self, made: tuple[Move, bytes, bytes], number: bytes) -> bytes:
        """Recomputes the value number of a reordering (`arranged`) for another array `number`.

        `made`: (record of the reordering, number of the array before all others, hash of order).
        """
        move, first, kind = made
        if number in self.moves or first != move.base:
            return self.rearranged(number, move)
        result = hashed(_MOVED + number + kind)
        if result not in self.moves:
            self.moves[result] = Move(number, *move[1:])
        return result

    def updated(self, update: Update) -> bytes:
        """The value number of a dynamic-update-slice's result; records the update in `updates`.

        An update of one slice of a reordered array is numbered as a reordering of an updated array,
        so that it does not matter which was done first. One that puts back what the update before
        it replaced has the number of the array before both. An array all of whose slices were
        written at known indices is numbered by these alone.
        """
        array, value, *indices = update.numbers
        if (before := self._undone(update)) is not None:
            return before
        if update.digit is not None and array in self.moves:
            move = self.moves[array]
            split = without(move.steps, update.shape.num_elements, update.digit)
            if split is not None:
                row = self.arranged(value, update.part, inverse(split[1]), update.part)
                base = Update.of_slice((move.base, row, *indices), move.shape, split[0])
                number = self.arranged(self.updated(base), move.shape, move.steps, move.new)
                self.updates.setdefault(number, update)
                return number
        number = self.term(update.made, END, *update.numbers)
        self.note_term(number, _updated, update, *update.numbers)
        self.updates[number] = update
        if any(map(self.is_computed, update.numbers)):
            self.note_computed(number)
        if update.digit is not None:
            at = self.integers.clamped(indices[0], update.digit[0])
            if at is not None:
                rows = self.written.note(number, array, update.digit, at, value)
                if rows is not None:
                    whole = self._complete(update.shape, update.digit, rows)
                    self.updates[whole] = update
                    return whole
        return number

    def _undone(self, update: Update) -> bytes | None:
        """Value number of the array before two updates, if `update` undoes the first; or None."""
        last = self.updates.get(update.numbers[0])
        if last is None or last.made != update.made or last.numbers[2:] != update.numbers[2:]:
            return None
        first, value, at = last.numbers[0], *update.numbers[1:3]
        if update.digit is not None:
            before = self.taken(first, at, update.shape, update.digit)
        else:
            before = self.part_of(update._replace(numbers=(first, *update.numbers[1:])))
        return first if value == before else None

    def part_of(self, update: Update) -> bytes:
        """Value number of what `update`, if not of one slice, would replace in its array."""
        array, _, *indices = update.numbers
        last = self.updates.get(array)
        if last is not None and last.made == update.made and last.numbers[2:] == tuple(indices):
            return last.numbers[1]
        number = self.term(_TAKEN, update.made, array, *indices)
        self.note_term(number, _part_again, update, array, *indices)
        self.note_moved(array, number)
        return number

    def _complete(self, shape: Shape, digit: Digit, rows: list[bytes]) -> bytes:
        """Value number of an array of shape `shape`, all of whose slices are known: by these alone.

        A reordering that all slices share becomes one of the whole array. `rows`: the numbers of
        the flattened slices. `digit`: (count, stride in elements) of the sliced dimension.
        """
        (count, distance), size = digit, shape.num_elements
        row, flat = as_row(shape, size // count), as_row(shape)
        order = permuted(row)
        moves = [self.moves.get(number, Move(number, row, order, row)) for number in rows]
        if len({(move.shape, move.steps) for move in moves}) == 1:
            order, old = moves[0].steps, moves[0].shape
            rows = [self.arranged(move.base, old, permuted(old), row) for move in moves]
        whole = self.of_slices(flat, rows)
        whole = self.arranged(whole, flat, joined(((count, size // count), *order)), flat)
        steps = (size // (count * distance), distance), (count, size // count), (distance, 1)
        return self.arranged(whole, flat, joined(steps), row_major(shape))

    def of_slices(self, flat: Shape, rows: list[bytes]) -> bytes:
        """Value number of a flat array of shape `flat`, that is `rows` end to end; records it."""
        digit = len(rows), flat.num_elements // len(rows)
        whole = hashed(b"".join((_COMPLETE, sliced(flat, digit), *rows)))
        self.note_term(
            whole, lambda it, flat, *rows: it._complete(flat, digit, list(rows)), flat, *rows
        )
        self.in_slices[whole] = flat, rows
        self.written.note_complete(whole, digit, rows)
        if any(map(self.is_computed, rows)):
            self.note_computed(whole)
        return whole

    def joined(self, made: Concatenation) -> bytes:
        """The value number of a concatenate's result; records it in `concatenations`.

        If each operand is one slice, it is the number of an array into which they were written.
        """
        if made.slices is None:
            number = self.term(made.made, END, *made.numbers)
        else:
            whole, part, digit = made.slices
            row, steps = as_row(part), permuted(part)
            rows = [self.arranged(number, part, steps, row) for number in made.numbers]
            number = self._complete(whole, digit, rows)
        self.note_term(number, _joined, made, *made.numbers)
        self.concatenations[number] = made
        return number

    def coded(self, code: bytes, number: bytes) -> bytes:
        """The value number outside a fusion of a result with `number` inside: hashed with `code`.

        `code`: hash of the fusion's code, on which rounding may depend. A scalar integer whose
        value is known keeps its number.
        """
        if self.integers.is_known(number):
            return number
        result = self.term(code, number)
        if self.terms is not None and number in self.terms and self.terms[number].again is not None:
            self.note_term(result, lambda it, _, *numbers: it.coded(*numbers), None, code, number)
        return result

    def code_of(self, arrays: tuple[frozenset[object], ...], code: bytes, *numbers: bytes) -> bytes:
        """A hash of a fusion's code and of which values it reads from more than one array, if any.

        LLVM cannot tell that the arrays are equal, which affects rounding. Known integers are left
        out: two that are equal in this iteration may differ in another one. While a loop's body is
        numbered, it is a placeholder. `arrays`: for each of `numbers` (values), the arrays that it
        is read from. `code`: hash of the code alone.
        """
        if self.terms is not None:  # other values may be equal
            return self.later(ElementNumbering.code_of, arrays, code, *numbers)
        read = zip(numbers, arrays, strict=True)
        equal = several((n, a) for n, a in read if not self.integers.is_known(n))
        return hashed(b"".join((_SEVERAL, code, *equal))) if equal else code


def _updated(numbering: ElementNumbering, update: Update, *numbers: bytes) -> bytes:
    """Recomputes the value number of a dynamic-update-slice in a loop's body for other operands."""
    return numbering.updated(update._replace(numbers=numbers))


def _part_again(numbering: ElementNumbering, update: Update, *numbers: bytes) -> bytes:
    """Recomputes the value number of a part of an array (`part_of`) for other array and indices."""
    return numbering.part_of(update._replace(numbers=(numbers[0], b"", *numbers[1:])))


def _joined(numbering: ElementNumbering, made: Concatenation, *numbers: bytes) -> bytes:
    """Recomputes the value number of a concatenate in a loop's body for other operands."""
    return numbering.joined(made._replace(numbers=numbers))


def _typed(shape: Shape) -> tuple[int, int]:
    """The element type of a shape, as XLA's number, and the bits of each element."""
    return shape.element_type, shape.element_bits
