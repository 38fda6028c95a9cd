"""How the result of a compiled loop lies in memory, by numba's types."""

import pytest

from olla_xla.memory.machine_code import _result

numba = pytest.importorskip("numba")

pytestmark = pytest.mark.quick

INT, FLOAT, BOOL = numba.types.int64, numba.types.float64, numba.types.boolean


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (INT, ("q", True)),
        (FLOAT, ("d", True)),
        (BOOL, ("?", True)),
        (numba.types.none, ("", True)),
        (numba.types.UniTuple(INT, 3), ("qqq", False)),
        (numba.types.Tuple((INT, FLOAT)), ("qd", False)),
        (numba.types.UniTuple(FLOAT, 1), ("d", False)),
        (numba.types.UniTuple(INT, 8), ("q" * 8, False)),
    ],
)
def test_results_of_numbers(kind, layout):
    assert _result(kind, "loop") == layout


@pytest.mark.parametrize(
    "kind",
    [
        numba.types.UniTuple(INT, 9),
        numba.types.int32,
        numba.types.Array(FLOAT, 1, "C"),
        numba.types.Tuple((INT, numba.types.Array(FLOAT, 1, "C"))),
        numba.types.unicode_type,
    ],
)
def test_other_results_are_named(kind):
    with pytest.raises(TypeError, match="compiled loop mine returns"):
        _result(kind, "mine")
