"""Random chains of bitcasts, transposes and slices: one number for one order of elements.

An array's elements are their places in the array that a chain begins with; what a chain makes of
them is NumPy's. Slices have indices that are symbols: two arrays are alike if they are so for all
values of these.
"""

import random

import numpy as np
import pytest

from hlo.shapes import Shape
from olla_xla.check.executable.element_expressions import ElementExpressions
from olla_xla.check.executable.element_order import as_row, permuted
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.slices import sliced_digit

ARRAY = hashed(b"array")
INDICES = {hashed(b"first"): 0, hashed(b"second"): 1}
VALUES = [(k * step % 48, (k + step * 7) % 48) for k in range(48) for step in (0, 1, 2, 5)]
"""Of both indices; each takes all values that it may have."""


def shape(dimensions, layout):
    return Shape(11, tuple(dimensions), (), tuple(layout), 0, 32, b"")


def shuffled(rng, items):
    return rng.sample(items, len(items))


def split(rng, size):
    """Random extents of so many elements, some of them 1."""
    found = []
    while size > 1:
        n = rng.choice([n for n in range(2, size + 1) if size % n == 0])
        found.append(n)
        size //= n
    found += [1] * rng.choice([0, 0, 1, 2])
    return shuffled(rng, found)


def chain(rng, numbering, begun, slices):
    """(number, shape, elements for all values of the indices) after some random operations."""
    number, at = ARRAY, begun
    row = np.arange(begun.num_elements).reshape(begun.dimensions)
    elements = np.stack([row] * len(VALUES))
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["bitcast", "transpose", "copy", *["slice"] * slices])
        axes = range(len(at.dimensions))
        if kind == "bitcast":
            extents = split(rng, at.num_elements)
            new = shape(extents, shuffled(rng, range(len(extents))))
            memory = elements.transpose(0, *(1 + k for k in reversed(at.minor_to_major)))
            outwards = new.minor_to_major[::-1]
            memory = memory.reshape(len(VALUES), *(extents[k] for k in outwards))
            elements = memory.transpose(0, *(1 + np.argsort(outwards, kind="stable")))
            number = numbering.cast(number, at, new)
        elif kind == "transpose":
            order = shuffled(rng, axes)
            new = shape([at.dimensions[k] for k in order], shuffled(rng, axes))
            elements = elements.transpose(0, *(1 + k for k in order))
            number = numbering.arranged(number, at, permuted(at, tuple(order)), new)
        elif kind == "copy" or not at.dimensions:
            new = shape(at.dimensions, shuffled(rng, axes))
        else:
            axis, (index, which) = rng.choice(axes), rng.choice(sorted(INDICES.items()))
            extents = [1 if k == axis else n for k, n in enumerate(at.dimensions)]
            new = shape(extents, at.minor_to_major)
            there = [min(v[which], at.dimensions[axis] - 1) for v in VALUES]
            elements = np.stack(
                [np.take(e, [k], axis) for e, k in zip(elements, there, strict=True)]
            )
            row = numbering.taken(number, index, at, sliced_digit(at, axis))
            number = numbering.arranged(row, as_row(new), permuted(new), new)
        at = new
    return number, at, elements


def counted(seed, size, chains, slices):
    """(numbers, those of two orders, orders, those of two numbers) of random chains."""
    rng = random.Random(seed)
    numbering = ElementExpressions("cuda")
    extents = split(rng, size)
    begun = shape(extents, shuffled(rng, range(len(extents))))
    orders, numbers = {}, {}
    for _ in range(chains):
        number, at, elements = chain(rng, numbering, begun, slices)
        told = at.dimensions, elements.tobytes()
        orders.setdefault(number, set()).add(told)
        numbers.setdefault(told, set()).add(number)
    twice = [sum(len(found) > 1 for found in by.values()) for by in (orders, numbers)]
    return len(orders), twice[0], len(numbers), twice[1]


@pytest.mark.parametrize("slices", [0, 2])
@pytest.mark.parametrize("size", [12, 16, 36])
def test_one_number_is_one_order_and_one_order_one_number(size, slices):
    for seed in range(4):
        numbers, two_orders, orders, two_numbers = counted(seed, size, 250, slices)
        assert numbers > 50
        assert (two_orders, two_numbers) == (0, 0), seed
