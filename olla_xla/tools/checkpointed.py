"""Recomputation put into a step from outside: `jax.checkpoint`, or `olla_xla.sublinear`.

`jax.checkpoint` with each policy of JAX that takes no arguments, around the whole loss. The step's
own code stays as it is: `jax.grad` and `jax.value_and_grad` are replaced while it is traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import olla_xla

POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "nothing_saveable",
)
"""Names in `jax.checkpoint_policies`, by how much they keep."""


@contextlib.contextmanager
def checkpointed_loss(policy: str) -> Iterator[None]:
    """Within it every function that JAX differentiates is wrapped in `jax.checkpoint`."""
    import jax

    chosen = getattr(jax.checkpoint_policies, policy)
    with _wrapped_loss(lambda fun: jax.checkpoint(fun, policy=chosen)):
        yield


@contextlib.contextmanager
def sublinear_loss(keep: str) -> Iterator[None]:
    """Within it every function that JAX differentiates is wrapped in `olla_xla.sublinear`.

    Args:
      keep: what is not recomputed; see there.
    """
    with _wrapped_loss(lambda fun: olla_xla.sublinear(fun, keep=keep)):
        yield


@contextlib.contextmanager
def _wrapped_loss(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    import jax

    def wrapped(transform: Callable[..., Any]) -> Callable[..., Any]:
        def differentiate(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return transform(wrap(fun), *args, **kwargs)

        return differentiate

    with (
        mock.patch.object(jax, "grad", wrapped(jax.grad)),
        mock.patch.object(jax, "value_and_grad", wrapped(jax.value_and_grad)),
    ):
        yield
