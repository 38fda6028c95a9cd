"""Best fit by profile: the paper's rule against a plain second writing of it, and wrong rules.

Sekiyama et al. 2018, section 3.2: the lowest offset line, the leftmost of several, takes the
longest-lived block that fits in its stretch of time; if none does, it is lifted to the lower of its
neighbours.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olla_xla.place import PlacementProblem, place


def by_rule(blocks, *, choice=None, lift=min):
    """Offsets of (lower, upper, size) by the rule, or by a changed one, time unit by time unit.

    Args:
      choice: lower, upper, size, index -> a key; the block of least key goes there.
      lift: what a line is lifted to, of its neighbours' levels.
    """
    choice = choice or (lambda lower, upper, size, k: (lower - upper, -size, k))
    end = max(upper for _, upper, _ in blocks)
    level = [0] * end
    offsets = {}
    while len(offsets) < len(blocks):
        lines, start = [], 0
        for t in range(1, end + 1):
            if t == end or level[t] != level[start]:
                lines.append((start, t))
                start = t
        start, stop = min(lines, key=lambda s: (level[s[0]], s[0]))
        fitting = [
            k for k, (lower, upper, _) in enumerate(blocks)
            if k not in offsets and start <= lower and upper <= stop
        ]  # fmt: skip
        if fitting:
            k = min(fitting, key=lambda k: choice(*blocks[k], k))
            lower, upper, size = blocks[k]
            offsets[k] = level[start]
            level[lower:upper] = [level[start] + size] * (upper - lower)
            continue
        beside = [level[t] for t in (start - 1, stop) if 0 <= t < end]
        level[start:stop] = [lift(beside)] * (stop - start)
    return [offsets[k] for k in range(len(blocks))]


def ours(blocks):
    problem = PlacementProblem.of(*zip(*blocks, strict=True))
    offsets = place(problem, method="best_fit").offsets
    assert offsets is not None
    return offsets.tolist()


@st.composite
def profiles(draw):
    """Blocks whose every unit of time has a block that begins, so that no unit can be left out."""
    n = draw(st.integers(1, 9))
    blocks = []
    for lower in range(n):
        upper = draw(st.integers(lower + 1, n))
        blocks.append((lower, upper, draw(st.integers(1, 6))))
    # Where one ends only where another begins, units of time are sections.
    return [*blocks, *((t, t + 1, 1) for t in range(n))]


@given(profiles())
def test_the_rule(blocks):
    assert ours(blocks) == by_rule(blocks)


EXAMPLE = [(0, 4, 1), (0, 2, 2), (2, 4, 3), (1, 3, 2), (0, 1, 1), (3, 4, 1)]


def test_an_example_by_hand():
    """Six blocks, step by step.

    0, the longest, goes to the bottom. At offset 1 all four units of time are one line: of the
    blocks of two units the largest, 2, goes there. [0, 2) is the lowest line now: 1. Again, at 3:
    4, since 3 does not fit between. [1, 2) at 3 takes nothing and is lifted to 4, where all is one
    line: 3, then 5.
    """
    assert ours(EXAMPLE) == by_rule(EXAMPLE) == [0, 1, 1, 4, 3, 4]


EXAMPLES = [
    EXAMPLE,
    [(0, 2, 1), (0, 2, 3), (0, 1, 2), (1, 2, 1)],
    [(0, 2, 6), (1, 3, 2), (2, 4, 3), (3, 4, 4)],
]
WRONG = {
    "the shortest block": {"choice": lambda lower, upper, size, k: (upper - lower, -size, k)},
    "the largest block": {"choice": lambda lower, upper, size, k: (-size, lower - upper, k)},
    "the earliest block": {"choice": lambda lower, upper, size, k: (lower, k)},
    "the smaller of equals": {"choice": lambda lower, upper, size, k: (lower - upper, size, k)},
    "lifted to the higher neighbour": {"lift": max},
}
"""(Which of several lowest lines comes first makes no difference: they touch no other.)"""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_would_be_seen(name):
    """The examples tell the rule from each of these, so the test above can fail."""
    told = [blocks for blocks in EXAMPLES if by_rule(blocks, **WRONG[name]) != ours(blocks)]
    assert told
