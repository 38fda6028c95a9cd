"""Elementwise operators of random graphs. Values stay of order one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.environment import Operator

_ONE: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "relu": jax.nn.relu,
    "sin": jnp.sin,
    "bell": lambda a: jnp.exp(-a * a),
    "rsqrt": lambda a: a * jax.lax.rsqrt(1 + a * a),
    "log1p": lambda a: jnp.sign(a) * jnp.log1p(jnp.abs(a)),
    "erf": lambda a: jax.scipy.special.erf(a),
}

_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: (a + b) * 0.75,
    "sub": lambda a, b: (a - b) * 0.75,
    "mul": lambda a, b: a * jnp.tanh(b),
    "div": lambda a, b: a / (1 + b * b),
    "max": jnp.maximum,
    "min": jnp.minimum,
    "where": lambda a, b: jnp.where(a > b, a, 0.5 * b),
}


def _one(function: Callable[[Any], Any]) -> Operator:
    return lambda env, node, values: [function(values[0])]


def _two(function: Callable[[Any, Any], Any]) -> Operator:
    return lambda env, node, values: [function(values[0], values[1])]


def _gate(env: Any, node: Any, values: Any) -> list[Any]:
    a, b, c = values[:3]
    gate = jax.nn.sigmoid(a)
    return [gate * b + (1 - gate) * c]


def _gates(env: Any, node: Any, values: Any) -> list[Any]:
    """Both results of a long-lived pair, as an LSTM's cell makes them."""
    a, b, c = values[:3]
    cell = jax.nn.sigmoid(a) * c + jax.nn.sigmoid(b) * jnp.tanh(a)
    return [cell, jnp.tanh(cell) * jax.nn.sigmoid(c)]


def _sum(env: Any, node: Any, values: Any) -> list[Any]:
    return [functools.reduce(jnp.add, values) / len(values)]


def _scale(env: Any, node: Any, values: Any) -> list[Any]:
    return [values[0] * (0.5 + 0.1 * (node.k % 8))]


def _chain(env: Any, node: Any, values: Any) -> list[Any]:
    """A running value updated several times, as an optimizer's moments are."""
    run, results = values[0], []
    for other in values[1:]:
        run = 0.9 * run + 0.1 * other
        results.append(run)
    return results


ELEMENTWISE: dict[str, Operator] = {
    **{name: _one(function) for name, function in _ONE.items()},
    **{name: _two(function) for name, function in _TWO.items()},
    "gate": _gate,
    "gates": _gates,
    "sum": _sum,
    "scale": _scale,
    "chain": _chain,
}
"""Name -> operator."""
