"""Shapes of arrays that are cut into slices.

A slice is one element thick along one dimension, its axis, and whole along all others.
"""

from __future__ import annotations

from hlo.shapes import Shape
from olla_xla.check.executable.element_order import digits, row_major
from olla_xla.check.executable.records import Digit


def sliced_axis(part: Shape, shape: Shape) -> int | None:
    """The dimension along which a part is one slice of an array; None if it is not one, or its
    elements are smaller than a byte.

    A part that is the whole array is a slice along dimension 0, if that has extent 1.
    """
    if part.element_type != shape.element_type or shape.element_bits < 8 or not shape.dimensions:
        return None
    both = zip(part.dimensions, shape.dimensions, strict=True)
    axes = [k for k, (one, all_of_it) in enumerate(both) if one != all_of_it]
    axis = axes[0] if axes else 0
    return axis if len(axes) < 2 and part.dimensions[axis] == 1 else None


def sliced_digit(shape: Shape, axis: int) -> Digit:
    """The digit of the position in an array's row that a dimension's index is."""
    return digits(row_major(shape))[axis]
