"""A linear layer to a vocabulary with cross-entropy, value and gradient: whole, cut and by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import olla_xla


def _sum_of_losses(w: Any, x: Any, y: Any) -> Any:
    logits = (x @ w).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(logits, -1) - picked)


def _loss(w: Any, x: Any, y: Any) -> Any:
    return _sum_of_losses(w, x, y) / len(x)


def _by_hand(pieces: int, w: Any, x: Any, y: Any) -> Any:
    """The usual loop over tokens, in which JAX adds the weights' gradient in their own type."""

    @jax.checkpoint
    def body(total: Any, piece: Any) -> Any:
        return total + _sum_of_losses(w, *piece), None

    split = [a.reshape(pieces, -1, *a.shape[1:]) for a in (x, y)]
    return lax.scan(body, jnp.float32(0), tuple(split))[0] / len(x)


def _gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(loss, (0, 1))


def forms(pieces: int) -> dict[str, Callable[..., Any]]:
    """By name, functions of weights, tokens and labels to the loss and both gradients."""
    return {
        "fission of the gradient": olla_xla.fission(_gradient(_loss), pieces=pieces),
        "fission of the loss": _gradient(olla_xla.fission(_loss, pieces=pieces)),
        "by hand": _gradient(functools.partial(_by_hand, pieces)),
        "unchanged": _gradient(_loss),
    }


def shapes(tokens: int, width: int, words: int, dtype: str) -> list[jax.ShapeDtypeStruct]:
    """The shapes of weights [width, words], tokens [tokens, width] and labels [tokens]."""
    w, x = ((width, words), dtype), ((tokens, width), dtype)
    return [jax.ShapeDtypeStruct(*s) for s in (w, x, ((tokens,), "int32"))]


def arguments(given: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Random arrays: weights of standard deviation width ** -0.5, tokens of 1, uniform labels."""
    rng = np.random.default_rng(0)
    w, x, y = given
    return [
        jnp.asarray(rng.normal(size=w.shape) / w.shape[0] ** 0.5, w.dtype),
        jnp.asarray(rng.normal(size=x.shape), x.dtype),
        jnp.asarray(rng.integers(0, w.shape[1], y.shape), y.dtype),
    ]


def errors(function: Callable[..., Any], args: Sequence[jax.Array]) -> list[float]:
    """Relative errors (in norm) of the gradients of weights and tokens against float64 ones."""
    made = jax.jit(function)(*args)[1]
    with jax.enable_x64(True):
        w, x, y = args
        exact = jax.jit(jax.grad(_wide_loss, (0, 1)))(*(a.astype(jnp.float64) for a in (w, x)), y)
        pairs = zip(made, exact, strict=True)
        return [float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs]


def _wide_loss(w: Any, x: Any, y: Any) -> Any:
    logits = x @ w
    picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)
