"""Scalar integers that count a loop's iterations, or follow from such a count.

XLA computes slice indices from a loop's counter in many ways, inside fusions and outside. Written
as a form, `factor * symbol + offset`, equal ones have one number. A number has bounds if it is
certain not to have wrapped around. Bounds may decide a select, a clamp, a minimum or a maximum,
which is then one of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hlo.wire import INTEGERS, scalar_integer
from olla_xla.check.executable.program import Op

__all__ = ["Form", "Integers", "Known"]

_PRED = 1

Bounds = tuple[int, int]


class Form(NamedTuple):
    """`factor * symbol + offset`, a constant where there is no symbol."""

    symbol: bytes | None
    factor: int
    offset: int


class Known(NamedTuple):
    """An integer.

    Attributes:
      number: of it, if it is a value that has one.
      form: what it equals modulo 2**bits of its type; None if not known.
      bounds: its least and greatest value; None if it may have wrapped around. With form and
        bounds, it equals its form.
    """

    number: bytes | None
    form: Form | None
    bounds: Bounds | None


class Integers:
    """Forms, bounds and element types of numbers."""

    def __init__(self) -> None:
        self._forms: dict[bytes, Form] = {}
        self._bounds: dict[bytes, Bounds] = {}
        self._kinds: dict[bytes, int] = {}

    @staticmethod
    def type_of(op: Op) -> int:
        """The element type of a scalar integer or truth value, else 0."""
        shape = op.shape
        scalar = shape.is_array and not shape.dimensions and shape.element_type in INTEGERS
        return shape.element_type if scalar else 0

    def form(self, number: bytes) -> Form | None:
        """The form that a number equals, perhaps after wrapping around; None if not known."""
        return self._forms.get(number)

    def whole(self, number: bytes) -> Form | None:
        """The form that a number equals without wrapping around; None if not known."""
        return self._forms.get(number) if number in self._bounds else None

    def kind(self, symbol: bytes) -> int:
        """The element type of a symbol."""
        return self._kinds[symbol]

    def note(self, number: bytes, form: Form | None, bounds: Bounds | None) -> None:
        """Records a number's form and bounds."""
        if form is not None:
            self._forms[number] = form
        if bounds is not None:
            self._bounds[number] = bounds

    def symbol(self, number: bytes, kind: int, iterations: int | None = None) -> None:
        """Declares a number a symbol of an element type; with `iterations`, in [0, iterations)."""
        if kind not in INTEGERS:
            return
        self._forms.setdefault(number, Form(number, 1, 0))
        self._kinds.setdefault(number, kind)
        self._bounds.setdefault(number, _extent(kind))
        if iterations is not None:
            self._bounds[number] = 0, iterations - 1

    def within(self, number: bytes, bound: int) -> bool:
        """Whether it is certainly in [0, bound)."""
        low, high = self._bounds.get(number, (-1, -1))
        return 0 <= low and high < bound

    def over(self, form: Form) -> Bounds:
        """The bounds of a form."""
        if form.symbol is None:
            return form.offset, form.offset
        ends = [form.factor * end + form.offset for end in self._bounds[form.symbol]]
        return min(ends), max(ends)

    def result(self, op: Op, kind: int, operands: list[bytes]) -> Known | None:
        """What is known of an operation's result, or None; `kind` is its element type."""
        if op.opcode == "constant":
            value = scalar_integer(op.proto.literal, kind)
            return None if value is None else _fixed(value)
        read = [Known(n, self._forms.get(n), self._bounds.get(n)) for n in operands]
        if op.opcode == "compare":
            verdict = _VERDICTS.get(op.proto.comparison_direction, lambda low, high: None)
            more = self._minus(*read).bounds
            return _truth(None if more is None else verdict(*more))
        if op.opcode == "convert":
            found = None if kind == _PRED or read[0].bounds is None else read[0]
            return None if found is None else self._in_type(found, kind, same=False)
        if kind == _PRED and op.opcode != "select":
            rule = _LOGIC.get(op.opcode)
            return None if rule is None else rule(*read)
        arithmetic = _ARITHMETIC.get(op.opcode)
        found = None if arithmetic is None else arithmetic(self, *read)
        return None if found is None else self._in_type(found, kind, same=True)

    def _in_type(self, known: Known, kind: int, *, same: bool) -> Known:
        """An integer wrapped to an element type; `same`: it was computed in that type."""
        number = known.number if same else None
        if known.bounds is None:
            return known._replace(number=number)
        low, high = _extent(kind)
        if low <= known.bounds[0] and known.bounds[1] <= high:
            return known._replace(number=number)
        size = high + 1 - low
        wraps = {(bound - low) // size for bound in known.bounds}
        if len(wraps) > 1:
            return Known(None, known.form, None)
        return self._plus(known, _fixed(-size * wraps.pop()))

    def _plus(self, a: Known, b: Known) -> Known:
        form = bounds = None
        if a.form is not None and b.form is not None:
            form = _total(a.form, b.form)
        if a.bounds is not None and b.bounds is not None:
            bounds = a.bounds[0] + b.bounds[0], a.bounds[1] + b.bounds[1]
            if form is not None:
                bounds = self.over(form)
        return Known(None, form, bounds)

    @staticmethod
    def _opposite(a: Known) -> Known:
        form = None if a.form is None else Form(a.form.symbol, -a.form.factor, -a.form.offset)
        bounds = None if a.bounds is None else (-a.bounds[1], -a.bounds[0])
        return Known(None, form, bounds)

    def _minus(self, a: Known, b: Known) -> Known:
        return self._plus(a, self._opposite(b))

    def _times(self, a: Known, b: Known) -> Known:
        form = bounds = None
        if a.form is not None and b.form is not None:
            one, other = (b.form, a.form) if a.form.symbol is None else (a.form, b.form)
            if other.symbol is None:
                by = other.offset
                form = _form(one.symbol, one.factor * by, one.offset * by)
        if a.bounds is not None and b.bounds is not None:
            corners = sorted(x * y for x in a.bounds for y in b.bounds)
            bounds = corners[0], corners[-1]
        return Known(None, form, bounds)

    def _highest(self, a: Known, b: Known) -> Known | None:
        more = self._minus(a, b).bounds
        if more is None or a.bounds is None or b.bounds is None:
            return None
        if more[0] >= 0 and not (more == (0, 0) and a.form is not None and not a.form.symbol):
            return a
        if more[1] <= 0:
            return b
        ends = zip(a.bounds, b.bounds, strict=True)
        low, high = (max(pair) for pair in ends)
        return Known(None, None, (low, high))

    def _lowest(self, a: Known, b: Known) -> Known | None:
        more = self._minus(a, b).bounds
        if more is None or a.bounds is None or b.bounds is None:
            return None
        if more[1] <= 0 and not (more == (0, 0) and a.form is not None and not a.form.symbol):
            return a
        if more[0] >= 0:
            return b
        ends = zip(a.bounds, b.bounds, strict=True)
        low, high = (min(pair) for pair in ends)
        return Known(None, None, (low, high))

    def _limited(self, low: Known, a: Known, high: Known) -> Known | None:
        raised = self._highest(a, low)
        return None if raised is None else self._lowest(raised, high)

    def _chosen(self, test: Known, a: Known, b: Known) -> Known | None:
        if test.bounds in ((0, 0), (1, 1)):
            return b if test.bounds == (0, 0) else a
        if a.bounds is None or b.bounds is None:
            return None
        low, high = min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1])
        return Known(None, a.form if a.form == b.form else None, (low, high))

    def _rest(self, a: Known, b: Known) -> Known | None:
        """The remainder of a division by a positive constant, with the dividend's sign."""
        by = _positive(b)
        if by is None or a.bounds is None:
            return None
        low, high = a.bounds
        first, last = _quotient(low, by), _quotient(high, by)
        if first == last and (low >= 0 or high <= 0):
            return self._minus(a, _fixed(first * by)) if first else a
        return Known(None, None, (max(low, 1 - by) if low < 0 else 0, max(0, min(high, by - 1))))

    def _divided(self, a: Known, b: Known) -> Known | None:
        by = _positive(b)
        if by is None or a.bounds is None:
            return None
        first, last = (_quotient(end, by) for end in a.bounds)
        if by == 1:
            return a
        return _fixed(first) if first == last else Known(None, None, (first, last))

    def _masked(self, a: Known, b: Known) -> Known | None:
        """A bitwise and: one operand, if the other is a mask that keeps all its bits."""
        for one, mask in ((a, b), (b, a)):
            ones = None if mask.bounds is None else mask.bounds[0] + 1
            if ones is None or one.bounds is None or mask.bounds != (ones - 1, ones - 1):
                continue
            if ones > 0 and ones.bit_count() == 1 and 0 <= one.bounds[0] <= one.bounds[1] < ones:
                return one
        return None

    def _size(self, a: Known) -> Known | None:
        if a.bounds is None:
            return None
        if a.bounds[0] >= 0:
            return a
        opposite = self._opposite(a)
        return (
            opposite if a.bounds[1] <= 0 else Known(None, None, (0, max(-a.bounds[0], a.bounds[1])))
        )


_ARITHMETIC: Mapping[str, Callable[..., Known | None]] = {
    "abs": Integers._size,
    "add": Integers._plus,
    "and": Integers._masked,
    "clamp": Integers._limited,
    "divide": Integers._divided,
    "maximum": Integers._highest,
    "minimum": Integers._lowest,
    "multiply": Integers._times,
    "negate": lambda integers, a: integers._opposite(a),
    "remainder": Integers._rest,
    "select": Integers._chosen,
    "subtract": Integers._minus,
}


def _extent(kind: int) -> Bounds:
    """The least and the greatest value of an element type."""
    _, bits, signed = INTEGERS[kind]
    half = 1 << (bits - 1)
    return (-half, half - 1) if signed else (0, 2 * half - 1)


def _fixed(value: int) -> Known:
    return Known(None, Form(None, 0, value), (value, value))


def _total(a: Form, b: Form) -> Form | None:
    if a.symbol is not None and b.symbol is not None and a.symbol != b.symbol:
        return None
    return _form(a.symbol or b.symbol, a.factor + b.factor, a.offset + b.offset)


def _form(symbol: bytes | None, factor: int, offset: int) -> Form:
    return Form(symbol if factor else None, factor, offset)


def _positive(a: Known) -> int | None:
    """The value of a constant above 0; else None."""
    if a.bounds is None or a.bounds[0] != a.bounds[1] or a.bounds[0] < 1:
        return None
    return a.bounds[0]


def _quotient(a: int, by: int) -> int:
    """A division by a positive number, rounded to zero."""
    return a // by if a >= 0 else -(-a // by)


def _truth(value: bool | None) -> Known:
    return Known(None, None, (0, 1)) if value is None else _fixed(int(value))


def _sure(a: Known, value: bool) -> bool:
    return a.bounds == (int(value), int(value))


def _all_true(a: Known, b: Known) -> Known:
    if _sure(a, False) or _sure(b, False):
        return _truth(False)
    return _truth(True if _sure(a, True) and _sure(b, True) else None)


def _any_true(a: Known, b: Known) -> Known:
    if _sure(a, True) or _sure(b, True):
        return _truth(True)
    return _truth(False if _sure(a, False) and _sure(b, False) else None)


def _untrue(a: Known) -> Known:
    return _truth(True if _sure(a, False) else False if _sure(a, True) else None)


def _unlike(a: Known, b: Known) -> Known:
    settled = all(_sure(k, True) or _sure(k, False) for k in (a, b))
    return _truth(a.bounds != b.bounds if settled else None)


_LOGIC: Mapping[str, Callable[..., Known]] = {
    "and": _all_true,
    "not": _untrue,
    "or": _any_true,
    "xor": _unlike,
}


def _is_less(low: int, high: int) -> bool | None:
    return True if high < 0 else False if low >= 0 else None


def _is_more(low: int, high: int) -> bool | None:
    return _is_less(-high, -low)


def _is_equal(low: int, high: int) -> bool | None:
    if low == high == 0:
        return True
    return False if low > 0 or high < 0 else None


def _flipped(verdict: Callable[[int, int], bool | None]) -> Callable[[int, int], bool | None]:
    def opposite(low: int, high: int) -> bool | None:
        value = verdict(low, high)
        return None if value is None else not value

    return opposite


_VERDICTS: Mapping[str, Callable[[int, int], bool | None]] = {
    "LT": _is_less,
    "GE": _flipped(_is_less),
    "GT": _is_more,
    "LE": _flipped(_is_more),
    "EQ": _is_equal,
    "NE": _flipped(_is_equal),
}
"""Direction -> the result of a comparison for bounds of left - right; None if undecided."""
