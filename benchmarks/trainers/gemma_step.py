"""Fine-tuning of Gemma 3 with 270 million parameters by Google DeepMind's library and optax."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen
from gemma import gm  # pyright: ignore[reportMissingImports]
from gemma.gm.nn import _modules  # pyright: ignore[reportMissingImports]

from benchmarks.trainers import TrainerStep
from olla_xla.targets.target import Target

_LENGTH = 1024


def step(policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
    """See `Trainer.step`; "blocks" has each block of the decoder under jax.checkpoint."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        own = _modules.Block
        if policy == "blocks":
            _modules.Block = linen.remat(own)
        try:
            yield
        finally:
            _modules.Block = own

    model: Any = gm.nn.Gemma3_270M()  # pyright: ignore[reportAttributeAccessIssue]
    rule = optax.adamw(1e-5)
    tokens = jax.ShapeDtypeStruct((int(settings["batch_size"]), _LENGTH), jnp.int32)
    with context():
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]

    def loss(params: Any, tokens: Any) -> Any:
        logits = model.apply({"params": params}, tokens).logits[:, :-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def train_step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    arguments = target.place((params, jax.eval_shape(rule.init, params), tokens))
    return TrainerStep(train_step, {"donate_argnums": (0, 1)}, arguments, context=context)
