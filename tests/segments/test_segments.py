"""`olla_xla.sublinear`: the planner against brute force, gradients against plain ones, memory."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import olla_xla
from benchmarks.__main__ import main
from benchmarks.papers import sublinear_training
from olla_xla.errors import InputError, LimitError
from olla_xla.segments import budget as mirror_module
from olla_xla.segments.allocation import xla_temp_bytes
from olla_xla.segments.budget import (
    candidates,
    close_segments,
    cost,
    mirror_counts,
    mirrored_segments,
    plan_segments,
)
from olla_xla.segments.walk import Walk
from tests.support.compiles import QUICK

pytestmark = [pytest.mark.slow, pytest.mark.optimized]  # equal bits in code of two forms


def explain(fun, *args, **how):
    """Where `sublinear` cuts a function of these arguments."""
    return olla_xla.sublinear(fun, **how).explain(*args)


# The planner.


def chain(sizes):
    """Each step makes one value, which the next reads."""
    n = len(sizes)
    return Walk.of(sizes, [(b, k, [k + 1] if k + 1 < n else []) for k, b in enumerate(sizes)])


@st.composite
def walks(draw):
    n = draw(st.integers(1, 10))
    sizes = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    values = []
    for k in range(n):
        for _ in range(draw(st.integers(0, 2))):
            uses = sorted(draw(st.sets(st.integers(k + 1, n - 1), max_size=3))) if k < n - 1 else []
            values.append((draw(st.integers(0, 9)), k, uses))
    fixed = [k for k in range(n) if draw(st.integers(0, 9)) == 0]
    return Walk.of(sizes, values, fixed), values


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_algorithm_3_by_brute_force(sizes, data):
    """Its cuts are the first, in lexicographic order, of those whose segments pass the budget."""
    may = np.array(data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))))
    budget = data.draw(st.integers(0, 12))

    def passing(cuts):
        starts = [0, *(c + 1 for c in cuts)]
        return all(sum(sizes[a : c + 1]) > budget for a, c in zip(starts, cuts, strict=False))

    allowed = np.flatnonzero(may).tolist()
    subsets = (s for r in range(len(allowed) + 1) for s in itertools.combinations(allowed, r))
    fitting = [list(s) for s in subsets if passing(s)]
    # Longer sequences that go on from a shorter one come after it; none closes earlier.
    best = min(fitting, key=lambda s: [*s, len(sizes)])
    assert close_segments(np.array(sizes), may, budget) == best


@given(walks(), st.sampled_from([1, 2, None]), st.booleans())
def test_segments_cover_the_walk(case, depth, loss_last):
    walk, _ = case

    def covers(walk, segments, levels):
        bounds = [0, *(s.stop for s in segments)]
        assert [s.start for s in segments] == bounds[:-1] and bounds[-1] == len(walk)
        for s in segments:
            part = walk.part(s.start, s.stop)
            if walk.fixed[s.start : s.stop].any():
                assert not s.recomputed and len(part) == 1
            if s.inner:
                covers(part, s.inner, levels - 1)
                assert levels > 0

    segments = plan_segments(walk, depth=depth, loss_last=loss_last)
    covers(walk, segments, 99 if depth is None else depth - 1)
    counts = mirror_counts(walk, segments)
    assert depth is None or max(counts) <= depth
    assert not any(c for c, f in zip(counts, walk.fixed, strict=True) if f)


@pytest.mark.parametrize("n", [16, 64, 256, 1024])
def test_a_chain_takes_square_root_memory(n):
    walk = chain([1] * n)
    segments = plan_segments(walk)
    x, y = cost(walk, [s.stop - 1 for s in segments[:-1]])
    best = min(
        sum(cost(walk, close_segments(walk.sizes, candidates(walk, 0), b))) for b in range(1, n)
    )
    assert x + y <= 1.25 * best and x + y <= 2.5 * n**0.5
    counts = mirror_counts(walk, segments)
    assert set(counts) == {0, 1}
    assert sum(c == 0 for c in counts) == len(segments) - 1  # the split points


def test_recursion_takes_less_for_more_recomputation():
    walk = chain([1] * 216)

    def peak(walk, segments):
        kept, most = 0, 0
        for s in segments:
            part = walk.part(s.start, s.stop)
            inside = peak(part, s.inner) if s.inner else s.stop - s.start
            most = max(most, kept + inside)
            kept += 1
        return most

    found = {depth: plan_segments(walk, depth=depth) for depth in (1, 2, 3, None)}
    peaks = [peak(walk, found[depth]) for depth in (1, 2, 3, None)]
    assert peaks[0] > peaks[1] > peaks[2] and peaks[1] <= 3.5 * 216 ** (1 / 3)
    assert peaks[-1] <= 2 * np.log2(216)
    mean = [np.mean(mirror_counts(walk, found[depth])) for depth in (1, 2, 3)]
    assert mean == sorted(mean) and mean[0] <= 1 and mean[2] <= 3


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_any_k_in_the_recursion(splits):
    """g(n) = k + g(n / (k + 1)): k log_{k + 1} n kept, log_{k + 1} n times recomputed."""
    levels = {1: 10, 2: 6, 4: 4}[splits]
    n = (splits + 1) ** levels
    walk = chain([1] * n)
    segments = plan_segments(walk, depth=None, splits=splits)
    assert [s.stop - s.start for s in segments] == [n // (splits + 1)] * (splits + 1)

    def kept(segments):
        """Split points in memory at once, at most: all of a level, then those of one part."""
        return len(segments) - 1 + max((kept(s.inner) for s in segments), default=0)

    assert splits * (levels - 2) <= kept(segments) <= splits * levels
    assert levels - 2 <= max(mirror_counts(walk, segments)) <= levels


@given(walks(), st.data())
def test_cuts_are_where_they_may_be(case, data):
    walk, _ = case
    n = len(walk)
    may = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    walk = dataclasses.replace(walk, allowed=np.array(may), fixed=np.zeros(n, np.bool_))

    def check(start, segments):
        for s in segments[:-1]:
            assert may[start + s.stop - 1]
        for s in segments:
            check(start + s.start, s.inner)

    for depth in (1, 2, None):
        check(0, plan_segments(walk, depth=depth))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_a_chain_is_recomputed_as_often_as_asked(asked):
    """m(v) of algorithm 2 as input; the last step has no reader that would keep it."""
    walk = chain([1] * (len(asked) + 1))
    segments = mirrored_segments(walk, [*asked, 0])
    assert mirror_counts(walk, segments)[:-1] == asked


@given(walks(), st.data())
def test_nothing_is_kept_but_what_is_asked_for(case, data):
    """Readers of what crosses a segment's end make again what leads to it from what is kept."""
    walk, values = case
    n = len(walk)
    asked = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    segments = mirrored_segments(walk, asked)
    assert [s.start for s in segments] == [0, *(s.stop for s in segments[:-1])]
    assert segments[-1].stop == n
    kept = {k for k in range(n) if asked[k] <= 0 or walk.fixed[k]}
    read = [{source for _, source, uses in values if k in uses} for k in range(n)]
    for s in segments:
        assert not kept & set(s.again)
        if not walk.fixed[s.start]:
            steps = [*s.again, *range(s.start, s.stop)]
            assert all(u in kept or u in steps for k in steps for u in read[k])
        if kept >= set(range(s.start, s.stop)):
            assert s.recomputed == bool(s.again)
    for step, count in enumerate(mirror_counts(walk, segments)):
        readers = [k for k in range(step + 1, n) if step in read[k]]
        if step not in kept and readers and not any(walk.fixed[k] for k in readers):
            assert count >= asked[step]


def test_more_steps_than_may_be_run_again(monkeypatch):
    """Each segment reads all that was made before it."""
    n = 40
    walk = Walk.of([1] * n, [(1, k, list(range(k + 1, n))) for k in range(n)])
    asked = [k % 2 for k in range(n)]
    again = sum(len(s.again) for s in mirrored_segments(walk, asked))
    monkeypatch.setattr(mirror_module, "MOST_AGAIN", again)
    mirrored_segments(walk, asked)
    monkeypatch.setattr(mirror_module, "MOST_AGAIN", again - 1)
    with pytest.raises(InputError, match="return 0 for some"):
        mirrored_segments(walk, asked)


# The transformation.


def layers(n=24, width=32):
    keys = jax.random.split(jax.random.key(0), n)
    return [jax.random.normal(k, (width, width)) * 0.2 for k in keys]


def loss(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2), {"mean": x.mean(0), "steps": len(weights)}


X = np.asarray(jax.random.normal(jax.random.key(1), (512, 32)))


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile()


def quick(function):
    """Jitted for what is no test of single bits."""
    return jax.jit(function, compiler_options=QUICK)


def temp_bytes(function, *arguments):
    return quick(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def assert_equal(a, b, tolerance=0.0):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    for x, y in leaves:
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("depth", [1, 2, None])
def test_gradients_are_equal_and_memory_goes_down(depth):
    weights = layers()
    plain = compiled(jax.value_and_grad(loss, has_aux=True), weights, X)
    wrapped = olla_xla.sublinear(loss, depth=depth)
    ours = compiled(jax.value_and_grad(wrapped, has_aux=True), weights, X)
    assert_equal(plain(weights, X), ours(weights, X))
    temp = [c.memory_analysis().temp_size_in_bytes for c in (plain, ours)]
    assert temp[1] < 0.6 * temp[0]
    # The recomputation is in the executable: XLA has not merged it away.
    dots = [c.as_text().count(" dot(") for c in (plain, ours)]
    assert dots[1] > dots[0]
    assert wrapped.__name__ == "loss"


def test_the_callers_own_counts():
    """The tanh of every third layer is kept, the products never, what is between once."""
    weights = layers()

    def marked(weights, x):
        for k, w in enumerate(weights):
            x = jnp.tanh(x @ w)
            if k % 3 == 2:
                x = checkpoint_name(x, "kept")
        return jnp.sum(x**2), {"mean": x.mean(0)}

    def mirror(step):
        return 0 if step.name == "kept" else 1

    gradient = compiled(jax.grad(marked, has_aux=True), weights, X)
    ours = compiled(jax.grad(olla_xla.sublinear(marked, mirror=mirror), has_aux=True), weights, X)
    assert_equal(gradient(weights, X), ours(weights, X))
    temp = [c.memory_analysis().temp_size_in_bytes for c in (gradient, ours)]
    assert temp[1] < 0.6 * temp[0]
    plan = explain(marked, weights, X, mirror=mirror)
    counts = dict.fromkeys(plan.equations, 0)
    for equation, count in zip(plan.equations, plan.mirror_counts, strict=True):
        counts[equation] += count
    assert counts["name"] == 0 and counts["tanh"] == counts["dot_general"] == len(weights)


def shortcuts(weights, x):
    """What every third layer reads crosses the product that is kept."""
    for k, w in enumerate(weights):
        y = jnp.sin(x)
        x = jnp.tanh(checkpoint_name(y @ w, "kept")) + (y if k % 3 == 2 else 0.0)
    return jnp.sum(x**2)


def kept_shapes(function, *arguments):
    """Shapes of what the gradient keeps."""
    pull = jax.eval_shape(lambda *a: jax.vjp(function, *a)[1], *arguments)
    return [v.shape for v in jax.tree.leaves(pull)]


@pytest.mark.parametrize("deeper", [False, True])
def test_what_crosses_a_segment_is_kept_only_where_that_is_asked_for(deeper):
    weights = layers(6)
    x = X[:16]

    def mirror(step):
        return 0 if step.name == "kept" else 1 + (deeper and step.primitive == "sin")

    ours = olla_xla.sublinear(shortcuts, mirror=mirror)
    assert_equal(jax.grad(ours)(weights, x), jax.grad(shortcuts)(weights, x), 1e-6)
    _, tangent = jax.jvp(lambda x: ours(weights, x), (x,), (jnp.ones_like(x),))
    _, expected = jax.jvp(lambda x: shortcuts(weights, x), (x,), (jnp.ones_like(x),))
    assert_equal(tangent, expected, 1e-5)
    plan = explain(shortcuts, weights, x, mirror=mirror)
    assert any(s.again for s in plan.segments)
    # The six products, and the argument: nothing else of this shape.
    assert kept_shapes(ours, weights, x).count(x.shape) <= len(weights) + 1
    assert kept_shapes(shortcuts, weights, x).count(x.shape) > 2 * len(weights)
    for number, count in enumerate(plan.mirror_counts):
        if plan.equations[number] == "sin":
            assert count >= 1 + deeper


def test_the_callers_own_candidates():
    weights = layers()

    def marked(weights, x):
        for k, w in enumerate(weights):
            with jax.named_scope(f"layer_{k}"):
                x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    def candidates(step):
        return step.primitive == "tanh" and step.scope.endswith(("layer_7", "layer_15"))

    plan = explain(marked, weights, X, budget=1, candidates=candidates)
    assert len(plan.segments) == 3
    assert [plan.equations[s.stop - 1] for s in plan.segments[:-1]] == ["tanh", "tanh"]
    ours = jax.grad(olla_xla.sublinear(marked, candidates=candidates))
    assert_equal(jax.jit(ours)(weights, X), jax.jit(jax.grad(marked))(weights, X))


def test_the_budget_of_the_exact_allocation():
    """Of all budgets that are tried, the one whose gradient the allocation gives least."""
    weights = layers(12)
    asked = []

    def allocation(lowered):
        asked.append(xla_temp_bytes(lowered))
        return asked[-1]

    chosen = explain(loss, weights, X, budget=allocation)
    assert len(asked) > 1 and len(set(asked)) > 1
    ours = jax.grad(olla_xla.sublinear(loss, budget="exact"), argnums=(0, 1), has_aux=True)
    executable = compiled(ours, weights, X)
    # What is compiled in the end is what was asked about, but for its results.
    assert executable.memory_analysis().temp_size_in_bytes == pytest.approx(min(asked), rel=0.05)
    plain = compiled(jax.grad(loss, argnums=(0, 1), has_aux=True), weights, X)
    assert_equal(executable(weights, X), plain(weights, X))
    # Asked for the most it is another budget, so the allocation decides.
    known = iter(asked.copy())
    most = explain(loss, weights, X, budget=lambda lowered: -next(known))
    assert most.segments != chosen.segments


def test_no_exact_budget_for_what_has_no_gradient():
    def f(x):
        return jnp.sum(jax.lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, jnp.sin(x)))

    with pytest.raises(InputError, match="give budget=BYTES"):
        olla_xla.sublinear(f, budget="exact")(X[0])


def test_dots_are_kept():
    weights = layers()
    plain = compiled(jax.grad(loss, has_aux=True), weights, X)
    kept = compiled(jax.grad(olla_xla.sublinear(loss, keep="dots"), has_aux=True), weights, X)
    assert kept.as_text().count(" dot(") == plain.as_text().count(" dot(")
    policy = jax.checkpoint_policies.everything_saveable
    every = compiled(jax.grad(olla_xla.sublinear(loss, keep=policy), has_aux=True), weights, X)
    assert_equal(plain(weights, X), every(weights, X))


def test_dots_never_take_more_than_nothing_by_the_exact_budget(caplog):
    """Tanh is derived from its result: the function as it is keeps that, and no product."""
    weights = layers()

    def temp(function):
        return temp_bytes(jax.grad(function, has_aux=True), weights, X)

    with caplog.at_level("INFO", "olla_xla"):
        estimated = temp(olla_xla.sublinear(loss, keep="dots"))
    assert temp(loss) < estimated and "the largest segment take about" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "olla_xla"):
        assert temp(olla_xla.sublinear(loss, keep="dots", budget="exact")) <= temp(loss)
        assert explain(loss, weights, X, keep="dots", budget="exact").segments == ()
        explain(loss, weights, X)
    assert not caplog.text


def test_dots_are_kept_where_that_takes_less():
    def wide(weights, x):
        for w in weights:
            x = jnp.sin(jnp.exp(-(jnp.sin(x @ w) ** 2)) * x)
        return jnp.sum(x**2), {}

    weights = layers()
    assert any(s.recomputed for s in explain(wide, weights, X, keep="dots").segments)
    temp = [
        temp_bytes(jax.grad(f, has_aux=True), weights, X)
        for f in (olla_xla.sublinear(wide, keep="dots"), wide)
    ]
    assert temp[0] < temp[1]


def transforms():
    """Of a scalar function of weights and an input."""

    def descent(f):
        def step(w, x):
            return jax.lax.scan(
                lambda c, _: (c - 0.1 * jax.grad(f, argnums=1)(w, c), f(w, c)), x, None, length=3
            )

        return step

    return {
        "eager": lambda f: f,
        "grad": jax.grad,
        "jit": lambda f: jax.jit(jax.grad(f)),
        "jit inside": lambda f: jax.grad(jax.jit(f)),
        "vmap": lambda f: jax.vmap(jax.grad(f), in_axes=(None, 0)),
        "forward": lambda f: jax.jacfwd(f, argnums=1),
        "second": lambda f: jax.grad(lambda w, x: jnp.sum(jax.grad(f, argnums=1)(w, x))),
        "nested": lambda f: jax.grad(olla_xla.sublinear(f)),
        "scan": descent,
        "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    }


@pytest.mark.parametrize("name", transforms())
def test_transformations_of_jax(name):
    def plain(weights, x):
        return loss(weights, x)[0]

    transform = transforms()[name]
    weights, x = layers(6), X[:4]
    ours = transform(olla_xla.sublinear(plain))(weights, x)
    assert_equal(ours, transform(plain)(weights, x), 1e-4 if name == "second" else 1e-6)


def test_calls_loops_and_derivative_rules():
    @jax.custom_vjp
    def scaled(x):
        return 2 * x

    scaled.defvjp(lambda x: (2 * x, x), lambda x, g: (3 * g * jnp.cos(x),))

    @functools.partial(jax.jit, static_argnames="twice")
    def layer(w, x, twice):
        x = jax.nn.relu(x @ w)
        return jax.nn.gelu(x @ w) if twice else x

    def f(weights, x, key, *, twice=True):
        def body(c, w):
            return jnp.tanh(c @ w), jnp.sum(c)

        for w in weights:
            x = layer(w, x, twice)
            x = x * jax.random.bernoulli(key, 0.9, x.shape)
        x, sums = jax.lax.scan(body, scaled(x), jnp.stack(weights))
        x = jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)
        return jnp.mean(x) + jnp.sum(sums), x

    weights, key = layers(3), jax.random.key(3)
    plain = jax.grad(f, has_aux=True)
    for twice in (True, False):
        expected = quick(functools.partial(plain, twice=twice))(weights, X[:8], key)
        for depth in (1, None):
            ours = jax.grad(olla_xla.sublinear(f, depth=depth), has_aux=True)
            made = quick(functools.partial(ours, twice=twice))(weights, X[:8], key)
            assert_equal(made, expected, 1e-5)
    cut = explain(f, weights, X[:8], key)
    assert "scan" in cut.equations and "dot_general" in cut.equations  # layers are taken apart


def test_effects_happen_once():
    seen = []

    def f(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
            jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return jnp.sum(x)

    weights = layers(6)
    expected = jax.grad(f)(weights, X[:4])
    jax.effects_barrier()
    count = len(seen)
    assert_equal(jax.grad(olla_xla.sublinear(f))(weights, X[:4]), expected, 1e-6)
    jax.effects_barrier()
    assert len(seen) == 2 * count == 12


def test_arguments_of_any_kind_and_results_passed_through():
    def f(tree, mode, scale=1.0, *, flag=None):
        assert mode == "mean" and flag is None
        return jnp.mean(tree["x"] * scale), tree["x"], 3.0, jnp.zeros(2)

    ours = olla_xla.sublinear(f)({"x": X}, "mean", scale=2.0)
    assert_equal(ours, f({"x": X}, "mean", scale=2.0))

    def beside(x, y):
        return jnp.sum(jnp.sin(jnp.tanh(x))), y  # nothing reads y

    assert_equal(olla_xla.sublinear(beside, budget=1)(X, 2 * X), beside(X, 2 * X))

    def outer(x):
        return jax.grad(olla_xla.sublinear(lambda y: jnp.sum(jnp.sin(x) * y)))(x)  # closes over x

    assert_equal(jax.jit(outer)(X), np.sin(X), 1e-6)


def test_a_flax_network_with_statistics():
    network = sublinear_training.resnet(17, image_size=16, batch_size=2)
    shapes = network.shapes
    plan = explain(network.loss, *shapes)
    assert len(plan.segments) > 3
    plain, ours = (
        jax.eval_shape(jax.value_and_grad(f, has_aux=True), *shapes)
        for f in (network.loss, olla_xla.sublinear(network.loss))
    )
    assert plain == ours


def test_figures_on_a_short_sequence():
    row = sublinear_training.measure_memory(sublinear_training.lstm(8, layers=1))
    assert row.none_bytes > row.in_place_bytes > row.both_bytes > 2.5 * row.sublinear_bytes
    assert row.both_bytes > row.cheap_bytes > row.sublinear_bytes >= row.exact_bytes
    assert row.sharing_bytes >= row.both_bytes


def test_sharded_arguments():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    weights = layers(6)
    x = jax.device_put(X, NamedSharding(mesh, PartitionSpec("data")))
    gradient = jax.jit(jax.grad(olla_xla.sublinear(loss), has_aux=True))
    assert_equal(gradient(weights, x), jax.jit(jax.grad(loss, has_aux=True))(weights, X), 1e-6)


def test_composes_with_plan():
    weights = layers()

    def step(weights, x):
        gradient, _ = jax.grad(olla_xla.sublinear(loss), has_aux=True)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)

    planned = olla_xla.plan(step, donate_argnums=0, time_limit=5)
    expected = jax.jit(step)(weights, X)
    assert_equal(planned([w.copy() for w in weights], X), expected)
    (plan,) = planned.plans
    assert plan.assigned_bytes is not None and plan.assigned_bytes <= plan.xla_bytes


def test_misuse():
    for wrong in ({"budget": 0}, {"depth": 0}, {"budget": -5}):
        with pytest.raises(LimitError, match="at least 1"):
            olla_xla.sublinear(loss, **wrong)
    for wrong in (
        {"keep": "some"}, {"keep": 3}, {"depth": 1.5}, {"budget": True}, {"budget": "best"},
        {"splits": 2},
        {"depth": None, "budget": 8}, {"mirror": 1}, {"candidates": [1]},
        {"mirror": lambda step: 1, "budget": 8}, {"depth": None, "splits": True},
    ):  # fmt: skip
        with pytest.raises(InputError):
            olla_xla.sublinear(loss, **wrong)
    with pytest.raises(LimitError, match="at least 1"):
        olla_xla.sublinear(loss, depth=None, splits=0)
    for wrong, message in (
        ({"candidates": lambda step: False}, "must return True"),
        ({"mirror": lambda step: -1}, "mirror returned -1 for"),
    ):
        with pytest.raises(InputError, match=message):
            olla_xla.sublinear(loss, **wrong)(layers(2), X)
    with pytest.raises(InputError, match="takes a function"):
        olla_xla.sublinear(3)  # pyright: ignore[reportArgumentType]


def test_the_benchmark_on_the_command_line(capsys, tmp_path, monkeypatch):
    out = tmp_path / "rows.json"
    flags = ["--depths=", "--steps=2", "--turns=0", f"--out={out}"]
    code = main(["benchmarks", "sublinear", *flags])
    printed = capsys.readouterr().out
    assert code == 1 and "lstm 2: sublinear is less than 4 times under sharing" in printed
    assert '"sublinear_bytes"' in out.read_text()
    monkeypatch.setattr(sublinear_training, "measure_memory", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # what was measured before is still there
        main(["benchmarks", "sublinear", *flags])
    assert '"sublinear_bytes"' in out.read_text()
    assert main(["benchmarks", "sublinear", "--timed=vgg"]) == 2
    assert "'vgg' is not known; use resnet32" in capsys.readouterr().err
    assert main(["benchmarks", "sublinear", "--steps=x"]) == 2
    assert "--steps" in capsys.readouterr().err


HELD = jnp.linspace(-1.0, 1.0, 32 * 64, dtype=jnp.float32).reshape(32, 64)
SUMMED = jax.jit(lambda x: jnp.tanh(jnp.tanh(x @ HELD) @ HELD.T).sum())

# Inlined calls whose results are the function's: once, twice, an argument, a constant.
NESTED = {
    "call": lambda x: SUMMED(x),
    "calls": jax.jit(jax.jit(lambda x: SUMMED(x))),
    "twice": jax.jit(lambda x: (SUMMED(x),) * 2),
    "argument": jax.jit(lambda x: (x, SUMMED(x), 3.0)),
    "constants": jax.jit(lambda x: (HELD, SUMMED(x), np.arange(3.0))),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("wrap", [olla_xla.sublinear, olla_xla.fission])
def test_results_of_inlined_calls(name, wrap):
    def total(f):
        return lambda x: sum(jnp.sum(r) for r in jax.tree.leaves(f(x)))

    x = jnp.ones((256, 32)) / 8
    f = NESTED[name]
    made, expected = quick(wrap(f))(x), quick(f)(x)
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 1e-5)
    gradient = jax.grad(total(wrap(f)))(x)
    np.testing.assert_allclose(gradient, jax.grad(total(f))(x), 1e-4, 1e-6)
