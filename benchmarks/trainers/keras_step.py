"""The step of keras's `fit` on JAX: a ConvNeXt of its applications, with its own remat scope."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.trainers import TrainerStep
from olla_xla.targets.target import Target

_SIDE, _CLASSES = 224, 1000


def step(policy: str, settings: Mapping[str, str], target: Target) -> TrainerStep:
    """See `Trainer.step`; the policy is the mode of keras's scope."""
    os.environ["KERAS_BACKEND"] = "jax"  # keras reads it as it is imported
    keras: Any = importlib.import_module("keras")
    scope = keras.RematScope(mode=None if policy == "none" else policy)
    with scope:
        model = keras.applications.ConvNeXtTiny(weights=None, classes=_CLASSES)
    model.compile(keras.optimizers.AdamW(), keras.losses.SparseCategoricalCrossentropy())
    batch = int(settings["batch_size"])
    images = jax.ShapeDtypeStruct((batch, _SIDE, _SIDE, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    model.optimizer.build(model.trainable_variables)
    values = jnp.zeros((batch, _SIDE, _SIDE, 3)), jnp.zeros(batch, jnp.int32)
    model.evaluate(*values, batch_size=batch, verbose=0)  # makes the variables of its metrics
    parts = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state: Any = tuple([variable.value for variable in part] for part in parts)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)

    def train_step(state: Any, data: Any) -> Any:
        return model.train_step(state, data)

    arguments = target.place((shapes, (images, labels)))
    return TrainerStep(train_step, {"donate_argnums": 0}, arguments)
