"""In which order an array's elements are taken: what bitcasts and transposes say of it.

An array as a row has its elements one after the other, those of the first dimension outermost. An
order of them is said as steps over the row: (count, distance), the outermost first, each a digit of
the place in the row. Steps of one element are none, and two that follow each other as one are one,
so equal steps over one row are the same elements in the same order.
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
    """The shape of an array that lies in memory as a row."""
    order = tuple(reversed(range(len(shape.dimensions))))
    return dataclasses.replace(shape, minor_to_major=order, key=b"")


def is_row_major(shape: Shape) -> bool:
    """Whether an array lies in memory as a row."""
    return shape.minor_to_major == tuple(reversed(range(len(shape.dimensions))))


def as_row(shape: Shape) -> Shape:
    """The shape of an array's elements as a row."""
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
    """The elements of an array by its dimensions in that order, the outermost first, over its row.

    Args:
      shape: of the array. dimensions: all of its dimensions.
    """
    found = digits(row_major(shape))
    return joined(found[k] for k in dimensions)


def lying(shape: Shape) -> Steps:
    """The elements of an array as they lie in memory, as steps over its row."""
    return permuted(shape, reversed(shape.minor_to_major))


def as_dimensions(shape: Shape) -> Steps:
    """The elements of an array as a row, as steps over how they lie in memory."""
    return joined(digits(shape))


def composed(inner: Steps, outer: Steps) -> Steps | None:
    """Steps over what steps `inner` give, as steps over what these are of.

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
    """What a digit of the places in a row is as steps over what the row was taken from.

    Args:
      steps: of the row. count: how many values the digit has. distance: of two in the row.

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
    """An array with the layout by which its elements lie in the order of steps, if there is one.

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
    """Steps without those of one element, such as go on where the next ones end as one."""
    found: list[tuple[int, int]] = []
    for count, distance in steps:
        if count == 1:
            continue
        if found and found[-1][1] == count * distance:
            found[-1] = found[-1][0] * count, distance
        else:
            found.append((count, distance))
    return tuple(found)
