"""Orders of an array's elements, by which bitcasts and transposes are numbered.

An array's row has its elements in row-major order. Another order is given as steps over the row:
(count, distance in elements) pairs, the outermost first, as of a strided loop nest. Each step is
one mixed-radix digit of the position in the row. Steps of one element are dropped and contiguous
ones merged, so equal steps over one row are the same elements in the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from hlo.shapes import Shape
from olla_xla.check.executable.records import Steps

__all__ = [
    "as_dimensions",
    "as_row",
    "composed",
    "digits",
    "is_row_major",
    "joined",
    "layout_of",
    "lying",
    "permuted",
    "row_major",
    "within",
]


def row_major(shape: Shape) -> Shape:
    """A shape with row-major layout."""
    order = tuple(reversed(range(len(shape.dimensions))))
    return dataclasses.replace(shape, minor_to_major=order, key=b"")


def is_row_major(shape: Shape) -> bool:
    """Whether a shape's layout is row-major."""
    return shape.minor_to_major == tuple(reversed(range(len(shape.dimensions))))


def as_row(shape: Shape) -> Shape:
    """The one-dimensional shape of an array's row."""
    return dataclasses.replace(
        shape, dimensions=(shape.num_elements,), minor_to_major=(0,), key=b""
    )


def digits(shape: Shape) -> list[tuple[int, int]]:
    """(extent, distance in elements) of each dimension of an array as it lies in memory."""
    distance, found = 1, dict[int, tuple[int, int]]()
    for k in shape.minor_to_major:
        found[k] = shape.dimensions[k], distance
        distance *= shape.dimensions[k]
    return [found[k] for k in range(len(shape.dimensions))]


def permuted(shape: Shape, dimensions: Iterable[int]) -> Steps:
    """Steps over an array's row that take its dimensions in an order, the outermost first.

    Args:
      shape: of the array. dimensions: all of its dimensions.
    """
    found = digits(row_major(shape))
    return joined(found[k] for k in dimensions)


def lying(shape: Shape) -> Steps:
    """An array's elements in memory order, as steps over its row."""
    return permuted(shape, reversed(shape.minor_to_major))


def as_dimensions(shape: Shape) -> Steps:
    """An array's row, as steps over its elements in memory order."""
    return joined(digits(shape))


def composed(inner: Steps, outer: Steps) -> Steps | None:
    """Steps `outer` over what steps `inner` give, as steps over the row that `inner` is of.

    Returns:
      The steps; None where a digit of `outer` divides one of `inner` unevenly.
    """
    found: list[tuple[int, int]] = []
    for step in outer:
        part = within(inner, *step)
        if part is None:
            return None
        found += part
    return joined(found)


def within(steps: Steps, count: int, distance: int) -> Steps | None:
    """One digit of the position in a row, as steps over what the row was taken from.

    Args:
      steps: that give the row. count: values of the digit. distance: between two, in elements.

    Returns:
      The steps; None where the digit's ends divide a step unevenly.
    """
    found: list[tuple[int, int]] = []
    here, end = 1, count * distance
    for many, far in reversed(steps):
        low, high = max(here, distance), min(here * many, end)
        if low < high:
            if low % here or high % low or (here * many) % high:
                return None
            found.append((high // low, far * (low // here)))
        here *= many
    return tuple(reversed(found))


def layout_of(shape: Shape, steps: Steps) -> Shape | None:
    """The shape with the layout whose memory order is the steps; None if there is none.

    Args:
      shape: of the array. steps: over its row.
    """
    left = {k: digit for k, digit in enumerate(digits(row_major(shape))) if digit[0] != 1}
    order = [k for k in range(len(shape.dimensions)) if k not in left]
    for count, distance in steps:
        end = count * distance
        while end > distance:
            k = next((k for k, (n, far) in left.items() if n * far == end), None)
            if k is None or left[k][1] < distance:
                return None
            end = left.pop(k)[1]
            order.append(k)
    if left:
        return None
    return dataclasses.replace(shape, minor_to_major=tuple(reversed(order)), key=b"")


def joined(steps: Iterable[tuple[int, int]]) -> Steps:
    """Steps without those of one element, and with contiguous ones merged."""
    found: list[tuple[int, int]] = []
    for count, distance in steps:
        if count == 1:
            continue
        if found and found[-1][1] == count * distance:
            found[-1] = found[-1][0] * count, distance
        else:
            found.append((count, distance))
    return tuple(found)
