"""What loops compute again is rounded as it was: by the same code, given as many arrays."""

import pytest

from olla_xla.remat.loops import recipe
from tests import scan_rounding
from tests.scan_rounding import Layers

pytestmark = pytest.mark.optimized

# Each differed from jit while a copy, or a reader, was other code than before.
CASES = {
    "one value in several stacks": Layers((("thrice", 1, 0, 1),), 31, 45, 5, 1, False),
    "a copy in tiles, not in a loop": Layers(
        (
            ("product", 62, 9, 94),
            ("products", 61, 21, 64),
            ("larger", 98, 30, 27),
            ("sine", 11, 4, 26),
        ),
        64,
        64,
        4,
        1,
        False,
    ),
    "a reader with one slice left, of several": Layers(
        (
            ("negative", 96, 3, 58),
            ("sine", 36, 14, 70),
            ("dot", 21, 6, 28),
            ("products", 93, 55, 93),
            ("larger", 58, 38, 78),
            ("bfloat16", 69, 6, 37),
            ("less", 31, 47, 52),
            ("product", 99, 37, 99),
            ("where", 91, 5, 68),
        ),
        64,
        64,
        4,
        2,
        False,
    ),
    "one slice left": Layers(
        (
            ("cosine", 55, 36, 79),
            ("product", 68, 91, 7),
            ("bfloat16", 75, 37, 85),
            ("dot", 47, 7, 72),
        ),
        5,
        8,
        3,
        1,
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_choice_is_bit_identical(name):
    found = scan_rounding.outcomes(CASES[name])
    assert found and set(found) == {"same"}


def test_the_referee_counts_the_arrays_that_hold_the_same(monkeypatch):
    monkeypatch.setattr(recipe.ReadArrays, "_is_free", lambda self, array, source: True)
    found = scan_rounding.outcomes(CASES["one value in several stacks"])
    assert any("results are not those" in one for one in found)
    assert "differs" not in found
