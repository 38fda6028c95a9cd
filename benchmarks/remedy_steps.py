"""Small steps: 28 that recomputation, donation or pieces help, and 7 that none of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Step(NamedTuple):
    """A step to be jitted.

    Attributes:
      name: for reports. function: to be jitted. shapes: of its arguments, pytrees; all float32.
      donated: numbers of the arguments that it donates. helped: whether a remedy is expected.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    helped: bool = True

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The shapes, as `jax.jit` lowers them."""
        return jax.tree.map(
            lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
            self.shapes,
            is_leaf=lambda x: isinstance(x, tuple) and all(isinstance(n, int) for n in x),
        )


def _descent(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient descent step on the mean square of `apply(w, x)`."""

    def step(w: Any, x: Any) -> Any:
        grads = jax.grad(lambda w: jnp.mean(apply(w, x) ** 2))(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)

    return step


def _over_layers(layer: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """`layer(h, w)` scanned over the first axis of the weights."""
    return _descent(lambda w, x: jax.lax.scan(lambda h, w: (layer(h, w), None), x, w)[0])


def _one_by_one(layer: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """As `_over_layers`, with the loop unrolled."""

    def apply(w: Any, x: Any) -> Any:
        for k in range(jax.tree.leaves(w)[0].shape[0]):
            x = layer(x, jax.tree.map(lambda leaf, k=k: leaf[k], w))
        return x

    return _descent(apply)


def _over_time(cell: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """`cell(w, h, x)` scanned over the inputs."""

    def apply(w: Any, inputs: Any) -> Any:
        return jax.lax.scan(lambda h, x: (cell(w, h, x), None), jnp.zeros_like(inputs[0]), inputs)[
            0
        ]

    return _descent(apply)


def _normed(h: Any) -> Any:
    return (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-6)


def _tanh(h: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(h @ w) @ w.T) + h


def _gelu(h: Any, w: Any) -> Any:
    return h + jax.nn.gelu(_normed(h) @ w)


def _gelu_twice(h: Any, w: Any) -> Any:
    return h + jax.nn.gelu(jax.nn.gelu(h @ w) @ w.T)


def _normed_tanh(h: Any, w: Any) -> Any:
    return h + jnp.tanh(_normed(h) @ w)


def _gated(h: Any, w: Any) -> Any:
    return h + jax.nn.silu(h @ w[0]) * jnp.tanh(h @ w[1])


def _softplus(h: Any, w: Any) -> Any:
    return h + jnp.sin(jax.nn.softplus(h @ w)) * jnp.cos(h)


def _attention(h: Any, w: Any) -> Any:
    q, k, v = (jnp.einsum("btd,de->bte", _normed(h), w[n]) for n in range(3))
    scores = jnp.einsum("bte,bse->bts", q, k) / 8.0
    return h + jnp.einsum("bts,bse->bte", jax.nn.softmax(scores), v)


def _convolution(h: Any, w: Any) -> Any:
    found = jax.lax.conv_general_dilated(
        h, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return h + jnp.tanh(found)


def _elman(w: Any, h: Any, x: Any) -> Any:
    return jnp.tanh(h @ w + x)


def _gru(w: Any, h: Any, x: Any) -> Any:
    gate = jax.nn.sigmoid(h @ w[0] + x)
    return gate * h + (1 - gate) * jnp.tanh(h @ w[1] + x)


def _leaky(w: Any, h: Any, x: Any) -> Any:
    return 0.9 * h + 0.1 * jax.nn.relu((h + x) @ w)


def _runge_kutta(w: Any, x: Any) -> Any:
    def field(y: Any) -> Any:
        return jnp.tanh(y @ w)

    def advance(y: Any, _: Any) -> Any:
        first = field(y)
        second = field(y + 0.05 * first)
        third = field(y + 0.05 * second)
        return y + (first + 2 * second + 2 * third + field(y + 0.1 * third)) / 60, None

    return jax.lax.scan(advance, x, None, length=32)[0]


def _twice(w: Any, x: Any) -> Any:
    def outer(h: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, w: (_tanh(h, w), None), h, w)[0], None

    return jax.lax.scan(outer, x, w)[0]


def _chain(w: Any, x: Any) -> Any:
    for k in range(12):
        x = jnp.sin(x) * jnp.cos(x + k) + jnp.tanh(x * w)
    return x @ jnp.ones((x.shape[-1], 1))


def _momentum(w: Any, m: Any, x: Any) -> Any:
    m = 0.9 * m + jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * m, m


def _adam(state: Any, x: Any) -> Any:
    w, mu, nu = state
    g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    mu, nu = 0.9 * mu + 0.1 * g, 0.99 * nu + 0.01 * g * g
    return w - 0.1 * mu / (jnp.sqrt(nu) + 1e-8), mu, nu


def _cached(cache: Any, key: Any) -> Any:
    cache = jax.lax.dynamic_update_slice(cache, key[:, None], (0, 7, 0))
    return cache, jnp.einsum("btd,bd->bt", cache, key)


def _particles(place: Any, speed: Any) -> Any:
    speed = speed - 0.01 * place
    return place + 0.01 * speed, speed


def _averaged(mean: Any, w: Any) -> Any:
    return jax.tree.map(lambda m, w: 0.99 * m + 0.01 * w, mean, w)


def _counted(counts: Any, x: Any) -> Any:
    return counts.at[jnp.argsort(x)].add(1.0)


def _replayed(buffer: Any, rows: Any) -> Any:
    buffer = jax.lax.dynamic_update_slice(buffer, rows, (32, 0))
    return buffer, buffer[:64].mean()


def _filtered(image: Any) -> Any:
    return jnp.clip(1.2 * image - 0.1, 0.0, 1.0)


def _forward(w: Any, x: Any) -> Any:
    return (x @ w).sum(0)


def _looked_up(table: Any, x: Any) -> Any:
    return table[jnp.argsort(x)[:8]].sum(0)


def _means(x: Any) -> Any:
    return x.mean(0), x.var(0)


_SQUARE, _LAYERS, _WIDE = (64, 64), (16, 64, 64), (2048, 64)
_STATE = (512, 512)

STEPS = (
    Step("scan, tanh", _over_layers(_tanh), (_LAYERS, _WIDE), (0,)),
    Step("scan, gelu and norm", _over_layers(_gelu), (_LAYERS, _WIDE), (0,)),
    Step("scan, gated", _over_layers(_gated), ((16, 2, 64, 64), _WIDE), (0,)),
    Step("scan, softplus", _over_layers(_softplus), (_LAYERS, _WIDE), (0,)),
    Step("scan, attention", _over_layers(_attention), ((8, 3, 64, 64), (4, 128, 64)), (0,)),
    Step("scan, gelu twice", _over_layers(_gelu_twice), (_LAYERS, _WIDE), (0,)),
    Step("scan, norm and tanh", _over_layers(_normed_tanh), (_LAYERS, _WIDE), (0,)),
    Step("recurrent, tanh", _over_time(_elman), (_SQUARE, (64, 256, 64)), (0,)),
    Step("recurrent, gated", _over_time(_gru), ((2, 64, 64), (64, 256, 64)), (0,)),
    Step("recurrent, leaky", _over_time(_leaky), (_SQUARE, (64, 256, 64)), (0,)),
    Step("Runge-Kutta", _descent(_runge_kutta), (_SQUARE, (1024, 64)), (0,)),
    Step("12 layers, tanh", _one_by_one(_tanh), ((12, 64, 64), _WIDE), (0,)),
    Step("12 layers, gelu and norm", _one_by_one(_gelu), ((12, 64, 64), _WIDE), (0,)),
    Step("12 layers, gated", _one_by_one(_gated), ((12, 2, 64, 64), _WIDE), (0,)),
    Step("12 layers, norm and tanh", _one_by_one(_normed_tanh), ((12, 64, 64), _WIDE), (0,)),
    Step("4 layers, attention", _one_by_one(_attention), ((4, 3, 64, 64), (4, 128, 64)), (0,)),
    Step("elementwise chain", _descent(_chain), ((64,), (4096, 64)), (0,)),
    Step("momentum, not donated", _momentum, (_STATE, _STATE, (8, 512))),
    Step("histogram, not donated", _counted, ((65536,), (1024,))),
    Step("replay buffer, not donated", _replayed, ((4096, 64), (16, 64))),
    Step("adam, not donated", _adam, ((_STATE, _STATE, _STATE), (8, 512))),
    Step("a cache of keys, not donated", _cached, ((8, 256, 64), (8, 64))),
    Step("particles, not donated", _particles, ((65536, 3), (65536, 3))),
    Step("running mean, not donated", _averaged, (_STATE, _STATE)),
    Step("image filter, not donated", _filtered, ((8, 128, 128, 3),)),
    Step("momentum", _momentum, (_STATE, _STATE, (8, 512)), (0, 1), helped=False),
    Step("adam", _adam, ((_STATE, _STATE, _STATE), (8, 512)), (0,), helped=False),
    Step("a product", _forward, (_STATE, (64, 512)), helped=False),
    Step("rows looked up", _looked_up, ((8192, 64), (8192,)), helped=False),
    Step("means", _means, ((4096, 128),), helped=False),
    Step(
        "descent, not donated",
        _descent(lambda w, x: jnp.tanh(x @ w)),
        (_STATE, (8, 512)),
        helped=False,
    ),
    Step("momentum, half donated", _momentum, (_STATE, _STATE, (8, 512)), (0,), helped=False),
    Step(
        "scan, convolution",
        _over_layers(_convolution),
        ((8, 3, 3, 8, 8), (8, 32, 32, 8)),
        (0,),
    ),
    Step("scan of scans", _descent(_twice), ((4, 4, 64, 64), _WIDE), (0,)),
    Step("12 layers, softplus", _one_by_one(_softplus), ((12, 64, 64), _WIDE), (0,)),
)
"""By name; with the arguments that their authors donated."""
