"""How arguments are passed to machine code: words and kinds."""

import struct
from typing import NamedTuple

import numpy as np
import pytest

from olla_xla.memory.arguments import flattened, parameters, spelled

pytestmark = pytest.mark.quick


class Pair(NamedTuple):
    size: np.ndarray
    count: int


def test_numbers_are_one_word_each():
    kinds, words = flattened((7, True, 0.5))
    assert kinds == (int, bool, float) and words == struct.pack("qqd", 7, 1, 0.5)
    assert list(parameters(kinds)) == ["i64", "i8", "double"]
    assert flattened((np.int64(7), np.bool_(True), np.float64(0.5))) == (kinds, words)


def test_an_array_is_its_address_shape_and_strides():
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    kinds, words = flattened((array,))
    assert struct.unpack("9q", words) == (0, 0, 12, 8, array.ctypes.data, 3, 4, 32, 8)
    assert list(parameters(kinds)) == ["ptr", "ptr", "i64", "i64", "ptr", *["i64"] * 4]
    (kind,), _ = flattened((np.zeros((3, 4), np.int64),))
    (turned,), _ = flattened((array.T,))
    (other,), _ = flattened((array.astype(np.float64),))
    assert kind == kinds[0] and len({kind, turned, other}) == 3


def test_tuples_are_their_items_and_alike_by_type():
    first, second = Pair(np.zeros(3, np.int64), 1), Pair(np.ones(5, np.int64), 2)
    (kind,), words = flattened((first,))
    assert words == flattened(tuple(first))[1]
    assert flattened((second,))[0] == (kind,)
    assert flattened(((first.size, 1),))[0] != (kind,)
    assert spelled((kind,)) == [
        (f"{__name__}.Pair", ("size", "count"), [flattened((first.size,))[0][0], "int"])
    ]


@pytest.mark.parametrize("value", ["text", None, [1], np.zeros(2, np.complex128)])
def test_what_no_loop_takes_is_refused(value):
    with pytest.raises(TypeError, match="compiled loop"):
        flattened((value,))
