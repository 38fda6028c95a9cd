"""Recurrent nets as a loss, their hidden states read from many places."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import Recurrent

_GATES = {"lstm": 4, "gru": 3, "plain": 1}


def recurrent_parameters(body: Recurrent, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained."""
    wide = _GATES[body.cell] * body.width
    read = 2 * body.width if body.form == "both" else body.width
    return {
        "x": random.standard_normal((body.inputs, wide)) / body.inputs**0.5,
        "h": random.standard_normal((body.width, wide)) / body.width**0.5,
        **({"b": random.standard_normal((wide,)) * 0.1} if body.bias else {}),
        "v": random.standard_normal((read, body.classes)) / read**0.5,
    }


def recurrent_batch(body: Recurrent, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {
        "x": random.standard_normal((body.batch, body.steps, body.inputs)),
        "y": random.integers(0, body.classes, (body.batch,)).astype(np.int32),
    }


def recurrent_loss(body: Recurrent, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    x = batch["x"].astype(params["x"].dtype)
    hidden = _hidden(body, params, x)
    more = {"last": hidden[-1], "middle": hidden[len(hidden) // 2]}
    wide = jnp.promote_types(params["v"].dtype, jnp.float32)
    if body.loss == "means":
        scores = jnp.stack(hidden, 1).astype(params["v"].dtype) @ params["v"]
        total = scores.astype(wide).var() + (hidden[-1].astype(wide) ** 2).mean()
        return total, {**more, "scores": scores}
    total = jnp.zeros((), wide)
    for value in _read(body, hidden):
        scores = jax.nn.log_softmax(value.astype(params["v"].dtype) @ params["v"])
        scores = scores.astype(wide)
        if body.loss != "picked":
            total += (scores**2).mean()
        if body.loss != "square":
            total -= scores[jnp.arange(body.batch), batch["y"]].mean()
    return total, more


def _hidden(body: Recurrent, params: Any, x: Any) -> list[Any]:
    """The hidden state after each step."""
    if body.form == "both":
        ahead = _scanned(body, params, x, reverse=False)
        back = _scanned(body, params, x, reverse=True)
        return list(jnp.concatenate([ahead, back], -1))
    if body.form == "nested":
        return list(_nested(body, params, x))
    if body.form != "unrolled":
        return list(_scanned(body, params, x, reverse=body.form == "reverse"))
    cell = _cell(body, params)
    state, found = _start(body, x), []
    for step in range(body.steps):
        state = cell(state, x[:, step])
        found.append(state[0])
    return found


def _start(body: Recurrent, x: Any) -> tuple[Any, Any]:
    zero = jnp.zeros((body.batch, body.width), x.dtype)
    return zero, zero


def _scanned(body: Recurrent, params: Any, x: Any, reverse: bool) -> Any:
    cell = _cell(body, params)

    def step(state: Any, now: Any) -> tuple[Any, Any]:
        state = cell(state, now)
        return state, state[0]

    start, inputs = _start(body, x), x.swapaxes(0, 1)
    return jax.lax.scan(step, start, inputs, reverse=reverse, unroll=max(body.unroll, 1))[1]


def _nested(body: Recurrent, params: Any, x: Any) -> Any:
    """Each step of the outer scan runs two steps of an inner one."""
    cell = _cell(body, params)

    def inner(state: Any, now: Any) -> tuple[Any, Any]:
        return cell(state, now), now.mean()

    def outer(state: Any, now: Any) -> tuple[Any, Any]:
        state, _ = jax.lax.scan(inner, state, jnp.stack([now, jnp.tanh(now)]))
        return state, state[0]

    return jax.lax.scan(outer, _start(body, x), x.swapaxes(0, 1), unroll=max(body.unroll, 1))[1]


def _read(body: Recurrent, hidden: list[Any]) -> list[Any]:
    if body.read == "last":
        return hidden[-1:]
    if body.read == "third":
        return hidden[::3]
    if body.read == "pairs":
        half = max(len(hidden) // 2, 1)
        return [a * jnp.tanh(b) for a, b in zip(hidden, hidden[-half:], strict=False)]
    return hidden


def _cell(body: Recurrent, params: Any) -> Any:
    """(state, input) -> state; a state is the hidden state and one more."""
    cell = {"lstm": _lstm, "gru": _gru, "plain": _plain}[body.cell]

    def apply(state: Any, now: Any) -> Any:
        return cell(params, state, now)

    if body.jits:
        apply = jax.jit(apply)
    return jax.checkpoint(apply) if body.recompute else apply


def _input(params: Any, now: Any) -> Any:
    product = now @ params["x"]
    return product + params["b"] if "b" in params else product


def _lstm(params: Any, state: Any, now: Any) -> tuple[Any, Any]:
    h, c = state
    i, f, g, o = jnp.split(_input(params, now) + h @ params["h"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _gru(params: Any, state: Any, now: Any) -> tuple[Any, Any]:
    h, other = state
    xr, xz, xn = jnp.split(_input(params, now), 3, -1)
    hr, hz, hn = jnp.split(h @ params["h"], 3, -1)
    z = jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn)
    return (1 - z) * n + z * h, other


def _plain(params: Any, state: Any, now: Any) -> tuple[Any, Any]:
    h, mean = state
    new = jnp.tanh(_input(params, now) + h @ params["h"])
    return new, 0.9 * mean + 0.1 * new
