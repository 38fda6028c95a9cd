"""Ten train steps over several devices, which differ in what is split and what is exchanged.

A step takes (parameters, moments, batch) and gives (parameters, moments, loss), with momentum.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
_RATE, _KEPT = 0.01, 0.9


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model: layers, their width, examples in a batch and positions in a sequence."""

    layers: int = 4
    width: int = 64
    batch: int = 32
    length: int = 32


@dataclasses.dataclass(frozen=True)
class Step:
    """A step on given devices.

    Attributes:
      function: the step. parameters: pytree of shapes, on the devices. batch: shape of the batch.
    """

    function: Callable[..., Any]
    parameters: Any
    batch: Any

    @property
    def shapes(self) -> tuple[Any, Any, Any]:
        """The step's arguments as `jax.ShapeDtypeStruct`; the first two are donated."""
        return self.parameters, self.parameters, self.batch

    def arguments(self) -> tuple[Any, Any, Any]:
        """Fresh arrays, the same every time."""
        generator = np.random.default_rng(0)

        def made(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            values = 0.1 * generator.standard_normal(leaf.shape, np.float32)
            return jax.device_put(values, leaf.sharding)

        parameters, batch = jax.tree.map(made, (self.parameters, self.batch))
        return parameters, jax.tree.map(jnp.zeros_like, parameters), batch


def _trained(loss: Callable[[Any, Any], jax.Array]) -> Callable[..., Any]:
    """Momentum on a loss."""

    def step(parameters: Any, moments: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(parameters, batch)
        moments = jax.tree.map(lambda m, g: _KEPT * m + g, moments, gradient)
        return jax.tree.map(lambda p, m: p - _RATE * m, parameters, moments), moments, value

    return step


def _block(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    h = jax.nn.gelu(x @ a)
    return x + (h * jnp.tanh(h)) @ b


def _shape(mesh: Mesh, spec: PartitionSpec, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


def _blocks(mesh: Mesh, s: Sizes, first: PartitionSpec, second: PartitionSpec) -> Any:
    shapes = (s.width, 4 * s.width), (4 * s.width, s.width)
    return [
        tuple(
            _shape(mesh, spec, *shape) for spec, shape in zip((first, second), shapes, strict=True)
        )
        for _ in range(s.layers)
    ]


def _line(devices: Sequence[Any]) -> Mesh:
    return Mesh(np.array(devices), ("d",))


def _plain_loss(parameters: Any, x: jax.Array) -> jax.Array:
    for a, b in parameters:
        x = _block(x, a, b)
    return (x**2).mean()


def _replicated(devices: Sequence[Any], s: Sizes) -> Step:
    """Data parallel: every device has all weights and a part of the batch; gradients are summed."""
    mesh = _line(devices)
    parameters = _blocks(mesh, s, P(), P())
    return Step(_trained(_plain_loss), parameters, _shape(mesh, P("d"), s.batch, s.width))


def _fully_sharded(devices: Sequence[Any], s: Sizes) -> Step:
    """FSDP: weights are split, and gathered for the time of their layer."""
    mesh = _line(devices)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        whole = NamedSharding(mesh, P())
        for a, b in parameters:
            a, b = (jax.lax.with_sharding_constraint(w, whole) for w in (a, b))
            x = jax.lax.with_sharding_constraint(_block(x, a, b), NamedSharding(mesh, P("d")))
        return (x**2).mean()

    parameters = _blocks(mesh, s, P("d"), P("d"))
    return Step(_trained(loss), parameters, _shape(mesh, P("d"), s.batch, s.width))


def _scanned(devices: Sequence[Any], s: Sizes) -> Step:
    """FSDP in a scan over layers."""
    mesh = _line(devices)

    def body(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        a, b = (jax.lax.with_sharding_constraint(v, NamedSharding(mesh, P())) for v in w)
        return jax.lax.with_sharding_constraint(_block(x, a, b), NamedSharding(mesh, P("d"))), None

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        return (jax.lax.scan(body, x, parameters)[0] ** 2).mean()

    shapes = (s.layers, s.width, 4 * s.width), (s.layers, 4 * s.width, s.width)
    parameters = tuple(_shape(mesh, P(None, "d"), *shape) for shape in shapes)
    return Step(_trained(loss), parameters, _shape(mesh, P("d"), s.batch, s.width))


def _tensor(devices: Sequence[Any], s: Sizes) -> Step:
    """Tensor parallel: columns of the first matrix, rows of the second, one sum a block."""
    mesh = _line(devices)
    parameters = _blocks(mesh, s, P(None, "d"), P("d", None))
    return Step(_trained(_plain_loss), parameters, _shape(mesh, P(), s.batch, s.width))


def _two_ways(devices: Sequence[Any], s: Sizes) -> Step:
    """Batch and weights are split over one axis of devices, matrices over the other."""
    mesh = Mesh(np.array(devices).reshape(-1, 2), ("data", "model"))
    parameters = _blocks(mesh, s, P("data", "model"), P("model", "data"))
    return Step(_trained(_plain_loss), parameters, _shape(mesh, P("data"), s.batch, s.width))


def _mapped(mesh: Mesh, loss: Callable[..., Any], weights: Any, batch: PartitionSpec) -> Any:
    """A loss of one device's parts, averaged over all."""

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(weights, batch), out_specs=P())
    def whole(parameters: Any, x: jax.Array) -> jax.Array:
        return jax.lax.pmean(loss(parameters, x), "d")

    return whole


def _shard_mapped(devices: Sequence[Any], s: Sizes) -> Step:
    """Data parallel by shard_map."""
    mesh = _line(devices)
    parameters = _blocks(mesh, s, P(), P())
    loss = _mapped(mesh, _plain_loss, P(), P("d"))
    return Step(_trained(loss), parameters, _shape(mesh, P("d"), s.batch, s.width))


def _pipeline(devices: Sequence[Any], s: Sizes) -> Step:
    """Pipeline parallel: a layer a device; microbatches go round by ppermute."""
    mesh, count = _line(devices), len(devices)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        a, b = (w[0] for w in parameters)
        stage = jax.lax.axis_index("d")
        state, parts = jnp.zeros_like(x[0]), x.shape[0]
        out = []
        for k in range(parts + count - 1):
            state = jnp.where(stage == 0, x[min(k, parts - 1)], state)
            state = _block(state, a, b)
            out.append(jnp.where(stage == count - 1, (state**2).mean(), 0.0))
            state = jax.lax.ppermute(state, "d", [(i, (i + 1) % count) for i in range(count)])
        return jnp.stack(out[count - 1 :]).mean()

    shapes = (count, s.width, 4 * s.width), (count, 4 * s.width, s.width)
    parameters = tuple(_shape(mesh, P("d"), *shape) for shape in shapes)
    batch = _shape(mesh, P(), 4, s.batch, s.width)
    return Step(_trained(_mapped(mesh, loss, P("d"), P())), parameters, batch)


def _experts(devices: Sequence[Any], s: Sizes) -> Step:
    """Mixture of experts: an expert a device; rows go to theirs and back by all-to-all."""
    mesh, count = _line(devices), len(devices)

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        for gate, a, b in parameters:
            score = jax.nn.softmax(x @ gate, -1)
            rows = jnp.argsort(-score, 0)[: max(x.shape[0] // 2, 1)].T  # of each expert
            sent = jax.lax.all_to_all(x[rows], "d", 0, 0)
            done = jax.lax.all_to_all(_block(sent, a[0], b[0]), "d", 0, 0)
            weight = jnp.take_along_axis(score.T, rows, 1)[..., None]
            x = x.at[rows].add(weight * done)
        return (x**2).mean()

    shapes = ((s.width, count), P()), ((count, s.width, 2 * s.width), P("d"))
    shapes = (*shapes, ((count, 2 * s.width, s.width), P("d")))
    layer = tuple(_shape(mesh, spec, *shape) for shape, spec in shapes)
    parameters = [layer for _ in range(max(s.layers // 2, 1))]
    specs = [(P(), P("d"), P("d")) for _ in parameters]
    batch = _shape(mesh, P("d"), s.batch * count, s.width)
    return Step(_trained(_mapped(mesh, loss, specs, P("d"))), parameters, batch)


def _sequence(devices: Sequence[Any], s: Sizes) -> Step:
    """Sequence parallel: positions are split; keys and values go round the ring of devices."""
    mesh, count = _line(devices), len(devices)
    ring = [(i, (i + 1) % count) for i in range(count)]

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        total, weight = jnp.zeros_like(q), jnp.zeros(q.shape[:-1])
        for _ in range(count):
            e = jnp.exp(jnp.tanh(jnp.einsum("bqd,bkd->bqk", q, k)))
            total, weight = total + e @ v, weight + e.sum(-1)
            k, v = (jax.lax.ppermute(t, "d", ring) for t in (k, v))
        return total / weight[..., None]

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        for q, k, v in parameters:
            x = x + attended(x @ q, x @ k, x @ v)
        return (x**2).mean()

    layer = tuple(_shape(mesh, P(), s.width, s.width) for _ in range(3))
    parameters = [layer for _ in range(max(s.layers // 2, 1))]
    batch = _shape(mesh, P(None, "d"), 2, s.length, s.width)
    return Step(_trained(_mapped(mesh, loss, P(), P(None, "d"))), parameters, batch)


def _pmapped(devices: Sequence[Any], s: Sizes) -> Step:
    """Data parallel by pmap, called in the step."""
    mesh, count = _line(devices), len(devices)

    def step(parameters: Any, moments: Any, batch: Any) -> Any:
        def part(parameters: Any, moments: Any, batch: Any) -> Any:
            value, gradient = jax.value_and_grad(_plain_loss)(parameters, batch)
            gradient, value = jax.lax.pmean((gradient, value), "d")
            moments = jax.tree.map(lambda m, g: _KEPT * m + g, moments, gradient)
            return jax.tree.map(lambda p, m: p - _RATE * m, parameters, moments), moments, value

        return jax.pmap(part, "d", devices=list(devices))(parameters, moments, batch)

    shapes = (count, s.width, 4 * s.width), (count, 4 * s.width, s.width)
    layer = tuple(_shape(mesh, P("d"), *shape) for shape in shapes)
    batch = _shape(mesh, P("d"), count, s.batch // count, s.width)
    return Step(step, [layer for _ in range(s.layers)], batch)


STEPS: dict[str, Callable[[Sequence[Any], Sizes], Step]] = {
    "data parallel": _replicated,
    "fsdp": _fully_sharded,
    "fsdp scanned": _scanned,
    "tensor parallel": _tensor,
    "fsdp and tensor": _two_ways,
    "shard_map": _shard_mapped,
    "pipeline": _pipeline,
    "experts": _experts,
    "sequence": _sequence,
    "pmap": _pmapped,
}
"""By name: makes the step for devices and sizes."""
