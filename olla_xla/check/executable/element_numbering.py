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
    is_row_major,
    layout_of,
    lying,
    row_major,
)
from olla_xla.check.executable.integers import Form, Integers
from olla_xla.check.executable.numbering import BITCAST, END, Numbering, Numbers, hashed, named
from olla_xla.check.executable.program import Body
from olla_xla.check.executable.records import (
    Concatenation,
    Held,
    Kept,
    Rounded,
    ScanResidual,
    Steps,
    Update,
)
from olla_xla.check.executable.scalars import Scalars

__all__ = ["ElementNumbering"]

_INTEGER, _REORDERED = hashed(b"integer"), hashed(b"turn")


class ElementNumbering(Numbering):
    """A numbering that records how values were made.

    Args:
      target: "cpu", "cuda" or "tpu".

    Attributes:
      integers: forms and bounds of scalar integers.
      updates: by number, the dynamic-update-slice that it is.
      concatenations: by number, the concatenation that it is.
      repeated: by number, the broadcast that it is: its operand's number, dimensions and shape.
      comparisons: by number, the comparison of two known integers: direction, left, right.
      bitcasts: by number, the bitcast that it is: its operand's number, old shape, new shape.
      residuals: by number, the scan residual that it is.
      widened: by number, the convert to a wider type: its operand's number, old shape, new shape.
      rounded: by number, the convert that it is, to a type that is not wider.
      transposes: by number, the row whose elements it has in another order: the row's number, its
        shape, and steps over it (`element_order`).
      scalars: how scalar integers were computed.
      cuts: by number, the slice along dimension 0 that it is: numbers of the array and the index.
      given: (array's number, index's number) -> number that its slice is to have.
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
        self.repeated: dict[bytes, tuple[bytes, tuple[int, ...], Shape]] = {}
        self.comparisons: dict[bytes, tuple[str, Form, Form]] = {}
        self.bitcasts: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.residuals: dict[bytes, ScanResidual] = {}
        self.widened: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.rounded: dict[bytes, Rounded] = {}
        self.transposes: dict[bytes, tuple[bytes, Shape, Steps]] = {}
        self.scalars = Scalars(self.integers)
        self.cuts: dict[bytes, tuple[bytes, bytes]] = {}
        self.given: dict[tuple[bytes, bytes], bytes] = {}
        self.kept: dict[bytes, Kept] = {}
        self.held: dict[bytes, Held] = {}
        self.alike: Alike = {}
        self.depth = 0
        self._fused: set[bytes] | None = None
        """Numbers that the fusion being numbered computes, and does not only move; or None."""
        self._lies: dict[Shape, bytes] = {}

    @abc.abstractmethod
    def taken(self, number: bytes, at: bytes, shape: Shape, axis: int) -> bytes:
        """The number of one slice of an array.

        Args:
          number: of the array. at: of the index. shape: of the array. axis: dimension sliced.
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
        """The number behind a bitcast."""
        return self.bitcasts[number][0] if number in self.bitcasts else number

    def unmoved(self, number: bytes) -> bytes:
        """The number behind bitcasts and transposes."""
        while number in self.bitcasts or number in self.transposes:
            number = (self.bitcasts.get(number) or self.transposes[number])[0]
        return number

    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The number of a bitcast; one and its inverse cancel.

        Between shapes of one element type it is numbered by the order of elements, not by layouts:
        a copy may change the layout in between, and a transpose may do what a layout does.
        """
        first, began, made = self.bitcasts.get(number, (number, old, old))
        if self._lying(made) == self._lying(old):
            old = began
        else:
            first = number
        if self._lying(old) == self._lying(new):
            return first
        if is_row_major(old) and is_row_major(new) and first not in self.transposes:
            return self._noted(first, old, new)
        if _typed(old) == _typed(new):
            steps = composed(lying(old), as_dimensions(new))
            if steps is not None:
                return self.arranged(first, old, steps, new)
        return self._noted(first, old, new)

    def arranged(self, number: bytes, shape: Shape, steps: Steps, new: Shape) -> bytes:
        """The number of an array that has another array's elements in another order.

        Args:
          number: of the other array. shape: of the other array.
          steps: the new array's row as steps over the other's row (`element_order`).
          new: shape of the new array; its layout is used only where no layout of the other array
            gives the order by itself.
        """
        while True:
            if number in self.transposes:
                first, before, inner = self.transposes[number]
            elif number in self.bitcasts:
                first, before, made = self.bitcasts[number]
                if _typed(before) != _typed(shape) or made.dimensions != shape.dimensions:
                    break
                inner = composed(lying(before), as_dimensions(made))
            else:
                break
            found = None if inner is None else composed(inner, steps)
            if found is None:
                break
            number, shape, steps = first, before, found
        major, plain = row_major(shape), row_major(new)
        layout = layout_of(major, steps)
        if layout is not None:
            return self._noted(number, layout, plain)
        there = composed(steps, lying(new))
        layout = None if there is None else layout_of(major, there)
        if layout is not None:
            return self._noted(number, layout, new)
        flat = as_row(shape)
        row = self._noted(number, major, flat)
        said = (flat.element_type, flat.element_bits, *(n for step in steps for n in step))
        result = hashed(b"".join((_REORDERED, named(said), row)))
        self.transposes[result] = row, flat, steps
        self.note_moved(row, result)
        return self._noted(result, flat, plain)

    def _noted(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The number of a bitcast, which is recorded; the operand's where it changes nothing."""
        if self._lying(old) == self._lying(new):
            return number
        result = hashed(BITCAST + number + self._lying(old) + self._lying(new))
        self.bitcasts[result] = number, old, new
        self.note_moved(number, result)
        return result

    def _lying(self, shape: Shape) -> bytes:
        """A number for type, extents and layout; where extents of 1 are in it does not matter."""
        if shape not in self._lies:
            order = tuple(k for k in shape.minor_to_major if shape.dimensions[k] != 1)
            said = (shape.element_type, shape.element_bits, shape.dimensions, order)
            self._lies[shape] = hashed(repr(said).encode())
        return self._lies[shape]

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

    def integer(self, form: Form, kind: int, *, whole: bool) -> bytes:
        """The number of an integer that has a form.

        Args:
          form: of it. kind: its element type. whole: whether it is certain to equal the form
            without wrapping around.
        """
        known = self.integers
        if form.symbol is not None and form[1:] == (1, 0) and known.kind(form.symbol) == kind:
            return form.symbol
        number = hashed(_INTEGER + repr((kind, *form)).encode())
        self.scalars.type(number, kind)
        known.note(number, form, known.over(form) if whole else None)
        return number


def _typed(shape: Shape) -> tuple[int, int]:
    """Element type, and bits of each element."""
    return shape.element_type, shape.element_bits
