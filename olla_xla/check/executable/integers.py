"""Scalar integers of loops' iterations, by their values in all of them.

XLA computes slice indices from a loop's counter in many ways, inside fusions and outside. Where the
trip count is known, an integer that follows from one counter and constants is computed for every
iteration as XLA defines the operations, in 64 bits and wrapped to its type. It is numbered by the
line that its values lie on, else by the values: equal ones have one number. Of a symbol whose
values are not known only lines are followed, modulo 2**bits of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlo.wire import INTEGERS, scalar_integer
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.program import Op

Values = NDArray[np.int64]
"""64-bit integers, one for each iteration."""

_PRED, _U64 = 1, 9
_MOST_ITERATIONS = 1 << 18  # loops with more are followed by lines alone
_LARGE = 1 << 40  # steps and starts of lines below it overflow in no iteration
_INTEGER = hashed(b"integer")


class Form(NamedTuple):
    """`factor * symbol + offset`, a constant where there is no symbol."""

    symbol: bytes | None
    factor: int
    offset: int


class Known(NamedTuple):
    """An integer, or a pred as 0 or 1.

    Attributes:
      number: of it, if it is a value that has one.
      form: the line that it lies on, modulo 2**bits of its type; None if not known.
      whole: whether it equals its form without wrapping around.
      symbol: that other values follow from.
      values: one for each iteration that the symbol counts, where these lie on no line.
    """

    number: bytes | None
    form: Form | None = None
    whole: bool = False
    symbol: bytes | None = None
    values: Values | None = None


class Integers:
    """What is known of numbers."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}
        self._counts: dict[bytes, int] = {}
        self._kinds: dict[bytes, int] = {}

    @staticmethod
    def type_of(op: Op) -> int:
        """The element type of a scalar integer or pred that is followed, else 0."""
        shape, kind = op.shape, op.shape.element_type
        scalar = shape.is_array and not shape.dimensions and kind in INTEGERS
        return kind if scalar and kind != _U64 else 0

    def is_known(self, number: bytes) -> bool:
        """Whether a number is an integer with a form or with values."""
        return number in self._known

    def form(self, number: bytes) -> Form | None:
        """The form that a number equals, perhaps after wrapping around; None if not known."""
        return self._of(number).form

    def whole(self, number: bytes) -> Form | None:
        """The form that a number equals without wrapping around; None if not known."""
        known = self._of(number)
        return known.form if known.whole else None

    def within(self, number: bytes, bound: int) -> bool:
        """Whether it is in [0, bound) in all iterations."""
        values = self._values(self._of(number))
        return values is not None and bool(((values >= 0) & (values < bound)).all())

    def symbol_of(self, number: bytes) -> bytes | None:
        """The symbol that a number follows from; None if it is constant or not known."""
        return _symbol(self._of(number))

    def values(self, number: bytes, symbol: bytes) -> Values | None:
        """A number's values, one for each iteration that a symbol counts; None if not known."""
        values = self._values(self._of(number))
        if values is None or self.symbol_of(number) not in (None, symbol):
            return None
        count = self._counts.get(symbol)
        return None if count is None else np.broadcast_to(values, (count,))

    def of_symbol(self, symbol: bytes) -> Iterator[bytes]:
        """The numbers that follow from a symbol alone, as they were found."""
        return (number for number, known in self._known.items() if _symbol(known) == symbol)

    def symbol(self, number: bytes, kind: int, iterations: int | None = None) -> None:
        """Declares a number a symbol of an element type; with `iterations`, it counts them."""
        if kind not in INTEGERS:
            return
        self._kinds.setdefault(number, kind)
        self._known.setdefault(number, Known(number, Form(number, 1, 0), True))
        if iterations is not None and iterations <= _MOST_ITERATIONS:
            self._counts[number] = iterations

    def integer(self, form: Form, kind: int, *, whole: bool) -> bytes:
        """The number of an integer that has a form.

        Args:
          form: of it. kind: its element type. whole: whether it is certain to equal the form
            without wrapping around.
        """
        if form[1:] == (1, 0) and self._kinds.get(form.symbol or b"") == kind:
            return form.symbol or b""
        return self._noted(Known(None, form, whole), repr((kind, *form)).encode())

    def result(self, op: Op, kind: int, operands: list[bytes]) -> bytes | None:
        """The number of an operation's result, or None; `kind` is its element type."""
        if op.opcode == "constant":
            value = scalar_integer(op.proto.literal, kind)
            return None if value is None else self.integer(Form(None, 0, value), kind, whole=True)
        read = [self._of(n) for n in operands]
        if op.opcode == "select" and (test := self._values(read[0])) is not None:
            if test.all() or not test.any():
                return operands[1] if test.all() else operands[2]
        symbols = {_symbol(k) for k in read} - {None}
        values = [v for k in read if (v := self._values(k)) is not None]
        if len(values) < len(read) or len(symbols) > 1:
            form = None if kind == _PRED else _line(op.opcode, [k.form for k in read])
            if form is not None:
                return self.integer(form, kind, whole=False)
            return self._converted(operands[0], kind) if op.opcode == "convert" else None
        direction = op.proto.comparison_direction if op.opcode == "compare" else ""
        rule = (_OF_PREDS if kind == _PRED else _RULES).get(op.opcode + direction)
        with np.errstate(all="ignore"):
            found = None if rule is None else rule(*values)
        if found is None:
            return None
        return self._numbered(next(iter(symbols), None), _wrapped(np.asarray(found), kind), kind)

    def _of(self, number: bytes) -> Known:
        return self._known.get(number, Known(number))

    def _values(self, known: Known) -> Values | None:
        """An integer's values; without dimensions if it is constant."""
        if known.form is None or not known.whole:
            return known.values
        if known.form.symbol is None:
            return np.asarray(known.form.offset)
        count = self._counts.get(known.form.symbol)
        return None if count is None else known.form.factor * np.arange(count) + known.form.offset

    def _noted(self, known: Known, said: bytes) -> bytes:
        """A number for an integer by what is said of it; records the integer."""
        number = hashed(_INTEGER + said)
        self._known[number] = known._replace(number=number)
        return number

    def _numbered(self, symbol: bytes | None, values: Values, kind: int) -> bytes:
        """The number of an integer that has these values."""
        row = np.atleast_1d(values)
        first = int(row[0])
        if (row == first).all():
            return self.integer(Form(None, 0, first), kind, whole=True)
        step = int(row[1]) - first
        if (
            abs(step) < _LARGE
            and abs(first) < _LARGE
            and (row == first + step * np.arange(len(row))).all()
        ):
            return self.integer(Form(symbol, step, first), kind, whole=True)
        said = repr((kind, symbol)).encode() + row.tobytes()
        return self._noted(Known(None, symbol=symbol, values=row), said)

    def _converted(self, number: bytes, kind: int) -> bytes | None:
        """The number of a symbol without values in a type that has its own type's values."""
        form = self.whole(number)
        if form is None or form[1:] != (1, 0) or kind == _PRED:
            return None
        (_, bits, signed), (_, to_bits, to_signed) = (
            INTEGERS[k] for k in (self._kinds[form.symbol or b""], kind)
        )
        if to_bits < bits + (to_signed and not signed) or (signed and not to_signed):
            return None
        return self.integer(form, kind, whole=True)


def _symbol(known: Known) -> bytes | None:
    return known.symbol if known.form is None else known.form.symbol


def _wrapped(values: NDArray[Any], kind: int) -> Values:
    """Whole numbers modulo 2**64 as values of an element type."""
    values = values.astype(np.int64)
    _, bits, signed = INTEGERS[kind]
    if bits == 64 or kind == _PRED:
        return values
    half = 1 << (bits - 1) if signed else 0
    return ((values + half) & ((1 << bits) - 1)) - half


def _line(opcode: str, forms: list[Form | None]) -> Form | None:
    """The form of a sum or a product of forms."""
    known = [f for f in forms if f is not None]
    if len(known) < len(forms):
        return None
    if opcode == "negate":
        opcode, known = "subtract", [Form(None, 0, 0), *known]
    if opcode in ("add", "subtract"):
        (one, a, c), (other, b, d) = known
        sign = 1 if opcode == "add" else -1
        symbol, factor, offset = one or other, a + sign * b, c + sign * d
        if None not in (one, other) and one != other:
            return None
    elif opcode == "multiply" and None in (known[0].symbol, known[1].symbol):
        line, by = sorted(known, key=lambda f: f.symbol is None)
        symbol, factor, offset = line.symbol, line.factor * by.offset, line.offset * by.offset
    else:
        return None
    return Form(symbol if factor else None, factor, offset)


def _quotient(a: Values, b: Values) -> Values | None:
    """A division that is rounded towards zero; None where something is divided by zero."""
    if not b.all():
        return None
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _remainder(a: Values, b: Values) -> Values | None:
    quotient = _quotient(a, b)
    return None if quotient is None else a - quotient * b


_RULES: Mapping[str, Callable[..., NDArray[Any] | None]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda low, a, high: np.minimum(np.maximum(low, a), high),
    "convert": np.asarray,
    "divide": _quotient,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "remainder": _remainder,
    "select": np.where,
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
}

_OF_PREDS: Mapping[str, Callable[..., NDArray[Any]]] = {
    "and": np.bitwise_and,
    "compareEQ": np.equal,
    "compareGE": np.greater_equal,
    "compareGT": np.greater,
    "compareLE": np.less_equal,
    "compareLT": np.less,
    "compareNE": np.not_equal,
    "convert": lambda a: a != 0,
    "not": lambda a: 1 - a,
    "or": np.bitwise_or,
    "select": np.where,
    "xor": np.bitwise_xor,
}
