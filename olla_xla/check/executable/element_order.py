"""Orders of an array's elements, by which bitcasts and transposes are numbered.

An array's row has its elements in row-major order. Another order is given as steps over the row:
(count, distance in elements) pairs, the outermost first, as of a strided loop nest. Each step is
one mixed-radix digit of the position in the row. Steps of one element are dropped and contiguous
ones merged, so equal steps over one row are the same elements in the same order.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hlo.shapes import Shape

Steps = tuple[tuple[int, int], ...]
"""An order of a row's elements: (count, distance) pairs, the outermost first."""

Digit = tuple[int, int]
"""(count, distance in elements): a digit of the position in a row, as one step over it is."""

_cached = functools.lru_cache(maxsize=1 << 14)

Places = npt.NDArray[np.int64]


@_cached
def row_major(shape: Shape) -> Shape:
    """The same shape in a row-major layout."""
    return of_dimensions(shape, shape.dimensions)


def of_dimensions(shape: Shape, dimensions: Sequence[int]) -> Shape:
    """The shape of an array of the same type, with these extents in a row-major layout."""
    order = tuple(reversed(range(len(dimensions))))
    given = tuple(dimensions)
    return dataclasses.replace(shape, dimensions=given, minor_to_major=order, key=b"")


@_cached
def as_row(shape: Shape, elements: int | None = None) -> Shape:
    """The shape of an array flattened, or of a flat array of so many `elements` of its type."""
    size = shape.num_elements if elements is None else elements
    return dataclasses.replace(shape, dimensions=(size,), minor_to_major=(0,), key=b"")


@_cached
def digits(shape: Shape) -> list[tuple[int, int]]:
    """(extent, stride in memory in elements) of each dimension of an array, by dimension number."""
    distance, found = 1, dict[int, tuple[int, int]]()
    for k in shape.minor_to_major:
        found[k] = shape.dimensions[k], distance
        distance *= shape.dimensions[k]
    return [found[k] for k in range(len(shape.dimensions))]


@_cached
def permuted(shape: Shape, dimensions: tuple[int, ...] | None = None) -> Steps:
    """Loops (count, stride) over an array's row-major positions, its dimensions in another order.

    Args:
      shape: of the array.
      dimensions: all of its dimensions, the outermost first; None for their own order.
    """
    if dimensions is None:
        return joined([(shape.num_elements, 1)])
    found = digits(row_major(shape))
    return joined(found[k] for k in dimensions)


@_cached
def lying(shape: Shape) -> Steps:
    """Loops (count, stride) over an array's row-major positions, in the order of memory."""
    return permuted(shape, shape.minor_to_major[::-1])


@_cached
def as_dimensions(shape: Shape) -> Steps:
    """Loops (count, stride) over an array's positions in memory, in row-major order."""
    return joined(digits(shape))


@_cached
def composed(inner: Steps, outer: Steps) -> Steps | None:
    """Two reorderings as one: `outer` of what `inner` gives, over the positions `inner` is over.

    Args:
      inner, outer: strided loops over positions, as (count, stride).

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


@_cached
def within(steps: Steps, count: int, distance: int) -> Steps | None:
    """Steps over the original row that visit the values of one digit of a reordered row's position.

    Args:
      steps: the reordered row, over the original. count, distance: the digit of a position p in
        the reordered row is p // distance % count.

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


@_cached
def without(steps: Steps, size: int, digit: Digit) -> tuple[Digit, Steps] | None:
    """Finds a digit of a reordered row in the original row, and the order of the other digits.

    Args:
      steps: the reordered row over the original; each element once. size: elements of the row.
      digit: of the position in the reordered row.

    Returns:
      (digit of the original row, steps over the original row without it that give the reordered
      row without `digit`); None where `digit` is no single digit of the original row.
    """
    count, distance = digit
    cut = within(steps, count, distance)
    if cut is None or len(cut) != 1:
        return None
    ((_, far),) = cut
    outer = within(steps, size // (count * distance), count * distance) or ()
    inner = within(steps, distance, 1) or ()
    left = ((n, d if d < far else d // count) for n, d in (*outer, *inner))
    return (count, far), joined(left)


def inverse(steps: Steps) -> Steps:
    """The steps that restore row-major order after `steps`.

    Args:
      steps: (count, distance in elements), outermost first: a permutation of a flat array.
    """
    found, here = [], 1
    for count, distance in reversed(steps):
        found.append((distance, count, here))
        here *= count
    return joined((count, distance) for _, count, distance in sorted(found, reverse=True))


def places(steps: Steps) -> Places:
    """The positions that loops of (count, stride) visit, in order, as integers."""
    found = np.zeros(1, np.int64)
    for count, distance in steps:
        found = (found[:, None] + distance * np.arange(count)).ravel()
    return found


def steps_of(order: Places) -> Steps | None:
    """The strided loops that visit positions in exactly the given order; None if no loops do."""
    found: list[tuple[int, int]] = []
    while len(order) > 1:
        distance = int(order[1])
        other = np.flatnonzero(order != distance * np.arange(len(order)))
        count = int(other[0]) if len(other) else len(order)
        rows = order.reshape(-1, count) if len(order) % count == 0 else None
        if rows is None or (rows - rows[:, :1] != order[:count]).any():
            return None
        found.append((count, distance))
        order = rows[:, 0]
    return tuple(reversed(found))


def joined(steps: Iterable[tuple[int, int]]) -> Steps:
    """Simplifies loops of (count, stride): merges contiguous ones and drops those of count 1."""
    found: list[tuple[int, int]] = []
    for count, distance in steps:
        if count == 1:
            continue
        if found and found[-1][1] == count * distance:
            found[-1] = found[-1][0] * count, distance
        else:
            found.append((count, distance))
    return tuple(found)


@_cached
def typed(shape: Shape, like: Shape) -> Shape:
    """A copy of `shape` with the element type of `like`."""
    kind, bits = like.element_type, like.element_bits
    return dataclasses.replace(shape, element_type=kind, element_bits=bits, key=b"")
