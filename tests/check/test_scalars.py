"""Scalar integers of a loop's iterations, against Python's integers wrapped as XLA does."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.check.executable.integers import Form, Integers
from olla_xla.check.executable.scalars import Scalars

pytestmark = pytest.mark.quick

S32, S64 = 4, 5
COUNTER, OTHER = b"counter", b"other"
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "divide", "remainder")


def wrapped(value, kind):
    bits = 32 if kind == S32 else 64
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def computed(opcode, a, b):
    """What XLA defines; None for a division by what is not positive, which is not followed."""
    if opcode in ("divide", "remainder"):
        if b < 1:
            return None
        quotient = abs(a) // b * (1 if a >= 0 else -1)
        return quotient if opcode == "divide" else a - quotient * b
    rules = {"add": a + b, "subtract": a - b, "multiply": a * b, "maximum": max(a, b)}
    return rules.get(opcode, min(a, b))


def scalars(kind):
    integers = Integers()
    for number in (COUNTER, OTHER):
        integers.symbol(number, kind)
    return Scalars(integers), integers


def constant(found, integers, value, kind):
    number = f"constant {value}".encode()
    integers.note(number, Form(None, 0, value), (value, value))
    found.type(number, kind)
    return number


@given(st.data(), st.sampled_from([S32, S64]))
def test_expressions_of_a_counter(data, kind):
    found, integers = scalars(kind)
    counted = np.arange(5, dtype=np.int64)
    numbers = {COUNTER: counted.tolist()}
    for value in data.draw(st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=3)):
        numbers[constant(found, integers, value, kind)] = [value] * len(counted)
    for k in range(data.draw(st.integers(1, 5))):
        opcode = data.draw(st.sampled_from(BINARY))
        a, b = (data.draw(st.sampled_from(sorted(numbers))) for _ in range(2))
        number = f"made {k}".encode()
        found.note(SimpleNamespace(opcode=opcode), kind, number, [a, b])
        known = None
        if numbers[a] is not None and numbers[b] is not None:
            each = [computed(opcode, x, y) for x, y in zip(numbers[a], numbers[b], strict=True)]
            known = None if None in each else [wrapped(v, kind) for v in each]
        numbers[number] = known
        values = found.values(number, COUNTER, counted)
        assert (None if values is None else values.tolist()) == known


def test_a_product_of_32_bits_wraps_around():
    found, integers = scalars(S32)
    large = constant(found, integers, 2**30, S32)
    found.note(SimpleNamespace(opcode="multiply"), S32, b"p", [COUNTER, large])
    values = found.values(b"p", COUNTER, np.arange(4, dtype=np.int64))
    assert values is not None and values.tolist() == [0, 2**30, -(2**31), -(2**30)]


def test_what_depends_on_more_is_not_known():
    found, _ = scalars(S32)
    found.note(SimpleNamespace(opcode="add"), S32, b"sum", [COUNTER, OTHER])
    assert found.symbols(b"sum") == {COUNTER, OTHER}
    assert found.values(b"sum", COUNTER, np.arange(3)) is None
    found.type(OTHER, S32)
    assert found.values(b"sum", COUNTER, np.arange(3)) is None, "its type says nothing of it"
    found.note(SimpleNamespace(opcode="power"), S32, b"power", [COUNTER, COUNTER])
    assert found.values(b"power", COUNTER, np.arange(3)) is None, "there is no rule for it"
    assert found.values(b"nothing is known", COUNTER, np.arange(3)) is None


def test_types_without_a_sign_are_not_followed():
    found, integers = scalars(S32)
    integers.symbol(b"u", 8)
    found.note(SimpleNamespace(opcode="add"), 8, b"sum", [COUNTER, COUNTER])
    assert found.numbers() == []
