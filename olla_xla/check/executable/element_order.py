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
    distance, pairs = 1, dict[int, tuple[int, int]]()
    for k in shape.minor_to_major:
        pairs[k] = shape.dimensions[k], distance
        distance *= shape.dimensions[k]
    return [pairs[k] for k in range(len(shape.dimensions))]


@_cached
def permuted(shape: Shape, dimensions: tuple[int, ...] | None = None) -> Steps:
    """Nested loops (count, stride) that visit an array with its dimensions in another order.

    Args:
      shape: of the array; strides are in elements of its row-major order.
      dimensions: all of its dimensions, the outermost first; None for their own order.
    """
    if dimensions is None:
        return joined([(shape.num_elements, 1)])
    pairs = digits(row_major(shape))
    return joined(pairs[k] for k in dimensions)


@_cached
def lying(shape: Shape) -> Steps:
    """Nested loops (count, stride) that visit row-major positions of an array in memory order."""
    return permuted(shape, shape.minor_to_major[::-1])


@_cached
def as_dimensions(shape: Shape) -> Steps:
    """Nested loops (count, stride) that visit an array's places in memory in row-major order."""
    return joined(digits(shape))


@_cached
def composed(inner: Steps, outer: Steps) -> Steps | None:
    """Combines two reorderings of a flat array into one: `inner` first, then `outer`.

    All are nested loops (count, stride), the outermost first. Returns None where no such loops give
    the combined order, as a loop of `outer` ends amid one of `inner`.
    """
    loops: list[tuple[int, int]] = []
    for step in outer:
        part = within(inner, *step)
        if part is None:
            return None
        loops += part
    return joined(loops)


@_cached
def within(steps: Steps, count: int, distance: int) -> Steps | None:
    """Finds the elements at positions 0, distance, ..., (count - 1) * distance of a reordering.

    Returns nested loops (count, stride) over the flat array that visit them; None if no loops do.
    `steps`: the reordering, as such loops.
    """
    loops: list[tuple[int, int]] = []
    here, end = 1, count * distance
    for many, far in reversed(steps):
        low, high = max(here, distance), min(here * many, end)
        if low < high:
            if low % here or high % low or (here * many) % high:
                return None
            loops.append((high // low, far * (low // here)))
        here *= many
    return tuple(reversed(loops))


@_cached
def without(steps: Steps, size: int, digit: Digit) -> tuple[Digit, Steps] | None:
    """Expresses a slice of a reordered flat array as a reordered slice of the array itself.

    Returns ((count, stride) of the dimension to slice of the array, nested loops that reorder this
    slice); None where that is no single dimension of the array.

    Args:
      steps: the reordering: nested loops (count, stride) that visit each element of the array once.
      size: elements of the array. digit: (count, stride) of the dimension sliced of the reordering.
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
    """Inverts a permutation of a flat array, given as nested loops (count, stride in elements)."""
    triples, here = [], 1
    for count, distance in reversed(steps):
        triples.append((distance, count, here))
        here *= count
    return joined((count, distance) for _, count, distance in sorted(triples, reverse=True))


def places(steps: Steps) -> Places:
    """The positions that nested loops of (count, stride) visit, in order, as int64."""
    positions = np.zeros(1, np.int64)
    for count, distance in steps:
        positions = (positions[:, None] + distance * np.arange(count)).ravel()
    return positions


def steps_of(order: Places) -> Steps | None:
    """The nested loops (count, stride) that visit exactly these positions in order; or None."""
    loops: list[tuple[int, int]] = []
    while len(order) > 1:
        distance = int(order[1])
        other = np.flatnonzero(order != distance * np.arange(len(order)))
        count = int(other[0]) if len(other) else len(order)
        rows = order.reshape(-1, count) if len(order) % count == 0 else None
        if rows is None or (rows - rows[:, :1] != order[:count]).any():
            return None
        loops.append((count, distance))
        order = rows[:, 0]
    return tuple(reversed(loops))


def joined(steps: Iterable[tuple[int, int]]) -> Steps:
    """Simplifies nested loops (count, stride): merges contiguous ones, drops those of count 1."""
    merged: list[tuple[int, int]] = []
    for count, distance in steps:
        if count == 1:
            continue
        if merged and merged[-1][1] == count * distance:
            merged[-1] = merged[-1][0] * count, distance
        else:
            merged.append((count, distance))
    return tuple(merged)


@_cached
def typed(shape: Shape, like: Shape) -> Shape:
    """A copy of `shape` with the element type of `like`."""
    kind, bits = like.element_type, like.element_bits
    return dataclasses.replace(shape, element_type=kind, element_bits=bits, key=b"")
