"""`olla_xla.fission` of what other libraries' functions hold besides arithmetic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import olla_xla
from olla_xla.errors import InputError

X, W = (
    jnp.linspace(-1.0, 1.0, 64 * 8).reshape(64, 8),
    jnp.linspace(-1.0, 2.0, 8 * 512).reshape(8, 512),
)


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def close(made, expected):
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6 * np.abs(b).max())


def test_an_equation_without_results():
    seen = []

    def told(w, x):
        jax.debug.callback(lambda s: seen.append(float(s)), x.sum())
        return loss(w, x)

    close(jax.jit(olla_xla.fission(told, pieces=4))(W, X), loss(W, X))
    jax.effects_barrier()
    assert seen == [pytest.approx(float(X.sum()), abs=1e-4)], "it runs once"


def test_effects_keep_their_order():
    """No variable leads from what writes a reference to what reads it."""

    def kept(w, x):
        ref = jax.new_ref(jnp.float32(5))
        ref[...] = loss(w, x)
        read = ref[...]
        ref[...] = jnp.float32(7)
        return read + ref[...] + loss(w, x + read * 1e-6), read

    def read_before(w, x):
        ref = jax.new_ref(x)
        large = jnp.tanh(ref[...] @ w)
        ref[...] = x + large.mean(1, keepdims=True)
        return jnp.sum(jnp.tanh(ref[...] @ w) ** 2)

    for function in (kept, read_before):
        ours = olla_xla.fission(function, pieces=4)
        close(jax.jit(ours)(W, X), jax.jit(function)(W, X))
        assert ours.explain(W, X).regions


def test_a_user_s_strict_ranks():
    rows, mask = jnp.arange(64)[::-1], jnp.arange(512) % 2 == 0

    def picked(w, x, mask):
        return jnp.sum(jnp.where(mask[None], jnp.tanh(x[rows] @ w), jnp.float32(0)) ** 2)

    gradient = jax.value_and_grad(picked, (0, 1))
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        close(olla_xla.fission(gradient, pieces=4)(W, X, mask), gradient(W, X, mask))


def test_axes_that_types_hold():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.device_put(X, jax.NamedSharding(mesh, jax.P("x", None)))
        with pytest.raises(InputError, match=r"float32\[64@x,8\] .*AxisType.Auto$"):
            olla_xla.fission(loss, pieces=4)(W, rows)


def test_derivatives_of_whole_numbers():
    """These are literals of `float0`, which cannot be compared."""

    def with_zeros(w, x, count):
        zero = np.zeros((), jax.dtypes.float0)
        return jax.jvp(lambda w, c: loss(w, x) + c, (w, count), (w, zero))

    args = W, X, jnp.int32(3)
    close(jax.jit(olla_xla.fission(with_zeros, pieces=4))(*args), with_zeros(*args))


def test_a_user_s_strict_promotion():
    labels = jnp.arange(64, dtype=jnp.uint8)

    def narrow(w, x):
        logits = x @ w
        picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    args = W.astype(jnp.bfloat16), X.astype(jnp.bfloat16)
    gradient = jax.value_and_grad(narrow)
    with jax.numpy_dtype_promotion("strict"):
        made, expected = olla_xla.fission(gradient, pieces=4)(*args), gradient(*args)
    for a, b in zip(made, expected, strict=True):
        assert a.dtype == b.dtype == jnp.bfloat16
        wide = np.asarray(b, np.float32)
        np.testing.assert_allclose(np.asarray(a, np.float32), wide, atol=2**-6 * np.abs(wide).max())


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_rule_that_refuses_derivatives(kind):
    def wide(x):
        return jnp.tanh(x @ W)

    def refuse(*_):
        raise RuntimeError("not of this argument")

    if kind == "jvp":
        function = jax.custom_jvp(wide)
        function.defjvp(refuse)
    else:
        function = jax.custom_vjp(wide)
        function.defvjp(refuse, refuse)
    with pytest.raises(InputError, match=f"custom_{kind}_call at test_others.py:.* mixes"):
        olla_xla.fission(lambda x: function(x).sum(), pieces=4)(X)


def test_names_and_figures_of_a_refusal():
    def ranked(w, x):
        return jnp.sort(jnp.sort(x @ w, 0), 1)

    why = "ranked cannot be cut into pieces: no cut lowers the peak of 262,144 bytes; sort at"
    with pytest.raises(InputError, match=why):
        olla_xla.fission(functools.partial(ranked, W), pieces=4)(X)


def test_the_gradient_of_a_product():
    """JAX writes it with reshapes that transpose."""

    def fitted(w, x):
        return (jnp.prod(1 + 0.1 * jnp.sin(x[:, :, None] * w), -1) ** 2).mean()

    function = jax.grad(fitted)
    cut = olla_xla.fission(function, pieces=16)
    found = cut.explain(W[:, :16], X)
    assert found.largest_after == found.largest_before / 16
    close(jax.jit(cut)(W[:, :16], X), jax.jit(function)(W[:, :16], X))
