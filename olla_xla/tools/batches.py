"""A model's step at any batch size, lowered for a target; several devices share the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from olla_xla.errors import InputError
from olla_xla.targets.target import Target
from olla_xla.tools import models
from olla_xla.tools.models import BuiltModel, tracing


def lowering(name: str, optimizer: str, target: Target) -> Callable[[int], jax.stages.Lowered]:
    """A function that lowers a model's step for a batch size; several devices divide the batch.

    Raises:
      InputError: the model cannot be built or traced; also raised by that function.
    """
    one = models.build(name, batch_size=1, optimizer=optimizer)
    axes = batch_axes(one, models.build(name, batch_size=2, optimizer=optimizer))

    def lower(batch: int) -> jax.stages.Lowered:
        model = models.build(name, batch_size=batch, optimizer=optimizer)
        arguments = target.place(model.arguments, axes)
        with tracing(name):
            return jax.jit(model.step, **model.jit_options).lower(*arguments)

    return lower


def batch_axes(model: BuiltModel, other: BuiltModel) -> Any:
    """For each argument, the axis whose extent differs between two batch sizes; -1 if none does.

    Raises:
      InputError: no argument depends on the batch size.
    """

    def axis(a: Any, b: Any) -> int:
        pairs = zip(getattr(a, "shape", ()), getattr(b, "shape", ()), strict=True)
        return next((k for k, (x, y) in enumerate(pairs) if x != y), -1)

    axes = jax.tree.map(axis, model.arguments, other.arguments)
    if all(k < 0 for k in jax.tree.leaves(axes)):
        raise InputError(f"no argument of model {model.name} depends on batch_size")
    return axes
