"""Functions of JAX's own, small, each compiled alone: what `jax.jit` makes of the whole library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _s32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


_A, _B, _V, _I = _f32(64, 64), _f32(64, 64), _f32(64), _s32(64)
_WS, _X = _f32(6, 64, 64), _f32(32, 64)
_IMAGES, _KERNEL = _f32(2, 16, 16, 8), _f32(3, 3, 8, 8)
_HEADS = _f32(2, 16, 4, 8)


def _scan(ws: Any, x: Any, layer: Any = lambda x, w: jnp.tanh(x @ w)) -> Any:
    return lax.scan(lambda x, w: (layer(x, w), x.sum()), x, ws)


def _loss(ws: Any, x: Any) -> Any:
    return (_scan(ws, x)[0] ** 2).sum()


def _rematerialised(policy: Any) -> Any:
    def loss(ws: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jnp.tanh(checkpoint_name(x, "x") @ w)

        return (_scan(ws, x, jax.checkpoint(layer, policy=policy, prevent_cse=False))[0] ** 2).sum()

    return jax.grad(loss)


_OFFLOADED = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["x"],
    offload_src="device",
    offload_dst="pinned_host",
)


def _convolved(x: Any, k: Any) -> Any:
    return lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _attended(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def _adam(w: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def _nested(ws: Any, x: Any) -> Any:
    return lax.scan(
        lambda x, w: (lax.fori_loop(0, 3, lambda k, x: jnp.sin(x @ w) + k, x), x), x, ws
    )


def _key(seed: Any) -> Any:
    return jax.random.key(seed)


Function = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]

FUNCTIONS: dict[str, Function] = {
    "adam": (_adam, (_A,) * 4, (0, 1, 2)),
    "all but one": (lambda x: lax.dynamic_update_slice(x, x[:2] * 2, (1, 0)), (_A,), (0,)),
    "argsort": (lambda x: jnp.argsort(x, axis=0), (_A,), ()),
    "associative scan": (lambda x: lax.associative_scan(jnp.multiply, x), (_V,), ()),
    "attention": (_attended, (_HEADS,) * 3, ()),
    "attention's gradient": (
        jax.grad(lambda *a: _attended(*a).sum(), argnums=(0, 1, 2)),
        (_HEADS,) * 3,
        (),
    ),
    "average pooling": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        (_IMAGES,),
        (),
    ),
    "bernoulli": (lambda s: jax.random.bernoulli(_key(s), 0.3, (64, 64)), (_s32(),), ()),
    "bfloat16 product": (
        lambda a, b: a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16),
        (_A, _B),
        (),
    ),
    "bincount": (lambda i: jnp.bincount(i, length=16), (_I,), ()),
    "branches": (
        lambda k, x: lax.switch(k, [jnp.sin, jnp.cumsum, lambda x: x * 2], x),
        (_s32(), _V),
        (1,),
    ),
    "categorical": (lambda s, x: jax.random.categorical(_key(s), x), (_s32(), _A), ()),
    "cholesky": (lambda a: jnp.linalg.cholesky(a @ a.T + 64 * jnp.eye(64)), (_A,), ()),
    "choose": (lambda i, a: a[i], (_I, _A), ()),
    "choose's gradient": (jax.grad(lambda a, i: (a[i] ** 2).sum()), (_A, _I), ()),
    "clip": (lambda a, b: jnp.clip(a, -1, 1) + b, (_A, _B), (0,)),
    "complex": (lambda a: jnp.abs(jnp.exp(1j * a)), (_A,), ()),
    "concatenate": (lambda a, b: jnp.concatenate([a, b * 2, a[::-1]]), (_A, _B), ()),
    "cond": (lambda p, x: lax.cond(p > 0, jnp.tanh, lambda x: x @ x, x), (_s32(), _A), (1,)),
    "convolution": (_convolved, (_IMAGES, _KERNEL), ()),
    "convolution's gradient": (
        jax.grad(lambda x, k: (_convolved(x, k) ** 2).sum(), argnums=(0, 1)),
        (_IMAGES, _KERNEL),
        (),
    ),
    "counted": (lambda x: lax.fori_loop(0, 10, lambda k, x: x.at[k].add(k), x), (_V,), (0,)),
    "cross entropy": (
        jax.grad(lambda x, i: -jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], 1).mean()),
        (_A, _I),
        (),
    ),
    "cumulative": (lambda a: (jnp.cumsum(a, 0), lax.cumlogsumexp(a, 1)), (_A,), ()),
    "diagonal": (lambda a: jnp.diag(jnp.diag(a)) + jnp.tril(a), (_A,), ()),
    "dropout": (
        lambda s, x: jnp.where(jax.random.bernoulli(_key(s), 0.9, x.shape), x / 0.9, 0),
        (_s32(), _A),
        (1,),
    ),
    "einsum": (lambda a, b, v: jnp.einsum("ij,kj,k->i", a, b, v), (_A, _B, _V), ()),
    "fft": (lambda a: jnp.fft.irfft(jnp.fft.rfft(a) * 2), (_A,), ()),
    "gelu's gradient": (jax.grad(lambda a: jax.nn.gelu(a).sum()), (_A,), (0,)),
    "gru": (
        lambda w, u, x: lax.scan(
            lambda h, x: (jax.nn.sigmoid(h @ w + x) * jnp.tanh(h @ u), h), jnp.zeros(64), x
        ),
        (_A, _B, _X),
        (),
    ),
    "hessian": (jax.hessian(lambda v: (jnp.tanh(v) ** 3).sum()), (_f32(16),), ()),
    "histogram": (lambda v: jnp.histogram(v, bins=8), (_V,), ()),
    "in place": (lambda a, i, v: a.at[i].set(v[:, None]), (_A, _I, _V), (0,)),
    "interpolation": (lambda v: jnp.interp(v, jnp.arange(64.0), v), (_V,), ()),
    "jacobian": (jax.jacfwd(lambda v: jnp.sin(v) * v.sum()), (_f32(16),), ()),
    "kronecker": (lambda a: jnp.kron(a[:8, :8], a[8:16, 8:16]), (_A,), ()),
    "layer norm": (
        jax.grad(lambda x, g: (jax.nn.standardize(x) * g).sum(), argnums=(0, 1)),
        (_A, _V),
        (),
    ),
    "logsumexp": (lambda a: jax.nn.logsumexp(a, axis=1), (_A,), ()),
    "map": (lambda a: lax.map(lambda r: jnp.sort(r), a), (_A,), ()),
    "max pooling's gradient": (
        jax.grad(
            lambda x: lax.reduce_window(
                x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
            ).sum()
        ),
        (_IMAGES,),
        (),
    ),
    "mixed types": (lambda a, i: (a.astype(jnp.int8), i * 2.5, a > 0), (_A, _I), ()),
    "nested loops": (_nested, (_WS, _X), ()),
    "nested loops' gradient": (
        jax.grad(lambda ws, x: (_nested(ws, x)[0] ** 2).sum()),
        (_WS, _X),
        (),
    ),
    "normal": (lambda s: jax.random.normal(_key(s), (64, 64)), (_s32(),), ()),
    "one hot": (lambda i, a: jax.nn.one_hot(i, 64) @ a, (_I, _A), ()),
    "outer": (lambda v: jnp.outer(v, v) - jnp.outer(v, v).T, (_V,), ()),
    "pad": (lambda a: jnp.pad(a, ((2, 3), (1, 1)), mode="reflect"), (_A,), ()),
    "percentile": (lambda v: jnp.percentile(v, jnp.array([5, 50, 95])), (_V,), ()),
    "permutation": (lambda s: jax.random.permutation(_key(s), 64), (_s32(),), ()),
    "polynomial": (lambda v: jnp.polyval(jnp.arange(5.0), v), (_V,), (0,)),
    "product": (lambda a, b: jnp.tanh(a @ b) @ b, (_A, _B), (0,)),
    "quantised": (
        lambda a, b: lax.dot(
            a.astype(jnp.int8), b.astype(jnp.int8), preferred_element_type=jnp.int32
        ),
        (_A, _B),
        (),
    ),
    "reductions": (lambda a: (a.sum(0), a.max(1), a.mean(), a.argmin()), (_A,), ()),
    "reversed scan": (
        lambda ws, x: lax.scan(lambda x, w: (x @ w, x), x, ws, reverse=True),
        (_WS, _X),
        (),
    ),
    "roll": (lambda a, k: jnp.roll(a, k, axis=0), (_A, _s32()), ()),
    "scan": (_scan, (_WS, _X), (1,)),
    "scan's gradient": (jax.grad(_loss), (_WS, _X), ()),
    "offloaded scan": (_rematerialised(_OFFLOADED), (_WS, _X), ()),
    "recomputed scan": (_rematerialised(jax.checkpoint_policies.nothing_saveable), (_WS, _X), ()),
    "scan that keeps products": (
        _rematerialised(jax.checkpoint_policies.dots_saveable),
        (_WS, _X),
        (),
    ),
    "unrolled scan": (
        lambda ws, x: lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, ws, unroll=2),
        (_WS, _X),
        (),
    ),
    "scatter": (lambda a, i: a.at[i].add(1.0), (_A, _I), ()),
    "searchsorted": (lambda v, a: jnp.searchsorted(jnp.sort(v), a), (_V, _A), ()),
    "segments": (lambda v, i: jax.ops.segment_sum(v, i, 8), (_V, _I), ()),
    "sgd on a scan": (lambda ws, x: ws - 0.1 * jax.grad(_loss)(ws, x), (_WS, _X), (0,)),
    "slices": (lambda a, i: lax.dynamic_slice(a, (i, i), (8, 8)), (_A, _s32()), ()),
    "softmax": (lambda a: jax.nn.softmax(a, axis=1), (_A,), (0,)),
    "solve": (lambda a, b: jax.scipy.linalg.solve_triangular(a, b), (_A, _B), ()),
    "sort": (lambda v, i: lax.sort((v, i), num_keys=1), (_V, _I), (0, 1)),
    "swap": (lambda a, b: (b + 0, a + 0), (_A, _B), (0, 1)),
    "swapped axes": (lambda x: jnp.transpose(x, (3, 1, 0, 2)) * 2, (_IMAGES,), ()),
    "top k": (lambda a: lax.top_k(a, 4), (_A,), ()),
    "truncated normal": (
        lambda s: jax.random.truncated_normal(_key(s), -2, 2, (64,)),
        (_s32(),),
        (),
    ),
    "two outputs": (lambda a, b: (a + b, a - b, (a * b).sum()), (_A, _B), (0, 1)),
    "until": (
        lambda x: lax.while_loop(
            lambda s: s[1].sum() < 1e6, lambda s: (s[0] + 1, s[1] * 2), (0, x)
        ),
        (_A,),
        (0,),
    ),
    "vmap": (jax.vmap(lambda a, v: jnp.dot(a, v) * v), (_WS, _f32(6, 64)), ()),
    "where": (lambda a, b: jnp.where(a > b, a, b) * (a == b), (_A, _B), (0,)),
}
"""Name -> (function, shapes of its arguments, numbers of those that are donated)."""
