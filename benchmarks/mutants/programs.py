"""Small programs with features that models lack: loops, branches, in-place updates, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

SEEN: list[str] = []
"""What the host callbacks were given, in the order of their calls, which JAX does not keep."""

_DONATED = {"donate_argnums": 0}


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _see(what: Any, x: Any) -> None:
    SEEN.append(f"{what} {np.asarray(x).tobytes().hex()}")


def _descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(p: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, *batch)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value

    return step


def variances() -> Built:
    """An unrolled recurrent net whose loss sums a variance and a mean: a scalar of two products."""
    size, tokens = 32, 6

    def loss(p: Any, x: Any) -> Any:
        h, seen = jnp.zeros((size, size)), []
        for t in range(tokens):
            h = jnp.tanh(x[:, t] @ p["x"] + h @ p["h"])
            seen.append(h)
        means = [(h * (k + 1)).mean() * 0.3 + (h**2).mean() * 0.7 for k, h in enumerate(seen)]
        return (jnp.stack(seen, 1) @ p["v"]).var() + (h**2).mean() + sum(means)

    params = {"x": _f32(16, size), "h": _f32(size, size), "v": _f32(size, 16)}
    return _descent(loss), (params, _f32(size, tokens, 16)), _DONATED


def recurrent() -> Built:
    """An unrolled LSTM in plain JAX: gates split, a loss at each token."""
    size, tokens = 16, 4

    def loss(p: Any, x: Any) -> Any:
        h = c = jnp.zeros((size, size))
        total = jnp.zeros(())
        for t in range(tokens):
            i, f, g, o = jnp.split(x[:, t] @ p["x"] + h @ p["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            total += (jax.nn.log_softmax(h @ p["v"]) ** 2).mean()
        return total

    p = {"x": _f32(size, 4 * size), "h": _f32(size, 4 * size), "v": _f32(size, size)}
    return _descent(loss), (p, _f32(size, tokens, size)), _DONATED


def scanned() -> Built:
    """A scan, recomputed in the backward pass, whose outputs are stacked."""

    def loss(p: Any, x: Any) -> Any:
        def layer(c: Any, w: Any) -> Any:
            a, b = c
            a = jnp.tanh(a @ w + b)
            return (b, a), a.sum(0)

        (a, b), rows = jax.lax.scan(jax.checkpoint(layer), (x, x[::-1]), p)
        return (a * b).mean() + (rows**2).mean()

    return _descent(loss), (_f32(4, 16, 16), _f32(16, 16)), _DONATED


def cached() -> Built:
    """A decode step: a scan over layers that takes keys and values, and gives them with a row."""

    def step(caches: Any, x: Any, at: Any) -> Any:
        def layer(h: Any, kv: Any) -> Any:
            k, v = (jax.lax.dynamic_update_slice(c, h[None], (at, 0)) for c in kv)
            return jnp.maximum(h - k.max(0), v[0]), (k, v)

        return jax.lax.scan(layer, x, caches)

    cache = _f32(6, 64, 32)
    return step, ((cache, cache), _f32(32), jax.ShapeDtypeStruct((), jnp.int32)), _DONATED


def stacked() -> Built:
    """A decode step of unrolled layers: slices of a cache get rows, and are stacked again."""

    def step(cache: Any, x: Any, at: Any) -> Any:
        new = []
        for layer in range(4):
            c = jax.lax.dynamic_update_slice(cache[layer], x[None], (at + layer, 0))
            x = jnp.tanh(x + jax.nn.softmax(c @ x) @ c)
            new.append(c)
        return jnp.stack(new), x

    given = _f32(4, 1024, 64), _f32(64), jax.ShapeDtypeStruct((), jnp.int32)
    return step, given, _DONATED


def unrolled() -> Built:
    """A scan that runs two layers in each iteration."""

    def loss(p: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            y = jnp.tanh(h @ w)
            return h + y * jnp.exp(-h * h), None

        h, _ = jax.lax.scan(layer, x, p, unroll=2)
        return (h * h).mean()

    return _descent(loss), (_f32(6, 16, 16), _f32(16, 16)), _DONATED


def branched() -> Built:
    """A scan over layers whose branches run again, chosen by data and by the layer's number."""

    def loss(p: Any, x: Any) -> Any:
        def layer(h: Any, given: Any) -> Any:
            k, w = given
            deep, flat = (lambda h: jnp.tanh(jnp.sin(h @ w) @ w)), (lambda h: jnp.cos(h) * h)
            h = jax.lax.cond(h[0, 0] > 0, deep, flat, h)
            return jax.lax.switch(k % 3, (flat, jnp.tanh, lambda h: jnp.exp(-h * h)), h), None

        h, _ = jax.lax.scan(layer, x, (jnp.arange(len(p)), p))
        return (h * h).mean()

    return _descent(loss), (_f32(6, 16, 16), _f32(16, 16)), _DONATED


def overwritten() -> Built:
    """A scan that writes a row of an array in each iteration, and reads all of it."""

    def loss(p: Any, x: Any) -> Any:
        def layer(c: Any, given: Any) -> Any:
            k, w = given
            row = jnp.tanh(jnp.sin(c).sum(0) @ w)
            return jax.lax.dynamic_update_index_in_dim(c, row, (2 * k) % len(p), 0), None

        return jnp.sin(jax.lax.scan(layer, x, (jnp.arange(len(p)), p))[0]).mean()

    return _descent(loss), (_f32(5, 128, 128), _f32(5, 128, 128)), _DONATED


def looped() -> Built:
    """A while loop over several arrays of one shape, one of them updated in place."""

    def step(x: Any, w: Any) -> Any:
        def body(state: Any) -> Any:
            k, a, b, c, n = state
            a, b = jnp.sin(b @ w), a + c
            c = c.at[k].set(a[0])
            return k + 1, a, b, c, n

        def going(state: Any) -> Any:
            k, a, _, _, n = state
            return (k < n) & (a[0, 0] < 2)

        k, a, b, c, n = jax.lax.while_loop(going, body, (0, x, x.T, x * 2, 6))
        return a + x, b, c, k + n

    return step, (_f32(16, 16), _f32(16, 16)), _DONATED


def nested() -> Built:
    """A loop in a loop, with a branch."""

    def step(x: Any, w: Any) -> Any:
        def outer(c: Any, row: Any) -> Any:
            a, b = c
            a = jax.lax.fori_loop(0, 3, lambda i, s: jnp.cos(s @ w) + i, a)
            b = jax.lax.cond(row[0] > 0, lambda v: v + a, lambda v: v * row, b)
            return (b, a), a.sum(1)

        (a, b), rows = jax.lax.scan(outer, (x, x * 0.5), w)
        return a, b, rows

    return step, (_f32(16, 16), _f32(16, 16)), _DONATED


def branching() -> Built:
    """A conditional and a switch between branches that read and hand on the same arrays."""

    def step(x: Any, w: Any, k: Any) -> Any:
        y = jax.lax.cond(x[0, 0] > 0.02, lambda a: (jnp.sin(a @ w), a), lambda a: (a @ w, w), x)
        z = jax.lax.switch(k, [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b.T], *y)
        return x + y[1], z, y[0] @ z

    return step, (_f32(16, 16), _f32(16, 16), jax.ShapeDtypeStruct((), jnp.int32)), _DONATED


def dropout() -> Built:
    """Two layers with dropout from a key, momentum."""

    def step(state: Any, x: Any, seed: Any) -> Any:
        def loss(p: Any) -> Any:
            key, other = jax.random.split(jax.random.key(seed))
            y = jax.nn.gelu(x @ p["a"])
            y = jnp.where(jax.random.bernoulli(key, 0.7, y.shape), y / 0.7, 0)
            y = y @ p["b"] + jax.random.normal(other, y.shape) * 0.1
            return jnp.square(y - x).mean()

        value, g = jax.value_and_grad(loss)(state["p"])
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], g)
        return {"p": jax.tree.map(lambda p, m: p - 0.1 * m, state["p"], m), "m": m}, value

    p = {"a": _f32(16, 16), "b": _f32(16, 16)}
    state = {"p": p, "m": p}
    return step, (state, _f32(16, 16), jax.ShapeDtypeStruct((), jnp.uint32)), _DONATED


def callbacks(ordered: bool = False) -> Built:
    """A train step with host callbacks, in both directions, for which JAX may keep an order."""
    from jax.experimental import io_callback

    def ask(x: Any) -> Any:
        _see("asked", x)
        asked = sum(seen.startswith("asked") for seen in SEEN)
        return np.asarray(x) * np.float32(2) + np.float32(asked)

    def step(p: Any, x: Any) -> Any:
        def loss(p: Any) -> Any:
            y = jnp.tanh(x @ p["a"])
            jax.debug.callback(_see, "hidden", y.sum(), ordered=ordered)
            return ((y @ p["b"]) ** 2).mean()

        value, g = jax.value_and_grad(loss)(p)
        shape = jax.ShapeDtypeStruct((16,), jnp.float32)
        first = io_callback(ask, shape, x[0], ordered=ordered)
        second = io_callback(ask, shape, x[1], ordered=ordered)
        jax.debug.callback(_see, "loss", value, ordered=ordered)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), value, first, second

    return step, ({"a": _f32(16, 16), "b": _f32(16, 16)}, _f32(16, 16)), _DONATED


def ordered() -> Built:
    """The same, in the order of the program: tokens lead from each call to the next."""
    return callbacks(ordered=True)


def updates() -> Built:
    """Slices of a donated array updated in place, and read between."""

    def step(x: Any, u: Any) -> Any:
        for k in range(3):
            part = jax.lax.dynamic_slice(x, (k * 2, 0), (4, 16))
            x = jax.lax.dynamic_update_slice(x, part * 2 + u[:4] + x[4:8].sum(), (k * 3, 0))
        return x, u + x.T

    return step, (_f32(16, 16), _f32(16, 16)), _DONATED


def mixed() -> Built:
    """Sorting, scattering, gathering and integers; bfloat16 products."""

    def step(x: Any, u: Any) -> Any:
        order = jnp.argsort(u[0])
        y = x.at[order].add(u)
        z = (y.astype(jnp.bfloat16) @ u.astype(jnp.bfloat16)).astype(jnp.float32)
        mask = jnp.cumsum((z > 0).astype(jnp.int32), axis=0)
        return jnp.sort(y, axis=0), z[order], mask, x[::-1] + jnp.take(u, order, axis=1)

    return step, (_f32(16, 16), _f32(16, 16)), _DONATED
