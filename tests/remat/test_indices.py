"""Random integer expressions: what planner and referee know of them holds at every turn."""

import random
import types
from typing import Any

import numpy as np
import pytest

from hlo.shapes import Shape
from hlo.wire import INTEGERS, varint
from olla_xla.check.executable.integers import Integers
from olla_xla.remat.loops.indices import affine, result, typed

pytestmark = pytest.mark.quick

PRED, S8, S16, S32, U8, U32 = 1, 2, 3, 4, 6, 8
KINDS = (S8, S16, S32, U8, U32)
BINARY = "add subtract multiply maximum minimum remainder divide and".split()
DIRECTIONS = "LT LE GT GE EQ NE".split()


def wrap(value, kind):
    _, bits, signed = INTEGERS[kind]
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def quotient(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


COMPUTED = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
    "remainder": lambda a, b: a - b * quotient(a, b) if b else 0,
    "divide": lambda a, b: quotient(a, b) if b else 0,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: 1 - a,
    "negate": lambda a: -a,
    "abs": abs,
    "convert": lambda a: a,
    "select": lambda test, a, b: a if test else b,
    "clamp": lambda low, a, high: min(max(a, low), high),
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


def literal(value, kind):
    """A serialized LiteralProto of one value."""
    number, bits, _ = INTEGERS[kind]
    if bits in (8, 16):
        data = (value & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
    else:
        data = varint(value & ((1 << 64) - 1))
    return varint(number << 3 | 2) + varint(len(data)) + data


class Expressions:
    """Makes operations of one another, and has planner, referee and Python look at each."""

    def __init__(self, seed, turns):
        self.random = random.Random(seed)
        self.iterations = turns
        self.referee = Integers()
        values = list(range(turns))
        numbers = [self.referee.number(value, S32) for value in values]
        self.made = [(S32, typed(values, S32), numbers, values)]
        self.values, self.numbers, self.lines = {}, {}, 0
        self.check(*self.made[0])

    def check(self, kind, index, numbers, values):
        if index is not None:
            assert np.broadcast_to(index, len(values)).tolist() == values
            line = affine(index, (0,))
            for turn, value in enumerate(values if line else ()):
                assert wrap(line.factor * turn + line.offset, kind) == value
            exact = affine(index, (0,), whole=True)
            for turn, value in enumerate(values if exact else ()):
                assert exact.factor * turn + exact.offset == value
            self.lines += line is not None
        for number, value in zip(numbers, values, strict=True):
            known = self.referee.value(number)
            assert known in (None, value)
            assert index is None or known is not None, "the referee knows what the planner does"
            if known is not None:
                assert self.values.setdefault((kind, number), value) == value, (
                    "one number, two values"
                )
                assert self.numbers.setdefault((kind, value), number) == number, "and the other way"

    def add(self):
        opcode = self.random.choice(
            [*BINARY, "negate", "abs", "convert", "select", "clamp", "compare", "constant", "logic"]
        )
        kind = self.random.choice(KINDS)
        of = [m for m in self.made if m[0] == kind]
        tests = [m for m in self.made if m[0] == PRED]
        direction, given, computed = "", [], opcode
        if opcode == "constant":
            near = (0, 1, -1, 2, self.iterations, self.iterations - 1, 7, 100, 127, 200, 255)
            given, value = [], wrap(self.random.choice(near), kind)
        elif opcode == "convert":
            given = [self.random.choice(self.made)]
        elif opcode == "logic":
            if not tests:
                return
            kind, opcode = PRED, self.random.choice("and or xor not".split())
            given = self.random.choices(tests, k=1 if opcode == "not" else 2)
            computed = opcode
        elif not of or (opcode == "select" and not tests):
            return
        elif opcode == "select":
            given = [self.random.choice(tests), *self.random.choices(of, k=2)]
        else:
            count = {"negate": 1, "abs": 1, "clamp": 3}.get(opcode, 2)
            given = self.random.choices(of, k=count)
        if opcode == "compare":
            kind, direction = PRED, self.random.choice(DIRECTIONS)
            computed = direction
        if opcode == "constant":
            values = [value] * self.iterations
        else:
            read = zip(*(m[3] for m in given), strict=True)
            values = [wrap(int(COMPUTED[computed](*r)), kind) for r in read]
        proto = types.SimpleNamespace(comparison_direction=direction, literal=b"")
        if opcode == "constant":
            proto.literal = literal(value, kind)
        i: Any = types.SimpleNamespace(opcode=opcode, direction=direction, proto=proto)
        shape = Shape(kind, (), (), (), 0, INTEGERS[kind][1], b"")
        index = result(i, shape, [m[1] for m in given])
        numbers = []
        for turn in range(self.iterations):
            known = self.referee.result(i, kind, [m[2][turn] for m in given])
            numbers.append(f"{len(self.made)}, {turn}".encode() if known is None else known)
        self.check(kind, index, numbers, values)
        self.made.append((kind, index, numbers, values))


@pytest.mark.parametrize("turns", [1, 2, 9, 60])
def test_what_is_known_is_true(turns):
    read = 0
    for seed in range(20):
        made = Expressions(seed, turns)
        for _ in range(120):
            made.add()
        read += made.lines
    assert read > 300


def op(opcode, direction="", value=0, kind=S32):
    proto = types.SimpleNamespace(comparison_direction=direction, literal=literal(value, kind))
    return types.SimpleNamespace(opcode=opcode, direction=direction, proto=proto)


def test_what_is_not_known_is_not_made_up():
    found = Integers()
    three, zero = (found.result(op("constant", value=k), S32, []) for k in (3, 0))
    assert found.result(op("add"), S32, [b"a", three]) is None
    assert found.result(op("divide"), S32, [three, zero]) is None
    assert found.result(op("select"), S32, [found.number(1, PRED), b"a", b"b"]) == b"a"
    assert found.result(op("select"), S32, [b"test", three, three]) is None
    assert found.value(b"a") is None and not found.is_known(b"a")
    assert found.clamped(b"a", 4) is None
    assert [found.clamped(found.number(k), 4) for k in (-1, 2, 9)] == [0, 2, 3]


def test_a_sum_of_preds_is_not_followed():
    """It is whether one of them holds."""
    found = Integers()
    yes = found.result(op("constant", value=1, kind=PRED), PRED, [])
    assert found.result(op("add"), PRED, [yes, yes]) is None
