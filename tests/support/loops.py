"""Small steps with a loop forward and a loop backward, for the tests of what loops do without."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.drawn import normal

LAYERS = 5


def _normalised(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)


def _gated(h, w):
    gate, up = jnp.split(_normalised(h) @ w["a"], 2, axis=-1)
    return h + (jax.nn.silu(gate) * up) @ w["b"], None


def _attention(h, w):
    q, k, v = jnp.split(_normalised(h) @ w["a"], 3, axis=-1)
    scores = jax.nn.softmax(q @ k.T / np.sqrt(q.shape[-1]).astype(np.float32))
    return h + jax.nn.gelu((scores @ v) @ w["b"]), None


def _half(h, w):
    """In bfloat16; what is stacked of the carry is in float32."""
    wide = h.astype(jnp.float32)
    norm = (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5)).astype(
        h.dtype
    )
    gate, up = jnp.split(norm @ w["a"], 2, axis=-1)
    return h + (jax.nn.silu(gate) * up) @ w["b"], None


def _cast(prevent_cse):
    """In bfloat16; each turn of both loops converts its weights, which are in float32."""
    policy = jax.checkpoint_policies.dots_saveable

    @functools.partial(jax.checkpoint, policy=policy, prevent_cse=prevent_cse)
    def layer(h, w):
        return _half(h, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), w))

    return layer


def _plain(h, w):
    return jnp.tanh(h @ w["b"]) + jnp.exp(-h * h) * h / (1 + jnp.abs(h)), None


def _doubled(h, w):
    """What two consumers stack is one value."""
    y = h @ w["b"]
    return jnp.sin(y) * jnp.cos(y) + jnp.sin(y) * h, None


def _cell(c, x, w):
    hidden, cell = c
    i, f, g, o = jnp.split(jnp.concatenate([x, hidden], -1) @ w["a"], 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None


BODIES = {"gated": (_gated, 2), "attention": (_attention, 3), "plain": (_plain, 1)}
BODIES |= {
    "doubled": (_doubled, 1),
    "half": (_half, 2),
}
BODIES |= {"cast": (_cast(False), 2), "cast_behind_barriers": (_cast(True), 2)}


def layers(name, rows=31, width=45, hidden=45, reverse=False, count=LAYERS, unroll=1):
    """(step, arguments) of a net whose layers are one scanned body; sizes are odd on purpose."""
    body, parts = BODIES[name]
    inner = width if name == "plain" or name == "doubled" else hidden
    params = {
        "a": normal(count, width, parts * inner, seed=1, scale=width**-0.5),
        "b": normal(count, inner, width, seed=2, scale=width**-0.5),
    }
    x = normal(rows, width)
    if name == "half":
        params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
    if "cast" in name:
        x = x.astype(jnp.bfloat16)

    def loss(params, x):
        h, _ = jax.lax.scan(body, x, params, reverse=reverse, unroll=unroll)
        return jnp.mean(h * h)

    return functools.partial(_step, loss), (params, x)


def recurrent(length=12, rows=7, width=19, unroll=1):
    """(step, arguments) of an LSTM over time."""
    params = {"a": normal(2 * width, 4 * width, seed=1, scale=width**-0.5)}
    x = normal(length, rows, width)

    def loss(params, x):
        start = (jnp.zeros((rows, width)), jnp.zeros((rows, width)))
        (h, _), _ = jax.lax.scan(lambda c, x: _cell(c, x, params), start, x, unroll=unroll)
        return jnp.mean(h * h)

    return functools.partial(_step, loss), (params, x)


def moved(rows=24, width=40):
    """(step, arguments) of two loops; between them the stack of the first one is transposed."""
    params = {"b": normal(LAYERS, width, width, seed=1, scale=width**-0.5)}
    x = normal(rows, width)

    def step(params, x):
        def write(h, w):
            h = jnp.tanh(h @ w)
            return h, (h, jnp.sin(h) * h)

        def read(c, stacked):
            h, other = stacked
            return jnp.cos(c @ other @ h), jnp.sum(other, axis=0)

        h, (kept, other) = jax.lax.scan(write, x, params["b"])
        stacks = kept, other.transpose(0, 2, 1)
        return h, *jax.lax.scan(read, jnp.ones((width, width)), stacks)

    return step, (params, x)


def inside(rows=24, width=40):
    """(step, arguments) of two loops; the slices between them lie along the second dimension."""
    params = {"b": normal(LAYERS, width, width, seed=1, scale=width**-0.5)}
    x = normal(rows, width)

    def step(params, x):
        def put(stack, value, i):
            put = jax.lax.dynamic_update_index_in_dim
            return put(stack, value, i, 1, allow_negative_indices=False)

        def write(i, state):
            h, kept, other = state
            h = jnp.tanh(h @ params["b"][i])
            return h, put(kept, h, i), put(other, jnp.sin(h) * h, i)

        def read(j, c):
            take = functools.partial(jax.lax.dynamic_index_in_dim, allow_negative_indices=False)
            h, o = (take(s, LAYERS - 1 - j, 1, False) for s in stacks)
            return jnp.cos(c @ o.T @ h)

        empty = jnp.zeros((rows, LAYERS, width))
        h, *stacks = jax.lax.fori_loop(0, LAYERS, write, (x, empty, empty))
        return h, jax.lax.fori_loop(0, LAYERS, read, jnp.ones((rows, width)))

    return step, (params, x)


def _step(loss, params, x):
    value, gradient = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


STEPS = {
    "gated": functools.partial(layers, "gated"),
    "gated_reverse": functools.partial(layers, "gated", reverse=True),
    "attention": functools.partial(layers, "attention"),
    "plain": functools.partial(layers, "plain", rows=33, width=64),
    "doubled": functools.partial(layers, "doubled"),
    "lstm": recurrent,
    "moved": moved,
    "inside": inside,
    "half": functools.partial(layers, "half"),
    "cast": functools.partial(layers, "cast"),
    "cast_behind_barriers": functools.partial(layers, "cast_behind_barriers"),
    "gated_twice": functools.partial(layers, "gated", count=4, unroll=2, reverse=True),
    "plain_thrice": functools.partial(layers, "plain", rows=33, width=64, count=9, unroll=3),
    "lstm_fourfold": functools.partial(recurrent, unroll=4),
}
