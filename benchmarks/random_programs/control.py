"""Operators of random graphs with graphs inside: loops, branches, derivatives."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.environment import Operator

_UNROLLED = (2, 3)
"""Of a scan's numbers `k` those with two steps in one turn: of four, and of five."""


def _scan(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]

    def body(carry: Any, number: Any) -> tuple[Any, Any]:
        moved = carry * (1 - 0.01 * number).astype(a.dtype)
        new = env.run(node.inner, [moved, b])
        return (0.5 * (new + carry)).astype(a.dtype), new.mean(0)

    last, rows = jax.lax.scan(
        body,
        a,
        jnp.arange(2 + node.k % 6),
        reverse=node.op == "scan_reverse",
        unroll=2 if node.k in _UNROLLED else 1,
    )
    return [last, a + rows.mean(0)]


def _scan_rows(env: Any, node: Any, values: Any) -> list[Any]:
    """Over the rows; the carry is one row, the results are stacked."""
    a, b, c = values[:3]

    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        new = jnp.tanh(carry @ env.weight(node.k) + row)
        return new, new * carry

    last, stacked = jax.lax.scan(body, c[0], a, reverse=bool(node.k % 2))
    return [stacked, b + last]


def _slots(env: Any, node: Any, values: Any) -> list[Any]:
    """One loop writes slots of two arrays, along any dimension of them; another one reads them."""
    a, b = values[:2]
    axis, turns, negative = node.k % 3, 3 + node.k % 4, node.k > 3
    empty = jnp.zeros((*a.shape[:axis], turns, *a.shape[axis:]), a.dtype)

    def put(slots: Any, value: Any, number: Any) -> Any:
        where = _said(node.k, number, turns)
        return jax.lax.dynamic_update_index_in_dim(
            slots, value, where, axis, allow_negative_indices=negative
        )

    def write(number: Any, state: Any) -> Any:
        carry, first, second = state
        new = jnp.tanh(env.run(node.inner, [carry, b])).astype(a.dtype)
        return new, put(first, carry, number), put(second, jnp.sin(carry) * new, number)

    def read(number: Any, carry: Any) -> Any:
        where = turns - 1 - number if node.k < 4 else _said(node.k + 2, number, turns)
        first, second = (
            jax.lax.dynamic_index_in_dim(slots, where, axis, False, allow_negative_indices=negative)
            for slots in (kept, made)
        )
        return 0.5 * jnp.cos(carry) * second + 0.1 * first

    last, kept, made = jax.lax.fori_loop(0, turns, write, (a, empty, empty))
    return [jax.lax.fori_loop(0, turns, read, last)]


def _said(k: int, number: Any, turns: int) -> Any:
    """An index made from an iteration's number, in form number k; from 5 on it may be negative."""
    ways = (
        lambda: number,
        lambda: jnp.clip(number, 0, turns - 1),
        lambda: number.astype(jnp.uint8),
        lambda: (number + turns) % turns,
        lambda: jnp.minimum(number, turns - 2),
        lambda: number - turns,
        lambda: jnp.where(number < turns - 1, -1 - number, number - turns + 1),
        lambda: (number - turns).astype(jnp.int8),
    )
    return ways[k if k < 5 else 5 + (k - 5) % 3]()


_LONG = 9216
"""Elements: of arrays of so many a CPU's compiler leaves a loop."""


def _elementwise(env: Any, node: Any, values: Any) -> list[Any]:
    """A scan over what is computed element by element, which XLA:CPU puts into a call."""
    a, b, c = values[:3]
    times = max(_LONG // a.size, 1) if node.k % 2 else 1
    x, y = (jnp.concatenate([v] * times) for v in (a, b))
    rows = jnp.stack([jnp.concatenate([c * (1 + 0.1 * k)] * times) for k in range(2 + node.k)])

    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        if node.k < 2:
            return carry + x * (row + y), None
        if node.k < 4:
            return jnp.maximum(carry * jnp.tanh(row), x), None
        new = jnp.where(row > 0, jnp.sin(carry * y), carry)
        return new, new * row if node.k < 6 else None

    last, kept = jax.lax.scan(body, x, rows)
    if kept is not None:
        last, _ = jax.lax.scan(lambda d, z: (d * jnp.cos(z), None), last, kept, reverse=True)
    return [jnp.tanh(last[: len(a)])]


def _loop(env: Any, node: Any, values: Any) -> list[Any]:
    """A while loop whose number of steps depends on the data; no gradient goes through it."""
    a, b = (jax.lax.stop_gradient(value) for value in values[:2])
    inside = dataclasses.replace(env, weights=[jax.lax.stop_gradient(w) for w in env.weights])

    def more(state: Any) -> Any:
        number, value, _ = state
        return (number < 2 + node.k % 5) & (jnp.abs(value[0, 0]) < 100)

    def body(state: Any) -> Any:
        number, value, other = state
        new = inside.run(node.inner, [value, other])
        return number + 1, (0.5 * (new + other)).astype(a.dtype), value

    _, last, before = jax.lax.while_loop(more, body, (jnp.int32(0), a, b))
    return [values[2] + last, before * values[2]]


def _cond(env: Any, node: Any, values: Any) -> list[Any]:
    a, b, c = values[:3]
    return [
        jax.lax.cond(
            a.mean() > 0.1 * (node.k % 3 - 1),
            lambda: env.run(node.inner, [a, b]).astype(a.dtype),
            lambda: jnp.tanh(c) * b,
        )
    ]


def _switch(env: Any, node: Any, values: Any) -> list[Any]:
    a, b, c = values[:3]
    number = (jnp.abs(a[0, 0].astype(jnp.float32)) * 10).astype(jnp.int32) + node.k
    branches = (
        lambda: env.run(node.inner, [c, b]).astype(a.dtype),
        lambda: a,
        lambda: jnp.sin(b) * c,
        lambda: env.run(node.inner[:1], [b]).astype(a.dtype),
    )
    return [jax.lax.switch(number % 4, branches)]


def _map(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    return [jax.lax.map(lambda rows: jnp.tanh(rows[0]) * rows[1].sum(), (a, b))]


def _checkpoint(env: Any, node: Any, values: Any) -> list[Any]:
    policies = jax.checkpoint_policies
    policy = (None, policies.dots_saveable, policies.nothing_saveable)[node.k % 3]
    return [jax.checkpoint(lambda *v: env.run(node.inner, v), policy=policy)(*values[:3])]


def _custom_vjp(env: Any, node: Any, values: Any) -> list[Any]:
    @jax.custom_vjp
    def function(a: Any, b: Any) -> Any:
        return jnp.tanh(a) * b

    def forward(a: Any, b: Any) -> tuple[Any, Any]:
        t = jnp.tanh(a)
        return t * b, (t, a, b)

    def backward(kept: Any, g: Any) -> tuple[Any, Any]:
        t, a, b = kept
        return 0.5 * g * b * (1 - t * t), g * t + 0.01 * a

    function.defvjp(forward, backward)
    return [function(values[0], values[1])]


def _custom_jvp(env: Any, node: Any, values: Any) -> list[Any]:
    @jax.custom_jvp
    def function(a: Any) -> Any:
        return jnp.log1p(jnp.exp(-jnp.abs(a))) + jnp.maximum(a, 0)

    @function.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (a,), (t,) = primals, tangents
        return function(a), jax.nn.sigmoid(a) * t

    return [0.5 * function(values[0])]


def _inner_grad(env: Any, node: Any, values: Any) -> list[Any]:
    """The gradient of an inner graph, itself to be differentiated."""
    a, b = values[:2]
    found = jax.grad(lambda v: (env.run(node.inner[:3], [v, b]).astype(jnp.float32) ** 2).mean())
    return [jnp.tanh(found(a) * a.size)]


def _jvp(env: Any, node: Any, values: Any) -> list[Any]:
    a, b = values[:2]
    return list(jax.jvp(lambda v: env.run(node.inner[:3], [v]), (a,), (0.5 * b,)))


CONTROL: dict[str, Operator] = {
    "scan": _scan,
    "scan_reverse": _scan,
    "scan_rows": _scan_rows,
    "slots": _slots,
    "elementwise": _elementwise,
    "loop": _loop,
    "cond": _cond,
    "switch": _switch,
    "map": _map,
}
"""Loops and branches: name -> operator."""

DERIVATIVES: dict[str, Operator] = {
    "checkpoint": _checkpoint,
    "custom_vjp": _custom_vjp,
    "custom_jvp": _custom_jvp,
    "inner_grad": _inner_grad,
    "jvp": _jvp,
}
"""Own derivatives and derivatives within: name -> operator."""
