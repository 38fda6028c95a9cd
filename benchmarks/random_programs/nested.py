"""Operators of random graphs: jitted functions, loops that count and branch, FFTs, solvers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.environment import Operator

_MOST = 3


def _jit(env: Any, node: Any, values: Any) -> list[Any]:
    """One jitted function, called twice here and wherever its operators come again."""
    a, b = values[:2]
    names = (node.inner, node.k % 2)
    if names not in env.jitted:

        def inside(weights: Any, key: Any, a: Any, b: Any) -> Any:
            here = dataclasses.replace(env, weights=weights, key=key)
            return here.run(node.inner, [a, b]) * (0.5 if node.k % 2 else 1.0)

        env.jitted[names] = jax.jit(inside)
    function = env.jitted[names]
    weights = list(env.weights)
    first = function(weights, env.key, a, b).astype(a.dtype)
    return [first, function(weights, env.key, b, first)]


def _count(env: Any, node: Any, values: Any) -> list[Any]:
    """A scan that carries a saturating counter, and a mean whose bias it corrects."""
    a, b = values[:2]

    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        n, m, h = carry
        n = jnp.where(n < _MOST, n + 1, _MOST)
        new = env.run(node.inner, [h, b])
        m = (0.9 * m + 0.1 * new).astype(a.dtype)
        fair = m / (1 - 0.9**n)
        return (n, m, jnp.tanh(h + fair).astype(a.dtype)), fair.mean()

    start = (jnp.int32(0), jnp.zeros_like(a), a)
    (_, m, last), means = jax.lax.scan(body, start, None, length=3 + node.k % 4)
    return [last, m + means.mean()]


def _branch_turns(env: Any, node: Any, values: Any) -> list[Any]:
    """A scan whose body branches on the iteration's number."""
    a, b = values[:2]
    turns = 3 + node.k % 4

    def layer(h: Any) -> Any:
        return jnp.tanh(env.run(node.inner, [b, h @ env.weight(node.k)])).astype(a.dtype)

    def body(h: Any, t: Any) -> tuple[Any, Any]:
        if node.op == "switch_turns":
            new = jax.lax.switch(t % 3, (layer, lambda h: 0.9 * h, lambda h: jnp.sin(h) * b), h)
        else:
            new = jax.lax.cond(t < turns - 1, layer, lambda h: h, h)
        return new.astype(a.dtype), None

    return [jax.lax.scan(body, a, jnp.arange(turns))[0]]


def _scalar_carry(env: Any, node: Any, values: Any) -> list[Any]:
    """A scan that carries scalars beside an array: a running mean, and the least of them."""
    a, b = values[:2]

    def body(carry: Any, t: Any) -> tuple[Any, Any]:
        h, mean, least = carry
        new = env.run(node.inner, [h, b])
        mean = (0.8 * mean + 0.2 * (new * new).mean()).astype(a.dtype)
        h = (0.5 * (h + new) - mean * 0.1).astype(a.dtype)
        return (h, mean, jnp.minimum(least, mean)), mean

    start = (a, jnp.zeros((), a.dtype), jnp.full((), 9, a.dtype))
    (h, mean, least), means = jax.lax.scan(body, start, jnp.arange(2 + node.k % 4))
    return [h + 0.1 * mean + 0.3 * least, b + means.var()]


def _turned_stack(env: Any, node: Any, values: Any) -> list[Any]:
    """A scan over weights that are stacked and then transposed."""
    weights = jnp.stack([env.weight(node.k + n) * (1 - 0.1 * n) for n in range(2 + node.k % 3)])
    turned = weights.transpose(0, 2, 1)

    def body(h: Any, w: Any) -> tuple[Any, Any]:
        new = jnp.tanh(h @ w + values[1])
        return new, new[0]

    last, rows = jax.lax.scan(body, values[0], turned, reverse=bool(node.k % 2))
    return [last, values[1] + rows.mean(0)]


def _fft(env: Any, node: Any, values: Any) -> list[Any]:
    """A convolution by FFT."""
    a, b = (v.astype(jnp.promote_types(v.dtype, jnp.float32)) for v in values[:2])
    axis = node.k % 2
    if node.k % 4 < 2:
        both = jnp.fft.rfft(a, axis=axis) * jnp.conj(jnp.fft.rfft(b, axis=axis))
        return [jnp.fft.irfft(both, n=a.shape[axis], axis=axis) / a.shape[axis]]
    found = jnp.fft.fft2(a)
    return [jnp.abs(found) / a.size**0.5 * 0.5, jnp.fft.ifft2(found * 0.5).real + b]


def _sinkhorn(env: Any, node: Any, values: Any) -> list[Any]:
    """Scales rows and columns alternately so that each sums to one (Sinkhorn's iteration)."""
    logits = values[0]

    def body(h: Any, _: Any) -> tuple[Any, Any]:
        h = h - jax.nn.logsumexp(h, 1, keepdims=True)
        return h - jax.nn.logsumexp(h, 0, keepdims=True), None

    found, _ = jax.lax.scan(body, logits, None, length=2 + node.k % 4)
    return [jnp.exp(found) * values[1]]


def _descent(env: Any, node: Any, values: Any) -> list[Any]:
    """A few steps of an optimizer in a scan, which a gradient goes through."""
    a, b = values[:2]
    w = env.weight(node.k)

    def loss(h: Any) -> Any:
        wide = jnp.promote_types(h.dtype, jnp.float32)
        return ((jnp.tanh(h @ w) - b).astype(wide) ** 2).mean() + 0.1 * h.astype(wide).var()

    def body(carry: Any, _: Any) -> tuple[Any, Any]:
        h, m = carry
        value, g = jax.value_and_grad(loss)(h)
        m = (0.9 * m + g * h.size).astype(a.dtype)
        return ((h - 0.05 * m).astype(a.dtype), m), value

    (h, m), losses = jax.lax.scan(body, (a, jnp.zeros_like(a)), None, length=2 + node.k % 3)
    return [h, 0.1 * m + losses.mean()]


NESTED: dict[str, Operator] = {
    "jit": _jit,
    "count": _count,
    "cond_turns": _branch_turns,
    "switch_turns": _branch_turns,
    "scalar_carry": _scalar_carry,
    "turned_stack": _turned_stack,
    "fft": _fft,
    "sinkhorn": _sinkhorn,
    "descent": _descent,
}
"""Name -> operator."""
