"""The segments that are chosen, as they were looked at; and what a gradient keeps, by hand.

Any segments are sound, and good ones are hardly told from nearly as good ones by a bound. These
are the cuts, the estimates and the counts of many random walks.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.segments.allocation import kept_bytes
from olla_xla.segments.budget import (
    _budgets,
    _peak,
    budget_choices,
    candidates,
    close_segments,
    cost,
    mirror_counts,
    mirrored_segments,
    plan_segments,
)
from olla_xla.segments.walk import Walk
from tests.support.outcomes import outcome


def explain(fun, *args, **how):
    """Where `sublinear` cuts a function of these arguments."""
    return olla_xla.sublinear(fun, **how).explain(*args)


def made(seed):
    """A random walk, mostly a chain with skips; some with steps that are fixed."""
    random = np.random.default_rng(seed)
    n = int(random.integers(3, 30))
    values = []
    for k in range(n):
        for _ in range(int(random.integers(0, 3))):
            near = [k + 1 + int(random.exponential(3)) for _ in range(int(random.integers(0, 3)))]
            values.append((int(random.integers(1, 30)), k, sorted({u for u in near if u < n})))
    fixed = np.flatnonzero(random.random(n) < 0.05).tolist() if seed % 3 == 0 else []
    return Walk.of(random.integers(0, 40, n).tolist(), values, fixed)


def restricted(walk, seed):
    """The walk with cuts where a random set allows them."""
    allowed = np.random.default_rng(seed).random(len(walk)) < 0.6
    return Walk(**{**vars(walk), "allowed": allowed})


WALKS = [*map(made, range(24)), *(restricted(made(seed), seed) for seed in range(24, 32))]


def planned(**asked):
    return outcome([repr(plan_segments(walk, **asked)) for walk in WALKS])


def estimated():
    told = []
    for walk in WALKS:
        for depth in (1, 2):
            told.append(_budgets(walk, depth))
            for loss_last in (False, True):
                choices = budget_choices(walk, depth, loss_last)
                told.append([(b, repr(s), _peak(walk, s)) for b, s in choices.items()])
        for window in (0, 20, 100, 1000):
            may = candidates(walk, window)
            cuts = close_segments(walk.sizes, may, 2.5 * window)
            told += [may, cuts, cost(walk, cuts), walk.stored(cuts), walk.crossing(window)]
        told += [walk.last_use, vars(walk.part(1, len(walk) - 1))]
    return outcome([repr(row) for row in told])


def counted():
    told = []
    for seed, walk in enumerate(WALKS):
        asked = np.random.default_rng(seed).integers(0, 3, len(walk)).tolist()
        segments = mirrored_segments(walk, asked)
        told += [repr(segments), mirror_counts(walk, segments)]
        for depth in (1, 2, None):
            told.append(mirror_counts(walk, plan_segments(walk, depth=depth)))
    return outcome(told)


SEGMENTS = {
    "searched": planned,
    "searched, a loss": lambda: planned(loss_last=True),
    "twice": lambda: planned(depth=2),
    "three times": lambda: planned(depth=3, loss_last=True, budget=120),
    "a budget": lambda: planned(budget=90),
    "a budget, twice": lambda: planned(budget=150, depth=2),
    "recursive": lambda: planned(depth=None),
    "recursive, two cuts": lambda: planned(depth=None, splits=2, loss_last=True),
    "recursive, five cuts": lambda: planned(depth=None, splits=5),
    "estimates": estimated,
    "counts": counted,
}


def test_segments():
    found = {name: told() for name, told in SEGMENTS.items()}
    assert outcome(found) == "d9a39e82aca2", found


# What a gradient keeps. x and w are 8 x 8 in float32: 256 bytes.

ARRAY = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def test_what_a_gradient_keeps():
    def kept(function, *values, fused=False):
        return kept_bytes(lambda *v: [function(*v)], values, fused=fused)

    assert kept(lambda x, w: x @ w, ARRAY, ARRAY) == 0  # both arguments
    assert kept(lambda x: x + 1, ARRAY) == 0
    assert kept(lambda x, w: jnp.tanh(x @ w) @ w, ARRAY, ARRAY) == 2 * 256  # tanh, its derivative
    # The derivative is made within a kernel that reads tanh's result, which is kept.
    assert kept(lambda x, w: jnp.tanh(x @ w) @ w, ARRAY, ARRAY, fused=True) == 256
    number = jax.ShapeDtypeStruct((8,), jnp.int32)
    assert kept(lambda x, k: x[k] * x[k], ARRAY, number) >= 256
    assert kept(lambda x: (x > 0).sum(), ARRAY) == 0  # nothing to differentiate


def layers(x, w):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return (x * x).sum()


def test_how_a_function_is_cut():
    """Each layer is a product and a tanh; a cut lies after a tanh or a product, one array each."""
    found = explain(layers, ARRAY, ARRAY, budget=3 * 256)
    assert found.equations[:4] == ("dot_general", "tanh", "dot_general", "tanh")
    assert found.sizes[:4] == (256,) * 4 and found.sizes[-1] == 4
    assert [(s.start, s.stop, s.recomputed) for s in found.segments] == [
        (0, 4, True), (4, 8, True), (8, 12, True), (12, len(found.sizes), False),
    ]  # fmt: skip
    assert found.mirror_counts == (1, 1, 1, 0) * 3 + (0,) * (len(found.sizes) - 12)
    # Only a loss is followed at once by its gradient: of an array, the last segment is made again.
    for several, again in (
        (lambda x, w: layers(x, w) * x, True),
        (lambda x, w: (layers(x, w) * x, x.sum()), True),
        (lambda x, w: (layers(x, w), x * w), False),
    ):
        plan = explain(several, ARRAY, ARRAY, budget=3 * 256)
        assert plan.segments[-1].recomputed == again
    dots = explain(layers, ARRAY, ARRAY, budget=3 * 256, keep="dots")
    assert [s.stop for s in dots.segments][0] == 8  # products count nothing
    twice = explain(layers, ARRAY, ARRAY, mirror=lambda step: 2 * (step.primitive != "tanh"))
    assert twice.mirror_counts[:4] == (2, 0, 2, 0)


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_a_weight_goes_through_the_segments_that_read_it(readers):
    """From two on: each segment that is recomputed hands it on, so that gradients are summed up."""
    x, w = jax.ShapeDtypeStruct((4, 8), jnp.float32), ARRAY

    def shared(x, w):
        for k in range(3):
            x = jnp.tanh(x @ w) if k < readers else jnp.tanh(jnp.sin(x))
        return (x * x).sum()

    def last(step):
        return step.primitive == "tanh"

    ours = olla_xla.sublinear(shared, budget=1, candidates=last)
    equations = jax.make_jaxpr(ours)(x, w).eqns
    parts = [e for e in equations if "policy" in e.params]
    assert len(parts) == 3
    handed = [[v.aval.shape for v in e.outvars].count(w.shape) for e in parts]
    assert handed == [int(1 < readers > k) for k in range(3)]


def test_what_a_policy_keeps_is_said(caplog):
    """As it is the gradient keeps six tanh.

    With its products kept: six of them, the tanh at the cut, the two of the last segment, which is
    not recomputed; and then the largest segment's four.
    """

    def said(function=layers, **asked):
        caplog.clear()
        with caplog.at_level("INFO", logger="olla_xla"):
            olla_xla.sublinear(function, **{"keep": "dots", **asked})(x, x)
        return [record.getMessage() for record in caplog.records]

    x = np.ones((8, 8), np.float32)
    (line,) = said(budget=3 * 256)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"([0-9,]*[0-9])[ ;]", line)]
    assert numbers == [(6 + 1 + 2 + 4) * 256, 6 * 256]
    # Without a policy, and where counts or compiles decide, there is nothing to say.
    assert said(budget=1)
    assert not said(budget=1, keep="nothing")
    assert not said(mirror=lambda step: 0) and not said(budget=lambda lowered: 1)
    (nothing,) = said(lambda x, w: x)
    assert "about 0 bytes" in nothing and "residuals 0;" in nothing
