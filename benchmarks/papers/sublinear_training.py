"""Feature-map memory and step time under sublinear training, against simpler ways to save memory.

Chen et al. 2016, figures 5 to 7: ResNets of growing depth, and an LSTM of four layers unrolled
over growing sequences. Feature maps, which are neither arguments nor gradients, are counted on the
unfused StableHLO graph: every tensor with memory of its own ("none"), operators in place, memory
shared, both, and both on the graphs that `olla_xla.sublinear` makes: where only what is cheap is
dropped, with the budget that the planner's estimate likes best, and with the one that this very
count likes best. Step time, results and XLA's own accounting are those of real runs on this
machine, at sizes that a CPU can run.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.papers.eager.graph import Program, program
from benchmarks.papers.eager.static import assign
from benchmarks.papers.eager.storages import check_storages
from examples.zoo import common
from examples.zoo.resnet import Bottleneck, ResNet
from hlo.module import module_from_bytes
from hlo.text import from_stablehlo
from olla_xla.errors import OllaError
from olla_xla.segments.transform import sublinear


@dataclasses.dataclass(frozen=True)
class Network:
    """A loss to differentiate.

    Attributes:
      name, size: of the network; layers of a ResNet, steps of an LSTM.
      loss: (params, batch) -> (scalar loss, auxiliary results).
      make: key -> (params, batch); only its shapes are used.
    """

    name: str
    size: int
    loss: Callable[[Any, Any], tuple[jax.Array, Any]]
    make: Callable[[jax.Array], tuple[Any, Any]]

    @property
    def shapes(self) -> tuple[Any, Any]:
        """(params, batch) as `jax.ShapeDtypeStruct`s."""
        return jax.eval_shape(self.make, jax.eval_shape(lambda: jax.random.key(0)))


def resnet(depth: int, *, image_size: int = 224, batch_size: int = 32) -> Network:
    """A ResNet of about `depth` layers: bottlenecks, by stages as 3, 8, 36, 3 (ResNet-152).

    Images are float32[batch_size, image_size, image_size, 3], of 1000 classes.
    """
    blocks = max((depth - 2) // 3, 4)
    stages = [max(1, round(blocks * share / 50)) for share in (3, 8, 36, 3)]
    stages[2] += blocks - sum(stages)
    module = ResNet(tuple(stages), Bottleneck)
    network = common.linen_network(module, common.image_batches(image_size, 3, 1000))

    def make(key: jax.Array) -> tuple[Any, Any]:
        batch = network.make_batch(key, batch_size)
        params, statistics_ = network.init(key, batch["inputs"])
        return params, {**batch, "statistics": statistics_}

    def loss(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        outputs, updated = network.apply(params, batch["statistics"], batch["inputs"])
        return network.loss(outputs, batch["labels"]), updated

    return Network("resnet", 2 + 3 * sum(stages), loss, make)


def lstm(
    steps: int,
    *,
    layers: int = 4,
    width: int = 1024,
    batch_size: int = 64,
    inputs: int = 50,
    classes: int = 5000,
) -> Network:
    """An LSTM of `layers`, unrolled; a softmax over `classes` and its loss at every step.

    Inputs are float32[steps, batch_size, inputs]. The cell is one jitted function, so that
    thousands of steps can be traced.
    """

    @jax.jit
    def cell(weights: Any, hidden: jax.Array, state: jax.Array, x: jax.Array) -> Any:
        gates = x @ weights["input"] + hidden @ weights["hidden"] + weights["bias"]
        into, forget, out, candidate = jnp.split(gates, 4, axis=-1)
        state = jax.nn.sigmoid(forget) * state + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        return jax.nn.sigmoid(out) * jnp.tanh(state), state

    @jax.jit
    def head(weights: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = jax.nn.log_softmax(x @ weights)
        return -jnp.take_along_axis(logits, labels[:, None], axis=-1).sum()

    def loss(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        zeros = jnp.zeros((batch_size, width), jnp.float32)
        states = [(zeros, zeros)] * layers
        total = jnp.zeros((), jnp.float32)
        for step in range(steps):
            x = batch["inputs"][step]
            for number, weights in enumerate(params["layers"]):
                states[number] = cell(weights, *states[number], x)
                x = states[number][0]
            total = total + head(params["head"], x, batch["labels"][step])
        return total / (steps * batch_size), ()

    def make(key: jax.Array) -> tuple[Any, Any]:
        keys = iter(jax.random.split(key, 2 * layers + 3))

        def normal(*shape: int) -> jax.Array:
            return jax.random.normal(next(keys), shape, jnp.float32) / shape[0] ** 0.5

        layer_params = [
            {
                "input": normal(width if number else inputs, 4 * width),
                "hidden": normal(width, 4 * width),
                "bias": jnp.zeros((4 * width,), jnp.float32),
            }
            for number in range(layers)
        ]
        batch = {
            "inputs": jax.random.normal(next(keys), (steps, batch_size, inputs), jnp.float32),
            "labels": jax.random.randint(next(keys), (steps, batch_size), 0, classes, jnp.int32),
        }
        return {"layers": layer_params, "head": normal(width, classes)}, batch

    return Network("lstm", steps, loss, make)


def layers(count: int, *, width: int = 1024, batch_size: int = 2048) -> Network:
    """`count` layers of a matrix product and a tanh, with the mean square as the loss."""

    def loss(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        for weights in params:
            batch = jnp.tanh(batch @ weights)
        return jnp.mean(batch**2), ()

    def make(key: jax.Array) -> tuple[Any, Any]:
        weights = [jax.random.normal(key, (width, width), jnp.float32) for _ in range(count)]
        return weights, jax.random.normal(key, (batch_size, width), jnp.float32)

    return Network("layers", count, loss, make)


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """Bytes of feature maps of one network.

    Attributes:
      network, size: which. operators: of the unfused graph, without and with recomputation.
      none_bytes, in_place_bytes, sharing_bytes, both_bytes: by planner, without recomputation.
      cheap_bytes: both, where all but products and convolutions is recomputed (`keep="dots"`).
      sublinear_bytes: both, on the graph of `olla_xla.sublinear`.
      exact_bytes: likewise, of all budgets that were tried the least; None where none was.
      seconds: to trace, lower and plan it all.
      recursive_bytes: segments of segments as deep as they go (`depth=None`); None: not counted.
    """

    network: str
    size: int
    operators: tuple[int, int]
    none_bytes: int
    in_place_bytes: int
    sharing_bytes: int
    both_bytes: int
    cheap_bytes: int
    sublinear_bytes: int
    exact_bytes: int | None
    seconds: float
    recursive_bytes: int | None = None

    @property
    def least_bytes(self) -> int:
        """The least bytes of `olla_xla.sublinear` among the budgets that were tried."""
        return self.sublinear_bytes if self.exact_bytes is None else self.exact_bytes


def measure_memory(network: Network, *, exact: bool = True, recursive: bool = False) -> MemoryRow:
    """Counts the feature maps of a network under every planner; each assignment is checked.

    Args:
      network: the network.
      exact: whether to try every budget, which takes three times as long.
      recursive: whether to count segments of segments too.
    """
    started = time.monotonic()
    shapes = network.shapes
    plain = _lowered(network.loss, shapes)
    none, in_place, sharing, both = (
        _planned(plain, in_place=in_place, sharing=sharing)
        for in_place, sharing in ((False, False), (True, False), (False, True), (True, True))
    )
    operators = len(plain.graph.operators)
    del plain  # of long sequences, too large to hold both
    cheap = _lowered(sublinear(network.loss, keep="dots"), shapes)
    cheap_bytes = _planned(cheap, in_place=True, sharing=True)
    del cheap
    recomputing = _lowered(sublinear(network.loss), shapes)
    recomputed = len(recomputing.graph.operators)
    estimated = _planned(recomputing, in_place=True, sharing=True)
    del recomputing
    exact_bytes = None
    if exact:
        chosen = _lowered(sublinear(network.loss, budget=_allocated), shapes)
        exact_bytes = min(estimated, _planned(chosen, in_place=True, sharing=True))
    recursive_bytes = None
    if recursive:
        found = _lowered(sublinear(network.loss, depth=None), shapes)
        recursive_bytes = _planned(found, in_place=True, sharing=True)
    return MemoryRow(
        network=network.name,
        size=network.size,
        operators=(operators, recomputed),
        none_bytes=none,
        in_place_bytes=in_place,
        sharing_bytes=sharing,
        both_bytes=both,
        cheap_bytes=cheap_bytes,
        sublinear_bytes=estimated,
        exact_bytes=exact_bytes,
        seconds=time.monotonic() - started,
        recursive_bytes=recursive_bytes,
    )


def _allocated(lowered: jax.stages.Lowered) -> int:
    """Feature maps of a lowered gradient, in place and shared."""
    return _planned(_program(lowered), in_place=True, sharing=True)


def _lowered(loss: Callable[..., Any], shapes: tuple[Any, Any]) -> Program:
    return _program(jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(*shapes))


def _program(lowered: jax.stages.Lowered) -> Program:
    return program(module_from_bytes(from_stablehlo(lowered.as_text(debug_info=True))))


def _planned(found: Program, *, in_place: bool, sharing: bool) -> int:
    assignment = assign(found, in_place=in_place, sharing=sharing)
    check_storages(found.graph, assignment.storage, assignment.sizes)
    return assignment.bytes


@dataclasses.dataclass(frozen=True)
class TimeRow:
    """Real runs of one network's gradient, plain and recomputing.

    Attributes:
      network, size: which. turns: runs of each.
      plain_seconds, sublinear_seconds: median of one run.
      ratio: median over turns of sublinear / plain.
      plain_temp_bytes, sublinear_temp_bytes: XLA's temporaries.
      plain_total_bytes, sublinear_total_bytes: them, arguments and results: the run's total.
      largest_difference: of any gradient, relative to its largest entry.
    """

    network: str
    size: int
    turns: int
    plain_seconds: float
    sublinear_seconds: float
    ratio: float
    plain_temp_bytes: int
    sublinear_temp_bytes: int
    plain_total_bytes: int
    sublinear_total_bytes: int
    largest_difference: float


def measure_time(network: Network, turns: int = 7) -> TimeRow:
    """Runs both gradients in turns on the default device."""
    arguments = _arrays(network.shapes)
    compiled = [
        jax.jit(jax.value_and_grad(f, has_aux=True)).lower(*arguments).compile()
        for f in (network.loss, sublinear(network.loss))
    ]
    gradients = [jax.block_until_ready(c(*arguments)) for c in compiled]
    seconds = np.zeros((turns, 2))
    for turn in range(turns):
        for k in (turn % 2, 1 - turn % 2):
            started = time.perf_counter()
            jax.block_until_ready(compiled[k](*arguments))
            seconds[turn, k] = time.perf_counter() - started
    plain, recomputing = np.median(seconds, axis=0)
    temp, total = zip(*map(_temp_and_total_bytes, compiled), strict=True)
    return TimeRow(
        network=network.name,
        size=network.size,
        turns=turns,
        plain_seconds=float(plain),
        sublinear_seconds=float(recomputing),
        ratio=statistics.median((seconds[:, 1] / seconds[:, 0]).tolist()),
        plain_temp_bytes=temp[0],
        sublinear_temp_bytes=temp[1],
        plain_total_bytes=total[0],
        sublinear_total_bytes=total[1],
        largest_difference=max(
            map(_difference, *(jax.tree.leaves(g[1]) for g in gradients)), default=0.0
        ),
    )


def _named(name: str, network: Network) -> Network:
    return dataclasses.replace(network, name=name)


def _arrays(shapes: Any) -> Any:
    """Random arrays of these shapes: initialising deep networks takes long to compile."""
    random = np.random.default_rng(0)

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        if len(leaf.shape) < 2:
            return jnp.full(leaf.shape, 0.5, leaf.dtype)
        inputs = np.prod(leaf.shape[:-1])
        values = random.standard_normal(leaf.shape, np.float32) / np.sqrt(min(inputs, 4096))
        return jnp.asarray(values, leaf.dtype)

    return jax.tree.map(fill, shapes)


def _temp_and_total_bytes(compiled: jax.stages.Compiled) -> tuple[int, int]:
    """XLA's temporaries; them, arguments and results, one that replaces an argument once."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        raise OllaError("this backend does not say what memory an executable takes")
    kept = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.temp_size_in_bytes, sizes.temp_size_in_bytes + kept


def _difference(a: jax.Array, b: jax.Array) -> float:
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(x - y).max(initial=0) / np.abs(x).max(initial=1e-30))


TIMED: dict[str, Callable[[], Network]] = {
    **{f"resnet{n}": functools.partial(resnet, n, image_size=64, batch_size=8)
       for n in (32, 64, 128)},
    **{f"lstm{n}": functools.partial(lstm, n, width=256, batch_size=32, classes=1000)
       for n in (16, 32, 64)},
    "large_resnet32": lambda: _named("large resnet", resnet(32, image_size=128, batch_size=16)),
    "large_lstm16": lambda: _named("large lstm", lstm(16)),
    "layers24": lambda: layers(24),
}  # fmt: skip
"""The networks whose step time is measured, by name. The large LSTM is the one whose feature maps
are counted."""

PAPER_RATIO = 48 / 7
"""By how much the paper shrinks its ResNet of 1,000 layers: "from 48G to 7G" (abstract)."""
PAPER_LAYERS = 1000
PAPER_TIME = 1.30
""""With only 30 percent additional running time cost" (abstract)."""
LEAST_TURNS = 5
"""Runs of each, of which a median says something about that."""


def misses(memory: Sequence[MemoryRow], times: Sequence[TimeRow]) -> list[str]:
    """One line for each result that falls short of the paper's figures 5 to 7 or its abstract."""
    found = []
    for row in memory:
        name = f"{row.network} {row.size}"
        shrunk = row.sharing_bytes / row.least_bytes
        if row.network == "resnet" and row.size >= PAPER_LAYERS and shrunk < PAPER_RATIO:
            found.append(
                f"{name}: sharing is {shrunk:.1f} times sublinear, the paper's 48G are "
                f"{PAPER_RATIO:.1f} times its 7G"
            )
        if row.none_bytes < 2 * row.sharing_bytes:
            found.append(f"{name}: sharing is less than 2 times under none")
        if row.network == "lstm" and row.sharing_bytes < 4 * row.sublinear_bytes:
            found.append(f"{name}: sublinear is less than 4 times under sharing")
    for row in times:
        if row.turns >= LEAST_TURNS and row.ratio > PAPER_TIME:
            found.append(
                f"{row.network} {row.size}: {row.ratio:.2f} times the step time, the paper's is "
                f"{PAPER_TIME:.2f}"
            )
    return found
