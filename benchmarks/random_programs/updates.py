"""Steps that change a state of equal arrays in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.spec import Update, Updates

UPDATES = (
    "set", "set_rows", "add", "scatter", "swap", "decay", "copy", "read", "shift", "write", "scan",
    "stack",
)  # fmt: skip
"""What an update may do."""


def updates_parameters(body: Updates, random: np.random.Generator) -> dict[str, Any]:
    """The state."""
    shape = (body.rows, body.cols)
    found = {f"array{k}": random.standard_normal(shape) for k in range(max(body.arrays, 1))}
    if any(update.op == "stack" for update in body.updates):
        found["cache"] = random.standard_normal((4, *shape))
    return found


def updates_batch(body: Updates, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {
        "x": random.standard_normal((body.rows, body.cols)),
        "at": random.integers(0, body.rows, (8,)).astype(np.int32),
    }


def updates_next(body: Updates, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """The next state, and values for additional results."""
    names = [
        *(name for name in params if name != "cache"),
        *(["cache"] if "cache" in params else []),
    ]
    arrays = [params[name] for name in names]
    x, at = batch["x"].astype(arrays[0].dtype), batch["at"]

    def once(number: Any, state: Any) -> Any:
        arrays, total = list(state[0]), state[1]
        for update in body.updates:
            total = total + _apply(update, arrays, x, (at + number) % body.rows)
        return tuple(arrays), total

    state = (tuple(arrays), jnp.float32(0))
    state = jax.lax.fori_loop(0, body.loop, once, state) if body.loop else once(0, state)
    last = list(state[0])
    return dict(zip(names, last, strict=True)), {"last": state[1], "middle": last[0] - x}


def _apply(update: Update, arrays: list[Any], x: Any, at: Any) -> Any:
    """Changes `arrays`, of which the last one may be a cache of layers; returns what was read."""
    count = sum(array.ndim == 2 for array in arrays)
    to, other = update.to % count, update.other % count
    a, b, k = arrays[to], arrays[other], update.k % 8
    if update.op == "set":
        row = jnp.tanh(b[k % b.shape[0]])[None]
        arrays[to] = jax.lax.dynamic_update_slice(a, row, (at[k], jnp.int32(0)))
    elif update.op == "set_rows":
        arrays[to] = a.at[at].set(0.5 * b[:8] if b.shape[0] >= 8 else 0.5)
    elif update.op == "add":
        arrays[to] = 0.7 * a + 0.3 * b
    elif update.op == "scatter":
        arrays[to] = a.at[at, k % a.shape[1]].add(0.1)
    elif update.op == "swap":
        arrays[to], arrays[other] = b, a
    elif update.op == "decay":
        arrays[to] = a * 0.95 + 0.05 * x
    elif update.op == "copy":
        arrays[to] = b
    elif update.op == "shift":
        arrays[to] = jnp.roll(a, 1 + k, 0)
    elif update.op == "write":
        arrays[to] = jnp.tanh(x + b)
    elif update.op == "scan":
        return _scanned(arrays, to, other, x[0], k)
    elif update.op == "stack":
        arrays[-1], total = _stacked(arrays[-1], b[k % b.shape[0]], at, k)
        return total
    else:
        return (a * b).astype(jnp.float32).mean()
    return jnp.float32(0)


def _stacked(cache: Any, h: Any, at: Any, k: int) -> tuple[Any, Any]:
    """A cache of which each layer takes a slice, writes rows into it and reads it; stacked again.

    By the bits of `k`: layers along another axis, two rows, and other layers' old rows are read.
    """
    axis, new = k & 1, []
    turned = cache.swapaxes(0, axis)
    slices = [jax.lax.index_in_dim(turned, n, axis, keepdims=False) for n in range(len(cache))]
    for n, one in enumerate(slices):
        rows = jnp.stack([h, h[::-1]]) if k & 2 else h[None]
        one = jax.lax.dynamic_update_slice(one, rows.astype(one.dtype), (at[n], jnp.int32(0)))
        h = jnp.tanh(h + one.max(0) * (1 if k & 4 else slices[n - 1][n]))
        new.append(one)
    return jnp.stack(new, axis).swapaxes(0, axis), h.astype(jnp.float32).sum()


def _scanned(arrays: list[Any], to: int, other: int, x: Any, k: int) -> Any:
    """A scan that takes one or two arrays row by row, and gives them anew; as it does a cache.

    By the bits of `k`: in reverse; rows follow from those read, or only what is handed on does; a
    third one, whose rows are only read, takes part.
    """

    def row(h: Any, rows: Any) -> Any:
        mine, theirs, read = rows
        new = mine.at[k % mine.shape[0]].set(h[0]) if k & 2 else 0.5 * h - mine
        return jnp.maximum(h, theirs) - 0.1 * read, (new, theirs.at[0].set(h[1]))

    third = arrays[0] if k & 4 else jnp.zeros_like(arrays[to])
    rows = arrays[to], arrays[other], third
    last, (a, b) = jax.lax.scan(row, x, rows, reverse=bool(k & 1))
    if to != other:
        arrays[other] = b
    arrays[to] = a
    return last.astype(jnp.float32).sum()
