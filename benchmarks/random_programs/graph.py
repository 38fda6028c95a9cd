"""Random graphs as a loss."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.random_programs.arrays import ARRAYS
from benchmarks.random_programs.callbacks import CALLBACKS
from benchmarks.random_programs.control import CONTROL, DERIVATIVES
from benchmarks.random_programs.elementwise import ELEMENTWISE
from benchmarks.random_programs.environment import Environment, Operator, run_nodes
from benchmarks.random_programs.linear import LINEAR
from benchmarks.random_programs.narrow import TYPES
from benchmarks.random_programs.nested import NESTED
from benchmarks.random_programs.spec import Graph

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    **ARRAYS,
    **LINEAR,
    **CONTROL,
    **DERIVATIVES,
    **NESTED,
    **TYPES,
    **CALLBACKS,
}
"""Every operator a graph may have."""


def graph_parameters(body: Graph, random: np.random.Generator) -> dict[str, Any]:
    """The arrays that are trained."""
    shape = (body.rows, body.cols)
    square = (body.cols, body.cols)
    return {
        **{f"leaf{k}": random.standard_normal(shape) for k in range(max(body.leaves, 1))},
        **{
            f"weight{k}": random.standard_normal(square) / body.cols**0.5
            for k in range(max(body.weights, 1))
        },
    }


def graph_batch(body: Graph, random: np.random.Generator) -> dict[str, Any]:
    """What the step is given anew each time."""
    return {"x": random.standard_normal((body.rows, body.cols))}


def graph_loss(body: Graph, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """Loss, and values for additional results."""
    values = _values(body, params, batch, key)
    stride = max(body.stride, 1)
    read = values[len(values) - 1 :: -stride]
    wide = jnp.promote_types(values[0].dtype, jnp.float32)
    total = sum((value.astype(wide) ** 2).mean() for value in read)
    return jnp.asarray(total, wide), {"last": values[-1], "middle": values[len(values) // 2]}


def graph_next(body: Graph, params: Any, batch: Any, key: Any) -> tuple[Any, Any]:
    """A step without gradients: the latest values are the next leaves."""
    values = _values(body, params, batch, key)
    new = dict(params)
    for k in range(max(body.leaves, 1)):
        old = params[f"leaf{k}"]
        new[f"leaf{k}"] = values[(-1 - k * max(body.stride, 1)) % len(values)].astype(old.dtype)
    return new, {"last": values[-1], "middle": values[len(values) // 2]}


def _values(body: Graph, params: Any, batch: Any, key: Any) -> list[Any]:
    leaves = [params[f"leaf{k}"] for k in range(max(body.leaves, 1))]
    weights = [params[f"weight{k}"] for k in range(max(body.weights, 1))]
    env = Environment(weights, key, OPERATORS)
    return run_nodes(env, body.nodes, [batch["x"].astype(leaves[0].dtype), *leaves])
