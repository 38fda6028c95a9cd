"""Shapes of arrays that are cut into slices, and of one slice.

A slice is one element thick along one dimension, its axis, and whole along all others.
"""

from __future__ import annotations

import dataclasses

from hlo.shapes import Shape

__all__ = ["is_leading", "one_of", "sliced_axis"]


def one_of(shape: Shape, axis: int) -> Shape:
    """The shape of one slice along a dimension."""
    extents = tuple(1 if k == axis else n for k, n in enumerate(shape.dimensions))
    return dataclasses.replace(shape, dimensions=extents, key=b"")


def is_leading(shape: Shape, iterations: int) -> bool:
    """Whether it is `iterations` contiguous slices along dimension 0, of whole bytes."""
    if shape.dimensions[:1] != (iterations,) or shape.element_bits < 8:
        return False
    return shape.minor_to_major[-1] == 0


def sliced_axis(part: Shape, shape: Shape) -> int | None:
    """The dimension along which a part is one slice of an array; None if it is not one, or its
    elements are smaller than a byte.

    A part that is the whole array is a slice along dimension 0, if that has extent 1.
    """
    if part.minor_to_major != shape.minor_to_major or part.element_type != shape.element_type:
        return None
    if shape.element_bits < 8 or not shape.dimensions:
        return None
    both = zip(part.dimensions, shape.dimensions, strict=True)
    axes = [k for k, (one, all_of_it) in enumerate(both) if one != all_of_it]
    axis = axes[0] if axes else 0
    return axis if len(axes) < 2 and part.dimensions[axis] == 1 else None
