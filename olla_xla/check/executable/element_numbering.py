"""What is known of the numbers of elements, and the operations that those need who use that.

Of many values the numbering of elements knows how they were made (`records`), and by that what a
slice, a bitcast or a convert of them is. Here this is kept, with what needs nothing else: casts to
and fro, scalar integers, and what belongs to the fusion that is looked into. How operations get
their numbers is said by `element_expressions`, the one such numbering that there is. The files that
help it take a numbering as it is described here, and so import nothing that imports them.
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


class ElementNumbering(Numbering, abc.ABC):
    """A numbering that knows of elements how they were made.

    Args:
      target: "cpu" or "cuda".

    Attributes:
      integers: what is known of scalar integers.
      updates: by number, the dynamic-update-slice that it is.
      concatenations: by number, the concatenation that it is.
      repeated: by number, the broadcast that it is: its operand's number, dimensions and shape.
      comparisons: by number, the comparison of two known integers: direction, left, right.
      bitcasts: by number, what was cast: its number, the shape it had, the one it was given.
      residuals: by number, what a loop wrote slice by slice.
      widened: by number, what was converted to a wider type: its number, its shape, the new one.
      rounded: by number, the convert that it is, to a type that is not wider.
      transposes: by number, the row of which it has the elements in another order, its shape, and
        steps over it.
      scalars: how scalar integers were computed.
      cuts: by number, of one slice of an array: the array's, and that of the index.
      given: numbers of slices, by the array's and the index's.
      kept: by number, what a loop kept of some iterations. held: likewise, in an iteration of
        another loop.
      alike: elements of loops' states that are arrays from outside.
      depth: in how many loops it is.
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
        """Of the fusion that is looked into, the numbers of what it computes and not only moves."""
        self._lies: dict[Shape, bytes] = {}

    @abc.abstractmethod
    def taken(self, number: bytes, at: bytes, shape: Shape, axis: int) -> bytes:
        """The number of one slice of an array.

        Args:
          number: of the array. at: of the place. shape: of the array. axis: along which.
        """

    def apart(self, body: Body, given: Numbers) -> Numbers:
        """As `run`, of a body without effects, whatever is being looked into."""
        fused, self._fused = self._fused, None
        result = self.run(body, [given], [])
        self._fused = fused
        return result

    def is_computed(self, number: bytes) -> bool:
        """Whether the fusion that is looked into computes it."""
        return self._fused is not None and number in self._fused

    def note_computed(self, number: bytes) -> None:
        """Notes what the fusion that is looked into computes."""
        if self._fused is not None:
            self._fused.add(number)

    def note_moved(self, number: bytes, result: bytes) -> None:
        """Notes what is nothing but a number's elements elsewhere: it is computed where that is."""
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
        """The same bytes by another shape; there and back again is nothing.

        Where all have elements of one type, it is told by the elements and not by layouts: an array
        may be copied into another layout in between, and a transpose may do what a layout does.
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
        """An array of a number's elements in another order.

        Args:
          number: of the array whose elements they are. shape: that it has.
          steps: the new array's elements, the first dimension outermost, over those of `shape`.
          new: shape of the new array; if it can be told by no layout of the old array alone, its
            own layout says what lies in the same order.
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
        """The number of one seen by another shape."""
        if self._lying(old) == self._lying(new):
            return number
        result = hashed(BITCAST + number + self._lying(old) + self._lying(new))
        self.bitcasts[result] = number, old, new
        self.note_moved(number, result)
        return result

    def _lying(self, shape: Shape) -> bytes:
        """A number for how elements lie in memory: extents of 1 may stand anywhere in a layout."""
        if shape not in self._lies:
            order = tuple(k for k in shape.minor_to_major if shape.dimensions[k] != 1)
            said = (shape.element_type, shape.element_bits, shape.dimensions, order)
            self._lies[shape] = hashed(repr(said).encode())
        return self._lies[shape]

    def updated(self, update: Update) -> bytes:
        """The number of what an update gives, which is known by it from now on."""
        number = hashed(b"".join((update.made, END, *update.numbers)))
        self.updates[number] = update
        return number

    def joined(self, made: Concatenation) -> bytes:
        """The number of what a concatenation gives, which is known by it from now on."""
        number = hashed(b"".join((made.made, END, *made.numbers)))
        self.concatenations[number] = made
        return number

    def symbol(self, number: bytes, shape: Shape, iterations: int | None = None) -> None:
        """Says that a number of its own is an integer, if it is one; and what it counts."""
        if shape.is_array and not shape.dimensions:
            self.integers.symbol(number, shape.element_type, iterations)

    def integer(self, form: Form, kind: int, *, whole: bool) -> bytes:
        """A number for an integer of element type `kind` that is known so far.

        Args:
          form: of it. kind: its element type. whole: whether it is sure to be the form's value,
            and not only what is left of that after wrapping around.
        """
        known = self.integers
        if form.symbol is not None and form[1:] == (1, 0) and known.kind(form.symbol) == kind:
            return form.symbol
        number = hashed(_INTEGER + repr((kind, *form)).encode())
        self.scalars.type(number, kind)
        known.note(number, form, known.over(form) if whole else None)
        return number


def _typed(shape: Shape) -> tuple[int, int]:
    """What an array's elements are: type and bits of each."""
    return shape.element_type, shape.element_bits
