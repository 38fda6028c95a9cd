"""Scalar integers of a loop's body in every iteration at once, as NumPy arrays of XLA's own types.

XLA and JAX write the index of an iteration's slice in many ways: negative ones are counted from the
end by a select, others are clamped, converted or taken modulo an extent. The trip count is known,
so each is computed for all iterations. Of an element of the state that is neither the counter nor a
constant, only sums and products with constants are followed.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hlo.module import Instruction
from hlo.shapes import Shape, ShapeIndex
from hlo.wire import INTEGERS, scalar_integer

MOST_ITERATIONS = 1 << 18
"""Loops with more are not followed: each scalar integer takes an array of so many."""

_PRED = 1


@dataclasses.dataclass(frozen=True)
class Affine:
    """A loop's index: factor * (element of its state, or no element) + offset, modulo 2**bits."""

    element: ShapeIndex | None
    factor: int
    offset: int


Index = NDArray[Any] | Affine | None
"""A scalar integer: its value in each iteration (a constant: without dimensions), or as a multiple
of an element of the state, or not known.
"""


def is_known_type(shape: Shape) -> bool:
    """Whether a shape is a scalar of an integer type or pred."""
    return shape.is_array and not shape.dimensions and shape.element_type in INTEGERS


def typed(values: Any, element_type: int) -> NDArray[Any]:
    """Whole numbers as a NumPy array of an XLA element type, wrapped around; as pred, if not 0."""
    _, bits, signed = INTEGERS[element_type]
    name = "bool" if element_type == _PRED else f"{'int' if signed else 'uint'}{bits}"
    return np.asarray(values).astype(name)


def affine(index: Index, counter: ShapeIndex | None, *, whole: bool = False) -> Affine | None:
    """Writes a loop index as factor * `counter` (the element that counts) + offset, or as a
    constant; None if its values are not so. With `whole`, that must hold for whole numbers, without
    wrapping around. An `Affine` is returned as it is, with `whole` only if it is an element alone.
    """
    if not isinstance(index, np.ndarray):
        is_element = index is not None and (index.factor, index.offset) == (1, 0)
        return None if whole and not is_element else index
    values = np.atleast_1d(index)
    first, last = int(values[0]), int(values[-1])
    if (values == values[:1]).all():
        return Affine(None, 0, first)
    if values.dtype == bool:
        return None
    step, wrapped = int(values[1]) - first, values[1:2] - values[:1]
    if (values[:1] + wrapped * np.arange(len(values)).astype(values.dtype) != values).any():
        return None
    if first + step * (len(values) - 1) == last:  # and so is all between them
        return Affine(counter, step, first)
    return None if whole else Affine(counter, int(wrapped.astype(f"i{values.itemsize}")[0]), first)


def result(i: Instruction, shape: Shape, given: list[Index]) -> Index:
    """Computes the `Index` of an operation's result from those of its operands; None: not known."""
    kind = shape.element_type
    if i.opcode == "constant":
        assert i.proto is not None
        value = scalar_integer(i.proto.literal, kind)
        return None if value is None else typed(value, kind)
    if i.opcode == "select" and isinstance(test := given[0], np.ndarray):
        if test.all() or not test.any():
            return given[1] if test.all() else given[2]  # whatever the other is
    rule = _COMPARISONS.get(i.direction) if i.opcode == "compare" else _RULES.get(i.opcode)
    if kind == _PRED and i.opcode not in _OF_PREDS:
        return None
    arrays = [g for g in given if isinstance(g, np.ndarray)]
    if len(arrays) < len(given):
        return _of_element(i.opcode, given)
    if i.opcode == "convert":
        return typed(arrays[0], kind)
    with np.errstate(all="ignore"):
        array = None if rule is None else rule(*arrays)
    return None if array is None else np.asarray(array)


def _of_element(opcode: str, given: list[Index]) -> Affine | None:
    """Computes an operation on multiples of a state element plus constants; None if not such."""
    lines = [affine(g, None) for g in given]
    known = [a for a in lines if a is not None]
    if len(known) < len(given):
        return None
    match opcode, known:
        case "add", [a, b]:
            return _sum(a, b, 1)
        case "subtract", [a, b]:
            return _sum(a, b, -1)
        case "negate", [a]:
            return Affine(a.element, -a.factor, -a.offset)
        case "multiply", [a, b] if None in (a.element, b.element):
            line, by = (a, b.offset) if b.element is None else (b, a.offset)
            return _line(line.element, line.factor * by, line.offset * by)
        case (("bitcast" | "copy" | "reshape"), [a]):
            return a
    return None


def _sum(a: Affine, b: Affine, sign: int) -> Affine | None:
    if None not in (a.element, b.element) and a.element != b.element:
        return None
    element = b.element if a.element is None else a.element
    return _line(element, a.factor + sign * b.factor, a.offset + sign * b.offset)


def _line(element: ShapeIndex | None, factor: int, offset: int) -> Affine:
    return Affine(element if factor else None, factor, offset)


def _quotient(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any] | None:
    """Integer division of arrays, rounded towards zero; None if a divisor is 0."""
    if not b.all():
        return None
    down = a // b
    return down + ((down * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)


def _remainder(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any] | None:
    quotient = _quotient(a, b)
    return None if quotient is None else a - quotient * b


_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
    "NE": np.not_equal,
}

_OF_PREDS = frozenset({"and", "compare", "convert", "not", "or", "select", "xor"})

_RULES: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "bitcast": np.asarray,
    "clamp": lambda low, a, high: np.minimum(np.maximum(low, a), high),
    "copy": np.asarray,
    "divide": _quotient,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "remainder": _remainder,
    "reshape": np.asarray,
    "select": np.where,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}
