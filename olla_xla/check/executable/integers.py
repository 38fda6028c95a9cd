"""Scalar integers that count a loop's turns, or follow from such a count by adding and scaling.

XLA computes indices of slices in many ways, inside fusions and outside, from a loop's counter. As
`factor * symbol + offset` they are one number each, and their range is known.
"""

from __future__ import annotations

from typing import NamedTuple

from hlo import xla_pb2
from olla_xla.check.executable.program import Op

__all__ = ["Form", "Integers"]

_TYPES = {4: "s32s", 5: "s64s"}
"""XLA PrimitiveType -> field of a literal that holds its values."""


class Form(NamedTuple):
    """`factor * symbol + offset`, a constant where there is no symbol."""

    symbol: bytes | None
    factor: int
    offset: int


class Integers:
    """Forms of numbers, and what symbols count."""

    def __init__(self) -> None:
        self._forms: dict[bytes, Form] = {}
        self._turns: dict[bytes, int] = {}

    @staticmethod
    def type_of(op: Op) -> int:
        """The element type of a scalar integer, else 0."""
        shape = op.shape
        scalar = not shape.dimensions and shape.element_type in _TYPES
        return shape.element_type if scalar else 0

    def form(self, number: bytes) -> Form | None:
        """What is known of a number."""
        return self._forms.get(number)

    def note(self, number: bytes, form: Form) -> None:
        """Says what a number is."""
        self._forms[number] = form

    def symbol(self, number: bytes, turns: int | None = None) -> None:
        """A number of its own; with `turns`, one that is in [0, turns)."""
        self._forms.setdefault(number, Form(number, 1, 0))
        if turns is not None:
            self._turns[number] = turns

    def within(self, form: Form, bound: int) -> bool:
        """Whether it is certainly in [0, bound)."""
        ends = [form.offset]
        if form.symbol is not None:
            turns = self._turns.get(form.symbol)
            if not turns:
                return False
            ends.append(form.offset + form.factor * (turns - 1))
        return all(0 <= end < bound for end in ends)

    def result(self, op: Op, operands: list[bytes]) -> Form | None:
        """The form of an operation's result, if it has one."""
        if op.opcode == "constant":
            literal = xla_pb2.LiteralProto.FromString(op.proto.literal)
            values = getattr(literal, _TYPES[op.shape.element_type])
            return Form(None, 0, values[0]) if len(values) == 1 else None
        forms = [self._forms.get(number) for number in operands]
        if op.opcode not in _RULES or any(f is None for f in forms):
            return None
        return _RULES[op.opcode](*forms)


def _add(a: Form, b: Form) -> Form | None:
    if a.symbol is not None and b.symbol is not None and a.symbol != b.symbol:
        return None
    return _form(a.symbol or b.symbol, a.factor + b.factor, a.offset + b.offset)


def _negate(a: Form) -> Form:
    return Form(a.symbol, -a.factor, -a.offset)


def _multiply(a: Form, b: Form) -> Form | None:
    if b.symbol is not None:
        a, b = b, a
    if b.symbol is not None:
        return None
    return _form(a.symbol, a.factor * b.offset, a.offset * b.offset)


def _form(symbol: bytes | None, factor: int, offset: int) -> Form:
    return Form(symbol if factor else None, factor, offset)


_RULES = {
    "add": _add,
    "subtract": lambda a, b: _add(a, _negate(b)),
    "negate": _negate,
    "multiply": _multiply,
}
