"""What an analysis says is true: one bound, untrained state, rows that are alike."""

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.analysis.category import Category
from olla_xla.analysis.terminal import text

SIZE = 256


def net(base, adapters, x):
    for w, (a, b) in zip(base, adapters, strict=True):
        x = jnp.tanh(x @ w + (x @ a) @ b)
    return x


def shape(*dimensions):
    return jax.ShapeDtypeStruct(dimensions, jnp.float32)


BASE = [shape(SIZE, SIZE)] * 4
ADAPTERS = [(shape(SIZE, 8), shape(8, SIZE))] * 4
DATA = shape(64, SIZE)


def adapted(base, adapters, m, x, y):
    """Low-rank adapters are trained, what they adapt is not."""
    g = jax.grad(lambda a: ((net(base, a, x) - y) ** 2).mean())(adapters)
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
    return jax.tree.map(lambda p, m: p - 0.1 * m, adapters, m), m


def stopped(p, m, x, y):
    """The same, with gradients and momentum of all weights."""
    frozen = jax.lax.stop_gradient
    g = jax.grad(lambda p: ((net(frozen(p[0]), p[1], x) - y) ** 2).mean())(p)
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
    return jax.tree.map(lambda p, m: p - 0.1 * m, p, m), m, g


@pytest.fixture(scope="module")
def lora():
    return olla_xla.analyze(adapted, BASE, ADAPTERS, ADAPTERS, DATA, DATA)


def test_weights_that_are_not_trained_are_no_batch(lora):
    sizes = lora.xla.by_category()
    assert sizes[Category.BATCH] == 2 * 64 * SIZE * 4
    assert sizes[Category.ARGUMENTS] == 4 * SIZE * SIZE * 4


def test_donations_with_one_cause_are_one_line(lora):
    assert len(lora.donation.trouble) == 16
    said = " ".join(text(lora, width=None).split("Donation: ")[1].split())
    assert said.count("not donated") == 2, "the title and one row"
    assert "adapters[0][0] float32[256,8] and 15 more" in said
    assert "donate_argnums=(1, 2) saves that if the caller no longer needs the" in said


def test_rows_that_are_alike_are_one_with_their_operation(lora):
    said = text(lora, width=None)
    line = net.__code__.co_firstlineno + 2
    assert "f32[64,256] x 3" in said and f"test_said.py:{line} (tanh)" in said


def test_what_learns_nothing_is_told(lora):
    """Gradients of what is not differentiated, its momentum, and itself."""
    assert lora.untrained is None
    p = BASE, ADAPTERS
    found = olla_xla.analyze(jax.jit(stopped, donate_argnums=(0, 1)), p, p, DATA, DATA)
    assert found.untrained is not None
    assert found.untrained.bytes == 3 * 4 * SIZE * SIZE * 4
    expected = {f"result[{k}][0][{n}]" for k in range(3) for n in range(4)}
    assert set(found.untrained.paths) == expected
    assert "3.0 MB of outputs are not trained (result[" in text(found, width=None)


def test_what_learns_is_not_told():
    def averaged(p, mean, x, y):
        g = jax.grad(lambda p: ((net(p, ADAPTED, x) - y) ** 2).mean())(p)
        p = jax.tree.map(lambda p, g: p - 0.1 * g, p, g)
        return p, jax.tree.map(lambda m, p: 0.9 * m + 0.1 * p, mean, p)

    ADAPTED = [(jnp.ones((SIZE, 8)), jnp.ones((8, SIZE)))] * 4
    assert olla_xla.analyze(averaged, BASE, BASE, DATA, DATA).untrained is None
    assert olla_xla.analyze(lambda x: jnp.zeros((512, 512)) + 0 * x, shape(1)).untrained is None


def scanned(w, x):
    def body(h, w):
        return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h, None

    return w - jax.grad(lambda w: (jax.lax.scan(body, x, w)[0] ** 2).mean())(w)


def test_the_bound_is_of_what_the_plan_runs():
    """Where it changes loops, one bound is told, and the planned total is not below it."""
    plan = {"max_overhead": 0.3, "time_limit": 5, "step_limit": 500}
    found = olla_xla.analyze(
        jax.jit(scanned, donate_argnums=0), shape(16, 64, 64), shape(2048, 64), plan=plan
    )
    assert found.plan is not None and found.plan.loops
    assert found.planned is not None and found.planned.total_bytes < 0.7 * found.xla.total_bytes
    assert 0 <= found.gap < 0.2 and found.bound.bytes <= found.lower_bound_bytes
    said = text(found, width=None)
    assert "no order of the plan's operators needs less than" in said
    assert "below that" not in said and "XLA's operators" not in said
