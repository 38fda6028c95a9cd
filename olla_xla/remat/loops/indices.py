"""Scalar integers of a loop's body as functions of its state: an abstract interpretation.

XLA and JAX write the index of an iteration's slice in many ways: negative ones are counted from the
end by a select, others are clamped, converted to another type or taken modulo an extent. Where the
iteration is known to be in range, most of that does nothing. A value is followed as an interval,
and as a multiple of an element of the state plus a constant, equal modulo 2**bits of its type. As
long as the interval fits the type, nothing has wrapped around, and the two are equal as whole
numbers. Only then may a comparison, a conversion or a division be decided by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from hlo.module import Instruction
from hlo.shapes import Shape, ShapeIndex
from hlo.wire import INTEGERS, scalar_integer

__all__ = ["Affine", "Index", "Indices"]

_PRED = 1

_Range = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Affine:
    """`factor * element + offset`; a constant where `element` is None."""

    element: ShapeIndex | None
    factor: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Index:
    """What is known of a scalar integer.

    Attributes:
      affine: what it is equal to, modulo 2**bits of its type; None if not known.
      range: its least and greatest value; None if it may have wrapped around. Where both are known,
        it is equal to `affine` as a whole number.
    """

    affine: Affine | None
    range: _Range | None


_UNKNOWN = Index(None, None)


class Indices:
    """The rules for one loop's body.

    Args:
      ranges: element of the state -> its least and greatest value when an iteration begins.
    """

    def __init__(self, ranges: Mapping[ShapeIndex, _Range]) -> None:
        self._ranges = ranges
        self._elements: dict[ShapeIndex, _Range] = {}

    @staticmethod
    def is_known_type(shape: Shape) -> bool:
        """Whether it is one integer, or one pred."""
        return shape.is_array and not shape.dimensions and shape.element_type in INTEGERS

    @staticmethod
    def has_rule(i: Instruction) -> bool:
        """Whether anything is known of what an operation gives."""
        return i.opcode in _RULES or i.opcode in _OF_TRUTHS or i.opcode in _OTHERS

    def element(self, index: ShapeIndex, element_type: int) -> Index:
        """An element of the state."""
        held = self._ranges.get(index, _held(element_type))
        self._elements[index] = held
        return Index(Affine(index, 1, 0), held)

    def result(self, i: Instruction, shape: Shape, given: list[Index]) -> Index:
        """What an operation gives for its operands."""
        if i.opcode == "constant":
            assert i.proto is not None
            value = scalar_integer(i.proto.literal, shape.element_type)
            return _UNKNOWN if value is None else _constant(value)
        if i.opcode == "compare":
            return _truth(_compared(i.direction, self._difference(*given)))
        if i.opcode == "convert":
            to_pred = shape.element_type == _PRED
            return (
                _UNKNOWN if to_pred else self._fitted(given[0], shape.element_type, converted=True)
            )
        if shape.element_type == _PRED and i.opcode in _OF_TRUTHS:
            return _OF_TRUTHS[i.opcode](*given)
        rule = _RULES.get(i.opcode)
        if rule is None or (shape.element_type == _PRED and i.opcode != "select"):
            return _UNKNOWN
        return self._fitted(rule(self, *given), shape.element_type)

    def _fitted(self, index: Index, element_type: int, *, converted: bool = False) -> Index:
        """An index as a value of a type, in which it may have wrapped around."""
        if index.range is None:
            # A value that may have wrapped around is not known in another type.
            return _UNKNOWN if converted else index
        low, high = _held(element_type)
        around, last = ((end - low) // (high - low + 1) for end in index.range)
        if around == last:  # all values wrap equally often
            return self._sum(index, _constant(around * (high - low + 1)), -1) if around else index
        return Index(index.affine, None)

    def _over(self, affine: Affine) -> _Range:
        """The least and the greatest value of an affine one, as whole numbers."""
        if affine.element is None:
            return affine.offset, affine.offset
        low, high = (affine.factor * end + affine.offset for end in self._elements[affine.element])
        return min(low, high), max(low, high)

    def _sum(self, a: Index, b: Index, sign: int = 1) -> Index:
        affine = found = None
        if a.affine is not None and b.affine is not None:
            affine = _add(a.affine, b.affine, sign)
        if a.range is not None and b.range is not None:
            others = b.range if sign > 0 else (-b.range[1], -b.range[0])
            found = a.range[0] + others[0], a.range[1] + others[1]
            if affine is not None:
                found = self._over(affine)
        return Index(affine, found)

    def _difference(self, a: Index, b: Index) -> _Range | None:
        """The range of a - b, as whole numbers."""
        return self._sum(a, b, -1).range

    def _subtract(self, a: Index, b: Index) -> Index:
        return self._sum(a, b, -1)

    def _negate(self, a: Index) -> Index:
        return self._sum(_constant(0), a, -1)

    def _multiply(self, a: Index, b: Index) -> Index:
        affine = found = None
        if a.range is not None and b.range is not None:
            ends = [x * y for x in a.range for y in b.range]
            found = min(ends), max(ends)
        if a.affine is not None and b.affine is not None:
            one, other = (b.affine, a.affine) if b.affine.element is None else (a.affine, b.affine)
            if one.element is None:
                factor = other.factor * one.offset
                element = other.element if factor else None
                affine = Affine(element, factor, other.offset * one.offset)
        return Index(affine, found)

    def _greater(self, a: Index, b: Index) -> Index:
        more = self._difference(a, b)
        if more is None or a.range is None or b.range is None:
            return _UNKNOWN
        if more[0] >= 0 and (more[1] > 0 or _is_of_element(a)):
            return a
        if more[1] <= 0:
            return b
        return Index(None, (max(a.range[0], b.range[0]), max(a.range[1], b.range[1])))

    def _less(self, a: Index, b: Index) -> Index:
        return self._negate(self._greater(self._negate(a), self._negate(b)))

    def _clamp(self, low: Index, a: Index, high: Index) -> Index:
        return self._less(self._greater(a, low), high)

    def _select(self, test: Index, a: Index, b: Index) -> Index:
        if test.range in ((1, 1), (0, 0)):
            return a if test.range == (1, 1) else b
        if a.range is None or b.range is None:
            return _UNKNOWN
        affine = a.affine if a.affine == b.affine else None
        return Index(affine, (min(a.range[0], b.range[0]), max(a.range[1], b.range[1])))

    def _remainder(self, a: Index, b: Index) -> Index:
        """The remainder of a division that is rounded towards zero."""
        if a.range is None or b.range is None or b.range[0] != b.range[1] or b.range[0] < 1:
            return _UNKNOWN
        n, (low, high) = b.range[0], a.range
        times = low // n if low >= 0 else -(-high // n)
        if low >= 0 or high <= 0:
            rest = self._sum(a, _constant(times * n), -1)
            assert rest.range is not None
            if -n < rest.range[0] and rest.range[1] < n:
                return rest
        return Index(None, (max(1 - n, min(low, 0)), min(n - 1, max(high, 0))))

    def _divide(self, a: Index, b: Index) -> Index:
        """A division that is rounded towards zero."""
        if a.range is None or b.range is None or b.range[0] != b.range[1] or b.range[0] < 1:
            return _UNKNOWN
        n = b.range[0]
        low, high = (end // n if end >= 0 else -(-end // n) for end in a.range)
        return _constant(low) if low == high else Index(a.affine if n == 1 else None, (low, high))

    def _and(self, a: Index, b: Index) -> Index:
        """With a mask of the lowest bits, which keeps a value that has no others."""
        for one, mask in ((a, b), (b, a)):
            if mask.range is None or one.range is None or mask.range[0] != mask.range[1]:
                continue
            most = mask.range[0]
            if most & (most + 1) == 0 and 0 <= one.range[0] and one.range[1] <= most:
                return one
        return _UNKNOWN

    def _absolute(self, a: Index) -> Index:
        return self._greater(a, self._negate(a))

    def _same(self, a: Index) -> Index:
        return a


_OTHERS = frozenset({"compare", "constant", "convert"})

_RULES: Mapping[str, Callable[..., Index]] = {
    "abs": Indices._absolute,
    "add": Indices._sum,
    "and": Indices._and,
    "bitcast": Indices._same,
    "clamp": Indices._clamp,
    "copy": Indices._same,
    "divide": Indices._divide,
    "maximum": Indices._greater,
    "minimum": Indices._less,
    "multiply": Indices._multiply,
    "negate": Indices._negate,
    "remainder": Indices._remainder,
    "reshape": Indices._same,
    "select": Indices._select,
    "subtract": Indices._subtract,
}


def _held(element_type: int) -> _Range:
    """The least and the greatest value of a type."""
    _, bits, signed = INTEGERS[element_type]
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _constant(value: int) -> Index:
    return Index(Affine(None, 0, value), (value, value))


def _is_of_element(index: Index) -> bool:
    return index.affine is not None and index.affine.element is not None


def _add(a: Affine, b: Affine, sign: int) -> Affine | None:
    if a.element is not None and b.element is not None and a.element != b.element:
        return None
    factor = a.factor + sign * b.factor
    element = a.element if a.element is not None else b.element
    return Affine(element if factor else None, factor, a.offset + sign * b.offset)


def _truth(value: bool | None) -> Index:
    return Index(None, (0, 1)) if value is None else _constant(int(value))


def _known(test: Index) -> bool | None:
    return bool(test.range[0]) if test.range in ((0, 0), (1, 1)) else None


def _compared(direction: str, more: _Range | None) -> bool | None:
    """The result of a comparison of a and b, where `more` is the range of a - b; None: either."""
    if more is None:
        return None
    low, high = more
    ends = {
        "LT": (high < 0, low >= 0),
        "LE": (high <= 0, low > 0),
        "GT": (low > 0, high <= 0),
        "GE": (low >= 0, high < 0),
        "EQ": (low == high == 0, low > 0 or high < 0),
        "NE": (low > 0 or high < 0, low == high == 0),
    }
    always, never = ends.get(direction, (False, False))
    return True if always else False if never else None


def _both(a: Index, b: Index) -> Index:
    one, other = _known(a), _known(b)
    if one is False or other is False:
        return _truth(False)
    return _truth(True if one and other else None)


def _not(a: Index) -> Index:
    value = _known(a)
    return _truth(None if value is None else not value)


def _either(a: Index, b: Index) -> Index:
    return _not(_both(_not(a), _not(b)))


def _one_of(a: Index, b: Index) -> Index:
    one, other = _known(a), _known(b)
    return _truth(None if one is None or other is None else one is not other)


_OF_TRUTHS: Mapping[str, Callable[..., Index]] = {
    "and": _both,
    "not": _not,
    "or": _either,
    "xor": _one_of,
}
