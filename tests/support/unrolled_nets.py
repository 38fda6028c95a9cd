"""Train steps without loops that were planned wrong once: an LSTM and a Llama.

Each function returns the step, the state that it takes first and donates, and a batch.
"""

import jax
import jax.numpy as jnp
import numpy as np

HEADS = 4


def normal(generator, *shape, scale=1.0):
    return jnp.asarray((generator.randn(*shape) * scale).astype(np.float32))


def lstm(length, batch, width, vocabulary, seed=0):
    """An unrolled LSTM that scores each step's state, with SGD."""
    generator = np.random.RandomState(seed)
    params = {
        "x": normal(generator, 32, 4 * width),
        "h": normal(generator, width, 4 * width, scale=1 / 8),
        "v": normal(generator, width, vocabulary, scale=1 / 8),
    }

    def loss(p, x):
        h = c = jnp.zeros((batch, width))
        total = 0.0
        for t in range(length):
            i, f, g, o = jnp.split(x[:, t] @ p["x"] + h @ p["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            total += (jax.nn.log_softmax(h @ p["v"]) ** 2).mean()
        return total

    def step(p, x):
        value, gradient = jax.value_and_grad(loss)(p, x)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value

    return step, params, normal(generator, batch, length, 32)


def llama(layers=2, activation=jax.nn.silu, width=128, vocabulary=256, length=64, batch=8, seed=0):
    """Blocks without scan, with embedding, head and adamw."""
    generator = np.random.RandomState(seed)
    shapes = {name: (width, width) for name in "qkvo"}
    inner = width * 5 // 2
    shapes |= {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}

    def layer():
        weights = {n: normal(generator, *s, scale=s[0] ** -0.5) for n, s in shapes.items()}
        return weights | {"before": jnp.ones(width), "between": jnp.ones(width)}

    params = {
        "embed": normal(generator, vocabulary, width),
        "head": normal(generator, width, vocabulary, scale=width**-0.5),
        "norm": jnp.ones(width),
        "blocks": [layer() for _ in range(layers)],
    }

    def loss(p, tokens):
        x = p["embed"][tokens[:, :-1]]
        for weights in p["blocks"]:
            x = _block(weights, x, activation)
        scores = jax.nn.log_softmax(_rms(x, p["norm"]) @ p["head"])
        return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()

    def step(state, tokens):
        value, gradient = jax.value_and_grad(loss)(state[0], tokens)
        return _adamw(state, gradient), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    tokens = jnp.asarray(generator.randint(0, vocabulary, (batch, length + 1)), jnp.int32)
    return step, (params, zeros, zeros, jnp.float32(0)), tokens


def _rms(x, scale):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def _rotary(x):
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angles)[:, None], jnp.cos(angles)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _block(p, x, activation):
    """One block of Llama: attention and a gated MLP, each after an RMS norm."""
    heads = (*x.shape[:2], HEADS, x.shape[2] // HEADS)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    y = _rms(x, p["before"])
    q, k, v = ((y @ p[name]).reshape(heads) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", _rotary(q), _rotary(k)) / heads[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["o"]
    y = _rms(x, p["between"])
    return x + (activation(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def _adamw(state, gradient, rate=1e-3):
    p, m, v, t = state
    t = t + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)

    def move(p, m, v):
        return p - rate * (m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8) + 0.01 * p)

    return jax.tree.map(move, p, m, v), m, v, t
