"""Values of scalar integers in all iterations of a loop.

An index that follows from a loop's counter by divisions and remainders has no form (`integers`).
Its values are computed here for each iteration, as XLA defines the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.check.executable.integers import Integers
from olla_xla.check.executable.program import Op

__all__ = ["Scalars", "Values"]

Values = NDArray[np.int64]
"""64-bit integers, one for each iteration."""

_S32, _S64 = 4, 5
_LARGE = 1 << 31  # factors and offsets of forms from which on 64 bits could overflow


class _Made(NamedTuple):
    """A scalar integer as it was computed: by an opcode, in an element type, from other numbers."""

    opcode: str
    kind: int
    operands: tuple[bytes, ...]


class Scalars:
    """How the s32 and s64 scalars of a module were computed.

    Args:
      integers: forms of numbers.
    """

    def __init__(self, integers: Integers) -> None:
        self._integers = integers
        self._made: dict[bytes, _Made] = {}
        self._symbols: dict[bytes, frozenset[bytes]] = {}

    def note(self, op: Op, kind: int, number: bytes, operands: Iterable[bytes]) -> None:
        """Notes how a number was computed; `kind` is its element type."""
        if kind in (_S32, _S64):
            self._made.setdefault(number, _Made(op.opcode, kind, tuple(operands)))

    def type(self, number: bytes, kind: int) -> None:
        """Records the element type of an integer that has a form."""
        if kind in (_S32, _S64):
            self._made.setdefault(number, _Made("", kind, ()))

    def numbers(self) -> list[bytes]:
        """The numbers that were recorded."""
        return list(self._made)

    def symbols(self, number: bytes) -> frozenset[bytes]:
        """The symbols that a number is computed from."""
        found = self._symbols.get(number)
        if found is None:
            form, made = self._integers.form(number), self._made.get(number)
            if form is not None:
                found = frozenset() if form.symbol is None else frozenset([form.symbol])
            elif made is None:
                found = frozenset([number])
            else:
                found = frozenset().union(*map(self.symbols, made.operands))
            self._symbols[number] = found
        return found

    def values(self, number: bytes, symbol: bytes, counted: Values) -> Values | None:
        """A number's values where `symbol` has the values `counted`; None if not known."""
        if self.symbols(number) - {symbol}:
            return None
        return self._values(number, symbol, counted, {})

    def _values(
        self, number: bytes, symbol: bytes, counted: Values, done: dict[bytes, Values | None]
    ) -> Values | None:
        if number not in done:
            done[number] = self._computed(number, symbol, counted, done)
        return done[number]

    def _computed(
        self, number: bytes, symbol: bytes, counted: Values, done: dict[bytes, Values | None]
    ) -> Values | None:
        if number == symbol:
            return counted
        made, form = self._made.get(number), self._integers.form(number)
        if made is None:
            return None
        if form is not None:
            if max(abs(form.factor), abs(form.offset)) >= _LARGE:
                return None
            of_symbol = counted if form.symbol == symbol else np.zeros_like(counted)
            return _wrapped(of_symbol * form.factor + form.offset, made.kind)
        rule = _RULES.get(made.opcode)
        read = [self._values(k, symbol, counted, done) for k in made.operands]
        known = [values for values in read if values is not None]
        if rule is None or len(known) != len(read):
            return None
        found = rule(*known)
        return None if found is None else _wrapped(found, made.kind)


def _wrapped(values: Values, kind: int) -> Values:
    """64-bit values wrapped to an element type."""
    return values.astype(np.int32).astype(np.int64) if kind == _S32 else values


def _divided(a: Values, b: Values) -> Values | None:
    """A division by positive numbers, rounded to zero."""
    if (b < 1).any():
        return None
    return np.sign(a) * (np.abs(a) // b)


def _rest(a: Values, b: Values) -> Values | None:
    quotient = _divided(a, b)
    return None if quotient is None else a - quotient * b


_RULES: Mapping[str, Callable[..., Values | None]] = {
    "add": np.add,
    "divide": _divided,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "remainder": _rest,
    "subtract": np.subtract,
}
