"""A fixed point as a loss: optimal transport (Sinkhorn's iteration), or an implicit layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import FixedPoint

FIXED_FORMS = ("scan", "chunks", "rewound", "unrolled", "implicit", "last", "fori")
"""How a point is found and differentiated: through a scan; a scan of scans that now and then
measures an error; a while loop whose own derivative runs it backwards; unrolled; a while loop with
the derivative of the equation; a while loop without one and one step more; a loop with a count."""
FIXED_MAPS = ("log", "kernel", "layer")
"""What is iterated: potentials, scalings of a kernel, a layer."""

_SMOOTH = 0.3
_CHUNK = 2


def fixed_parameters(body: FixedPoint, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained: points, and a matrix."""
    return {
        "x": random.standard_normal((body.rows, body.size)),
        "w": 0.4 * random.standard_normal((body.size, body.size)) / body.size**0.5,
    }


def fixed_batch(body: FixedPoint, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {"y": random.standard_normal((body.cols, body.size))}


def fixed_loss(body: FixedPoint, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    wide = jnp.promote_types(params["x"].dtype, jnp.float32)
    x, w, y = (a.astype(wide) for a in (params["x"], params["w"], batch["y"]))
    if body.map == "layer":
        given: Any = (w, y)
        z = _fixed(body, _layer, given, (jnp.zeros_like(y),))[0]
        return (z * z).mean() + 0.1 * (x * x).mean(), {"last": z, "middle": z @ w}
    moved = x @ w + x
    cost = (moved**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * moved @ y.T
    cost = cost / body.size
    if body.map == "kernel":
        kernel = jnp.exp(-cost / _SMOOTH)
        start = (jnp.ones(body.rows, wide), jnp.ones(body.cols, wide))
        u, v = _fixed(body, _scalings, kernel, start)
        plan = u[:, None] * kernel * v[None]
        return (plan * cost).sum(), {"last": plan, "middle": u}
    start = (jnp.zeros(body.rows, wide), jnp.zeros(body.cols, wide))
    f, g = _fixed(body, _potentials, cost, start)
    plan = jnp.exp((f[:, None] + g[None] - cost) / _SMOOTH)
    return f.mean() + g.mean() + 0.01 * plan.var(), {"last": plan, "middle": f}


def _potentials(cost: Any, state: Any) -> Any:
    f, g = state
    rows, cols = cost.shape
    moved = -jax.nn.logsumexp((g[None] - cost) / _SMOOTH, 1) - jnp.log(float(rows))
    f = 0.5 * (f + _SMOOTH * moved)
    g = -_SMOOTH * (jax.nn.logsumexp((f[:, None] - cost) / _SMOOTH, 0) + jnp.log(float(cols)))
    return f, g


def _scalings(kernel: Any, state: Any) -> Any:
    _, v = state
    rows, cols = kernel.shape
    u = 1 / (rows * (kernel @ v) + 1e-6)
    return u, 1 / (cols * (kernel.T @ u) + 1e-6)


def _layer(given: Any, state: Any) -> Any:
    w, y = given
    return (jnp.tanh(state[0] @ w + y),)


_Map = Callable[[Any, Any], Any]


def _fixed(body: FixedPoint, step: _Map, given: Any, start: Any) -> Any:
    """The state after the iterations: `step` makes the next one of what is given and a state."""
    if body.jits:
        step = jax.jit(step)
    if body.form == "unrolled":
        for _ in range(body.steps):
            start = step(given, start)
        return start
    if body.form == "fori":
        return jax.lax.fori_loop(0, body.steps, lambda _, s: step(given, s), start)
    if body.form == "chunks":
        return _chunks(body, step, given, start)
    if body.form == "rewound":
        return _rewound(body, step)(given, start)
    if body.form == "implicit":
        return _implicit(body, step)(given, start)
    if body.form == "last":
        found, _ = _until(body, step, jax.lax.stop_gradient(given), start)
        return step(given, jax.lax.stop_gradient(found))
    return jax.lax.scan(lambda s, _: (step(given, s), None), start, None, length=body.steps)[0]


def _error(old: Any, new: Any) -> Any:
    return jnp.abs(new[0] - old[0]).mean() + jnp.abs(new[-1] - old[-1]).max()


def _until(body: FixedPoint, step: _Map, given: Any, start: Any) -> tuple[Any, Any]:
    """By a while loop, and how many iterations it took."""

    def more(carry: Any) -> Any:
        number, _, error = carry
        return (number < body.steps) & (error > 1e-3)

    def turn(carry: Any) -> Any:
        number, state, _ = carry
        new = step(given, state)
        return number + 1, new, _error(state, new)

    error = jnp.full((), 1.0, start[0].dtype)
    number, state, _ = jax.lax.while_loop(more, turn, (jnp.int32(0), start, error))
    return state, number


def _chunks(body: FixedPoint, step: _Map, given: Any, start: Any) -> Any:
    """A scan of scans; the error is found in the last iteration of each, and kept."""
    turns = max(body.steps // _CHUNK, 1)
    flags = jnp.arange(_CHUNK) == _CHUNK - 1

    def one(carry: Any, measure: Any) -> Any:
        number, state, errors = carry
        new = step(given, state)
        error = jax.lax.cond(
            measure, lambda: _error(state, new), lambda: jnp.full((), jnp.inf, errors.dtype)
        )
        kept = jnp.where(measure, error, errors[number // _CHUNK])
        new = jax.tree.map(lambda n, o: jnp.where(errors.min() < 1e-3, o, n), new, state)
        return (number + 1, new, errors.at[number // _CHUNK].set(kept)), None

    def chunk(carry: Any, _: Any) -> Any:
        return jax.lax.scan(one, carry, flags)[0], None

    errors = jnp.ones(turns, start[0].dtype)
    carry, _ = jax.lax.scan(chunk, (jnp.int32(0), start, errors), None, length=turns)
    return carry[1]


def _rewound(body: FixedPoint, step: _Map) -> Any:
    """A while loop that keeps its states; its derivative is a while loop over them in reverse."""

    @jax.custom_vjp
    def find(given: Any, start: Any) -> Any:
        return _until(body, step, given, start)[0]

    def forward(given: Any, start: Any) -> tuple[Any, Any]:
        slots = jax.tree.map(lambda s: jnp.zeros((body.steps, *s.shape), s.dtype), start)

        def turn(carry: Any) -> Any:
            number, state, slots, _ = carry
            slots = jax.tree.map(
                lambda all_, s: jax.lax.dynamic_update_index_in_dim(all_, s, number, 0),
                slots,
                state,
            )
            new = step(given, state)
            return number + 1, new, slots, _error(state, new)

        def more(carry: Any) -> Any:
            return (carry[0] < body.steps) & (carry[3] > 1e-3)

        error = jnp.full((), 1.0, start[0].dtype)
        number, state, slots, _ = jax.lax.while_loop(
            more, turn, (jnp.int32(0), start, slots, error)
        )
        return state, (given, slots, number)

    def backward(kept: Any, g: Any) -> Any:
        given, slots, number = kept

        def turn(carry: Any) -> Any:
            number, g, total = carry
            state = jax.tree.map(lambda all_: all_[number - 1], slots)
            _, pull = jax.vjp(step, given, state)
            more, g = pull(g)
            return number - 1, g, jax.tree.map(jnp.add, total, more)

        zeros = jax.tree.map(jnp.zeros_like, given)
        _, g, total = jax.lax.while_loop(lambda carry: carry[0] > 0, turn, (number, g, zeros))
        return total, g

    find.defvjp(forward, backward)
    return find


def _implicit(body: FixedPoint, step: _Map) -> Any:
    """The derivative solves the linear equation that the fixed point's own one becomes."""

    @jax.custom_vjp
    def find(given: Any, start: Any) -> Any:
        return _until(body, step, given, start)[0]

    def forward(given: Any, start: Any) -> tuple[Any, Any]:
        found = find(given, start)
        return found, (given, found)

    def backward(kept: Any, g: Any) -> Any:
        given, found = kept
        _, pull = jax.vjp(lambda s: step(given, s), found)

        def turn(_: Any, u: Any) -> Any:
            return jax.tree.map(lambda a, b: a + 0.5 * b, g, pull(u)[0])

        u = jax.lax.fori_loop(0, body.steps, turn, g)
        _, pull_given = jax.vjp(lambda one: step(one, found), given)
        return pull_given(u)[0], jax.tree.map(jnp.zeros_like, found)

    find.defvjp(forward, backward)
    return find
