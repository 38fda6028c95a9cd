"""Base class of the numbering of elements: records of how values were made.

From these (`records`) the number of a slice, a bitcast or a convert of a value follows. This class
keeps them, with what needs nothing else: bitcasts, scalar integers, and the state of the fusion
being numbered. Its one subclass, in `element_expressions`, gives operations their numbers. Helper
modules take this class as their argument, so that imports have no cycle.
"""

from __future__ import annotations

import abc

from hlo.shapes import Shape
from olla_xla.check.executable.arrays import Alike
from olla_xla.check.executable.element_order import (
    as_dimensions,
    as_row,
    composed,
    lying,
    permuted,
    places,
    row_major,
    steps_of,
    typed,
)
from olla_xla.check.executable.integers import Form, Integers
from olla_xla.check.executable.numbering import BITCAST, END, Numbering, Numbers, hashed
from olla_xla.check.executable.program import Body
from olla_xla.check.executable.records import (
    Concatenation,
    Cut,
    Digit,
    Held,
    Kept,
    Move,
    Rounded,
    ScanResidual,
    Steps,
    Update,
)

_MOVED = hashed(b"turn")
_MOST_PLACES = 1 << 16


class ElementNumbering(Numbering):
    """A numbering that records how values were made.

    Args:
      target: "cpu", "cuda" or "tpu".

    Attributes:
      integers: what is known of scalar integers.
      updates: by number, the dynamic-update-slice that it is.
      concatenations: by number, the concatenation that it is.
      repeated: by number, the broadcast that it is: its operand's number, dimensions, both shapes.
      comparisons: by number, the comparison of two known integers: direction, left, right.
      moves: by number, the bitcast or transpose that it is, behind any others.
      casts: by number, the row that it is in another element type: its number, both shapes.
      residuals: by number, the scan residual that it is.
      widened: by number, the convert to a wider type: its operand's number, old shape, new shape.
      rounded: by number, the convert that it is, to a type that is not wider.
      cuts: by number, the slice that it is as a row: numbers of array and index, digit sliced.
      given: likewise -> number that the slice is to have.
      kept: by number, a checkpoint array as its loop leaves it. held: likewise, in an iteration of
        another loop (`checkpoints`).
      alike: elements of loops' states that are arrays from outside.
      depth: how many loops enclose what is being numbered.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.integers = Integers()
        self.updates: dict[bytes, Update] = {}
        self.concatenations: dict[bytes, Concatenation] = {}
        self.repeated: dict[bytes, tuple[bytes, tuple[int, ...], Shape, Shape]] = {}
        self.comparisons: dict[bytes, tuple[str, Form, Form]] = {}
        self.moves: dict[bytes, Move] = {}
        self.casts: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.residuals: dict[bytes, ScanResidual] = {}
        self.widened: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.rounded: dict[bytes, Rounded] = {}
        self.cuts: dict[bytes, Cut] = {}
        self.given: dict[Cut, bytes] = {}
        self.kept: dict[bytes, Kept] = {}
        self.held: dict[bytes, Held] = {}
        self.alike: Alike = {}
        self.depth = 0
        self._fused: set[bytes] | None = None
        """Numbers that the fusion being numbered computes, and does not only move; or None."""

    @abc.abstractmethod
    def taken(self, number: bytes, at: bytes, shape: Shape, digit: Digit) -> bytes:
        """The number of one slice of an array, as a row.

        Args:
          number: of the array. at: of the index. shape: of the array.
          digit: of the position in the array's row that equals the index.
        """

    def apart(self, body: Body, given: Numbers) -> Numbers:
        """`run` of a body without effects, as outside any fusion."""
        fused, self._fused = self._fused, None
        result = self.run(body, [given], [])
        self._fused = fused
        return result

    def is_computed(self, number: bytes) -> bool:
        """Whether the fusion being numbered computes this value."""
        return self._fused is not None and number in self._fused

    def note_computed(self, number: bytes) -> None:
        """Notes a value that the fusion being numbered computes."""
        if self._fused is not None:
            self._fused.add(number)

    def note_moved(self, number: bytes, result: bytes) -> None:
        """Notes a result that only moves elements: it counts as computed if `number` does."""
        if self.is_computed(number):
            self.note_computed(result)

    def first(self, number: bytes) -> bytes:
        """The number that an array was moved from; its own if it was not moved."""
        return self.moves[number].base if number in self.moves else number

    def unmoved(self, number: bytes) -> bytes:
        """The number behind bitcasts and transposes."""
        while number in self.moves:
            number = self.moves[number].base
        return number

    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The number of a bitcast, by the order of elements where it keeps their type."""
        row, flat = self.arranged(number, old, lying(old), as_row(old)), as_row(new)
        if _typed(old) != _typed(new):
            row = self.retyped(row, as_row(old), flat)
        return self.arranged(row, flat, as_dimensions(new), new)

    def retyped(self, row: bytes, old: Shape, new: Shape) -> bytes:
        """The number of a row's bytes as elements of another type."""
        row, old, _ = self.casts.get(row, (row, old, old))
        if self.shape(old) == self.shape(new):
            return row
        result = hashed(BITCAST + row + self.shape(old) + self.shape(new))
        self.casts[result] = row, old, new
        self.note_moved(row, result)
        return result

    def rearranged(self, base: bytes, move: Move, shape: Shape | None = None) -> bytes:
        """The number of an array moved like another one; `shape` has its element type."""
        old, new = move.shape, move.new
        if shape is not None:
            old, new = typed(old, shape), typed(new, shape)
        return self.arranged(base, old, move.steps, new)

    def arranged(self, number: bytes, shape: Shape, steps: Steps, new: Shape) -> bytes:
        """The number of an array that has another array's elements in another order.

        It depends on the order alone, and on no move that led to it. Where no steps give the order
        (`element_order`), that of a small array is told by all places.

        Args:
          number: of the other array. shape: of the other array.
          steps: the new array's row as steps over the other's row. new: shape of the new array.
        """
        while number in self.moves:
            inner = self.moves[number]
            found = composed(inner.steps, steps)
            if found is None:
                break
            number, shape, steps = inner.base, inner.shape, found
        first, said = number, repr(steps).encode()
        if number in self.moves and new.num_elements <= _MOST_PLACES:
            order = places(steps)
            while first in self.moves:
                inner = self.moves[first]
                first, order = inner.base, places(inner.steps)[order]
                if (found := steps_of(order)) is not None:
                    return self.arranged(first, inner.shape, found, new)
            said = order.tobytes()
        if steps == permuted(shape) and shape.dimensions == new.dimensions:
            return number
        kind = repr((*_typed(new), new.dimensions)).encode()
        result = hashed(b"".join((_MOVED, first, hashed(kind), hashed(said))))
        self.moves.setdefault(result, Move(number, row_major(shape), steps, row_major(new)))
        self.note_moved(number, result)
        return result

    def updated(self, update: Update) -> bytes:
        """The number of an update's result; records the update."""
        number = hashed(b"".join((update.made, END, *update.numbers)))
        self.updates[number] = update
        return number

    def joined(self, made: Concatenation) -> bytes:
        """The number of a concatenation's result; records the concatenation."""
        number = hashed(b"".join((made.made, END, *made.numbers)))
        self.concatenations[number] = made
        return number

    def symbol(self, number: bytes, shape: Shape, iterations: int | None = None) -> None:
        """Declares a number a symbol, if it is a scalar integer; see `Integers.symbol`."""
        if shape.is_array and not shape.dimensions:
            self.integers.symbol(number, shape.element_type, iterations)


def _typed(shape: Shape) -> tuple[int, int]:
    """Element type, and bits of each element."""
    return shape.element_type, shape.element_bits
