"""Random integer expressions: what planner and referee know of them holds at every turn."""

import random
import types
from typing import Any

import pytest

from hlo.shapes import Shape
from hlo.wire import INTEGERS, varint
from olla_xla.check.executable.integers import Integers
from olla_xla.remat.loops.indices import Indices

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
        self.planner, self.referee = Indices({(0,): (0, turns - 1)}), Integers()
        self.referee.symbol(b"turn", S32, turns)
        values = list(range(turns))
        self.made = [(S32, self.planner.element((0,), S32), b"turn", values)]

    def check(self, kind, index, number, values):
        for form, bounds in (
            (index.affine and (index.affine.factor, index.affine.offset), index.range),
            ((f := self.referee.form(number)) and f[1:], self.referee._bounds.get(number)),
        ):
            for turn, value in enumerate(values):
                if form is not None:
                    assert wrap(form[0] * turn + form[1], kind) == value
                if bounds is not None:
                    assert bounds[0] <= value <= bounds[1]
                if form is not None and bounds is not None:
                    assert form[0] * turn + form[1] == value

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
        index = self.planner.result(
            i, Shape(kind, (), (), (), 0, INTEGERS[kind][1], b""), [m[1] for m in given]
        )
        known = self.referee.result(i, kind, [m[2] for m in given])
        number = f"{len(self.made)}".encode()
        if known is not None and known.number is not None:
            number = known.number
        elif known is not None:
            self.referee.note(number, known.form, known.bounds)
        self.check(kind, index, number, values)
        self.made.append((kind, index, number, values))


@pytest.mark.parametrize("turns", [1, 2, 9, 128, 300])
def test_what_is_known_is_true(turns):
    read = 0
    for seed in range(60):
        made = Expressions(seed, turns)
        for _ in range(120):
            made.add()
        read += sum(m[1].affine is not None for m in made.made)
    assert read > 1_000
