"""Scalar integers that are known, such as slice indices in an iteration of a loop.

XLA computes slice indices from a loop's counter in many ways, inside fusions and outside. Where the
counter is known, what follows from it and from constants is computed as XLA defines the operations,
in whole numbers that are wrapped to their type. Equal integers of one type have one number.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from hlo.wire import INTEGERS, scalar_integer
from olla_xla.check.executable.numbering import hashed
from olla_xla.check.executable.program import Op

_PRED, _S32 = 1, 4
_INTEGER = hashed(b"integer")


class Integers:
    """Which value numbers stand for scalar integers whose value is known at compile time."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._numbers: dict[tuple[int, int], bytes] = {}

    @staticmethod
    def type_of(op: Op) -> int:
        """XLA's number of `op`'s element type if a scalar pred or integer of 8 bits up; else 0."""
        shape, kind = op.shape, op.shape.element_type
        return kind if shape.is_array and not shape.dimensions and kind in INTEGERS else 0

    def is_known(self, number: bytes) -> bool:
        """Whether a value number is that of an integer whose value is known."""
        return number in self._known

    def value(self, number: bytes) -> int | None:
        """The integer that a value number stands for, a pred as 0 or 1; None if not known."""
        return self._known.get(number)

    def number(self, value: int, kind: int = _S32) -> bytes:
        """The value number of integer `value` of XLA's element type `kind`, known from now on."""
        integer = self._numbers.get((value, kind))
        if integer is None:
            integer = self._numbers[value, kind] = hashed(_INTEGER + repr((kind, value)).encode())
            self._known[integer] = value
        return integer

    def clamped(self, number: bytes, bound: int) -> int | None:
        """The integer of a value number clamped to [0, bound), as XLA clamps; None if not known."""
        value = self._known.get(number)
        return None if value is None else min(max(value, 0), bound - 1)

    def result(self, op: Op, kind: int, operands: list[bytes]) -> bytes | None:
        """The value number of `op`, of element type `kind`, if it is a known integer; else None.

        A select with a known predicate has that of the operand that it selects, known or not.
        """
        if op.opcode == "constant":
            value = scalar_integer(op.proto.literal, kind)
            return None if value is None else self.number(_wrapped(value, kind), kind)
        read = [self._known.get(n) for n in operands]
        if op.opcode == "select" and read[0] is not None:
            return operands[1] if read[0] else operands[2]
        known = [value for value in read if value is not None]
        direction = op.proto.comparison_direction if op.opcode == "compare" else ""
        rule = (_OF_PREDS if kind == _PRED else _RULES).get(op.opcode + direction)
        if rule is None or len(known) < len(read):
            return None
        computed = rule(*known)
        return None if computed is None else self.number(_wrapped(int(computed), kind), kind)


def _wrapped(value: int, kind: int) -> int:
    """Wraps an integer to the range of element type `kind` (modulo 2**bits); a pred stays."""
    _, bits, signed = INTEGERS[kind]
    if kind == _PRED:
        return value
    half = 1 << (bits - 1) if signed else 0
    return ((value + half) & ((1 << bits) - 1)) - half


def _quotient(a: int, b: int) -> int | None:
    """The quotient of two integers rounded towards zero; None for a division by zero."""
    if not b:
        return None
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    quotient = _quotient(a, b)
    return None if quotient is None else a - quotient * b


_RULES: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "add": operator.add,
    "and": operator.and_,
    "clamp": lambda low, a, high: min(max(low, a), high),
    "convert": int,
    "divide": _quotient,
    "maximum": max,
    "minimum": min,
    "multiply": operator.mul,
    "negate": operator.neg,
    "not": operator.invert,
    "or": operator.or_,
    "remainder": _remainder,
    "subtract": operator.sub,
    "xor": operator.xor,
}

_OF_PREDS: Mapping[str, Callable[..., Any]] = {
    "and": operator.and_,
    "compareEQ": operator.eq,
    "compareGE": operator.ge,
    "compareGT": operator.gt,
    "compareLE": operator.le,
    "compareLT": operator.lt,
    "compareNE": operator.ne,
    "convert": bool,
    "not": lambda a: 1 - a,
    "or": operator.or_,
    "xor": operator.xor,
}
