"""Turns an architecture into a train step: loss, optimizer, state, abstract and real arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

PyTree = Any
State = dict[str, PyTree]
Batch = dict[str, PyTree]
TrainStep = Callable[[State, Batch], tuple[State, jax.Array]]
Built = tuple[TrainStep, tuple[PyTree, PyTree], dict[str, Any]]

MAX_GRADIENT_NORM = 1.0
"""Global norm to which `adam_clip` clips the gradients."""

ACCUMULATED_STEPS = 4
"""Train steps whose gradients `adam_accum` averages before it updates the parameters."""

OPTIMIZERS: dict[str, Callable[[float], optax.GradientTransformation]] = {
    "sgd": lambda learning_rate: optax.sgd(learning_rate),
    "momentum": lambda learning_rate: optax.sgd(learning_rate, momentum=0.9),
    "adam": lambda learning_rate: optax.adam(learning_rate),
    "adam_clip": lambda learning_rate: optax.chain(
        optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.adam(learning_rate)
    ),
    "adam_accum": lambda learning_rate: optax.MultiSteps(
        optax.adam(learning_rate), every_k_schedule=ACCUMULATED_STEPS
    ).gradient_transformation(),
}
"""Optimizer name -> function from a learning rate to an optax transformation."""

LEARNING_RATES: dict[str, float] = {
    "sgd": 1e-2,
    "momentum": 1e-2,
    "adam": 1e-3,
    "adam_clip": 1e-3,
    "adam_accum": 1e-3,
}
"""Optimizer name -> the learning rate used where none is given."""

DTYPES: dict[str, Any] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
"""Name -> dtype of the computation; see `with_dtype`."""


def make_optimizer(name: str, learning_rate: float | None = None) -> optax.GradientTransformation:
    """Returns the optax optimizer called `name`, one of `OPTIMIZERS`.

    `learning_rate` is `LEARNING_RATES[name]` when None. Raises ValueError for an unknown name.
    """
    if name not in OPTIMIZERS:
        known = ", ".join(sorted(OPTIMIZERS))
        raise ValueError(f"unknown optimizer {name!r}; known optimizers: {known}")
    return OPTIMIZERS[name](LEARNING_RATES[name] if learning_rate is None else learning_rate)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean softmax cross entropy, in nats, of `logits [..., classes]` and int `labels [...]`."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def squared_error(predictions: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean squared difference of two arrays of one shape."""
    return jnp.square(predictions - targets).mean()


@dataclasses.dataclass(frozen=True)
class Network:
    """An architecture as pure functions, with the data it is trained on.

    Attributes:
      init: `(key, inputs) -> (params, batch_stats)`; `batch_stats` is an empty dict in a
        network that has no running statistics.
      apply: `(params, batch_stats, inputs) -> (outputs, new_batch_stats)` in training mode;
        the outputs are those that `loss` takes, in a classifier the logits with the classes
        in the last axis.
      make_batch: `(key, batch_size) -> batch`, a dict of `inputs`, an array or a dict of them,
        and `labels`, in a classifier int32 and shaped as the logits without their last axis.
      loss: `(outputs, labels) -> loss`, where the outputs are float32 and the loss a scalar.
    """

    init: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    apply: Callable[[PyTree, PyTree, PyTree], tuple[jax.Array, PyTree]]
    make_batch: Callable[[jax.Array, int], Batch]
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy


def linen_network(
    module: nn.Module,
    make_batch: Callable[[jax.Array, int], Batch],
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy,
) -> Network:
    """Wraps a Flax linen module whose collections are `params` and, optionally, `batch_stats`.

    The module is called with the `inputs` of a batch as its only argument.
    """

    def init(key: jax.Array, inputs: PyTree) -> tuple[PyTree, PyTree]:
        variables = module.init(key, inputs)
        return variables["params"], variables.get("batch_stats", {})

    def apply(params: PyTree, batch_stats: PyTree, inputs: PyTree) -> tuple[jax.Array, PyTree]:
        variables = {"params": params, "batch_stats": batch_stats}
        outputs, updates = module.apply(variables, inputs, mutable=["batch_stats"])
        return outputs, updates.get("batch_stats", {})

    return Network(init, apply, make_batch, loss)


def with_dtype(network: Network, dtype: str) -> Network:
    """`network` computing in `dtype`, one of `DTYPES`, from float32 parameters and inputs.

    Parameters and inputs are cast on the way in and the outputs back on the way out, so the
    parameters, the optimizer's state, the gradients it is given and the loss stay float32, as
    do the statistics of normalization layers and the softmax of attention. Raises ValueError
    for an unknown dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known dtypes: {', '.join(sorted(DTYPES))}")
    if dtype == "float32":
        return network

    def cast(tree: PyTree) -> PyTree:
        return jax.tree.map(
            lambda x: x.astype(DTYPES[dtype]) if x.dtype == jnp.float32 else x, tree
        )

    def apply(params: PyTree, batch_stats: PyTree, inputs: PyTree) -> tuple[jax.Array, PyTree]:
        outputs, batch_stats = network.apply(cast(params), batch_stats, cast(inputs))
        return outputs.astype(jnp.float32), batch_stats

    return dataclasses.replace(network, apply=apply)


def image_batches(
    image_size: int, channels: int, num_classes: int, *, frames: int | None = None
) -> Callable[[jax.Array, int], Batch]:
    """Returns a `make_batch` of random images, or videos, with random labels.

    Its `inputs` are float32 `[batch, image_size, image_size, channels]`, or with `frames`
    `[batch, frames, image_size, image_size, channels]`, of a standard normal distribution and
    its `labels` int32 `[batch]` in `[0, num_classes)`.
    """
    time = () if frames is None else (frames,)

    def make_batch(key: jax.Array, batch_size: int) -> Batch:
        image_key, label_key = jax.random.split(key)
        shape = (batch_size, *time, image_size, image_size, channels)
        return {
            "inputs": jax.random.normal(image_key, shape, jnp.float32),
            "labels": jax.random.randint(label_key, (batch_size,), 0, num_classes, jnp.int32),
        }

    return make_batch


def token_batches(sequence_length: int, vocabulary_size: int) -> Callable[[jax.Array, int], Batch]:
    """Returns a `make_batch` of random token sequences for next-token prediction.

    Its `inputs` and `labels` are int32 `[batch, sequence_length]`, the labels being the inputs
    shifted by one position.
    """

    def make_batch(key: jax.Array, batch_size: int) -> Batch:
        shape = (batch_size, sequence_length + 1)
        tokens = jax.random.randint(key, shape, 0, vocabulary_size, jnp.int32)
        return {"inputs": tokens[:, :-1], "labels": tokens[:, 1:]}

    return make_batch


def make_train_step(network: Network, optimizer: optax.GradientTransformation) -> TrainStep:
    """Returns `train_step(state, batch) -> (state, loss)`, a plain function to be jitted."""

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        def loss_fn(params: PyTree) -> tuple[jax.Array, PyTree]:
            outputs, batch_stats = network.apply(params, state["batch_stats"], batch["inputs"])
            return network.loss(outputs, batch["labels"]), batch_stats

        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, batch_stats), grads = grad_fn(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
        new_state = {
            "params": optax.apply_updates(state["params"], updates),
            "batch_stats": batch_stats,
            "opt_state": opt_state,
            "step": state["step"] + 1,
        }
        return new_state, loss

    return train_step


def _make_arguments(
    network: Network, optimizer: optax.GradientTransformation, batch_size: int
) -> Callable[[jax.Array], tuple[State, Batch]]:
    """Returns `key -> (state, batch)`, to be traced by `jax.eval_shape` or compiled."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")

    def make(key: jax.Array) -> tuple[State, Batch]:
        params_key, batch_key = jax.random.split(key)
        batch = network.make_batch(batch_key, batch_size)
        params, batch_stats = network.init(params_key, batch["inputs"])
        state = {
            "params": params,
            "batch_stats": batch_stats,
            "opt_state": optimizer.init(params),
            "step": jnp.zeros((), jnp.int32),
        }
        return state, batch

    return make


def build(
    network: Network,
    *,
    batch_size: int,
    optimizer: str,
    learning_rate: float | None = None,
    dtype: str = "float32",
) -> Built:
    """Builds a train step and its abstract arguments; neither compiles nor allocates arrays.

    `optimizer` is one of `OPTIMIZERS` and `dtype` one of `DTYPES`.

    Returns:
      `(step, example_args, jit_kwargs)`: the plain function `step(state, batch) -> (state,
      loss)`, the pair `(state, batch)` with `jax.ShapeDtypeStruct` leaves, and the keyword
      arguments for `jax.jit`, which donate the state. `state` is a dict of `params`,
      `batch_stats`, `opt_state` and `step`.
    """
    transformation = make_optimizer(optimizer, learning_rate)
    make = _make_arguments(network, transformation, batch_size)
    example_args = jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)))
    step = make_train_step(with_dtype(network, dtype), transformation)
    return step, example_args, {"donate_argnums": (0,)}


def build_arrays(
    network: Network, *, batch_size: int, optimizer: str, seed: int = 0
) -> tuple[State, Batch]:
    """Returns `(state, batch)` of real arrays, shaped as the `example_args` of `build`.

    The parameters and the synthetic batch depend on `seed` alone. The batch is random but
    fixed, so a train step repeated on it lowers the loss.
    """
    make = _make_arguments(network, make_optimizer(optimizer), batch_size)
    return jax.jit(make)(jax.random.key(seed))


class Model:
    """A registry function made of a network: `model(batch_size=8, optimizer="adam")`.

    Attributes:
      network: returns the `Network`; its keyword arguments, all with defaults, are sizes that a
        call of the model takes too.
    """

    def __init__(self, network: Callable[..., Network]):
        self.network = network

    def __call__(
        self, *, batch_size: int, optimizer: str, dtype: str = "float32", **sizes: Any
    ) -> Built:
        """Returns `(step, example_args, jit_kwargs)`, see `build`."""
        network = self.network(**sizes)
        return build(network, batch_size=batch_size, optimizer=optimizer, dtype=dtype)

    def init(
        self, batch_size: int, optimizer: str, seed: int = 0, **sizes: Any
    ) -> tuple[State, Batch]:
        """Returns real `(state, batch)` for the step, see `build_arrays`."""
        network = self.network(**sizes)
        return build_arrays(network, batch_size=batch_size, optimizer=optimizer, seed=seed)


def parameter_count(state: State) -> int:
    """Number of trainable scalars in `state["params"]` (arrays or `jax.ShapeDtypeStruct`)."""
    return sum(leaf.size for leaf in jax.tree.leaves(state["params"]))
