"""Random arguments for a step (finite, all arrays different), and its outputs as bytes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.mutants.programs import SEEN


def arguments(shapes: Any, seed: int) -> Any:
    """Small positive floats (valid second moments too), integers below ten, all of one seed."""
    generator = np.random.default_rng(seed)

    def array(a: Any) -> Any:
        if jnp.issubdtype(a.dtype, jnp.bool_):
            return jnp.asarray(generator.random(a.shape) < 0.5)
        if jnp.issubdtype(a.dtype, jnp.integer):
            return jnp.asarray(generator.integers(0, 10, a.shape).astype(a.dtype))
        return jnp.asarray(generator.uniform(0.001, 0.2, a.shape).astype(a.dtype))

    return jax.tree.map(array, shapes)


def outputs(compiled: jax.stages.Compiled, given: Any) -> list[bytes]:
    """Runs an executable on copies of the arguments.

    Returns:
      The bytes of each output, of each argument afterwards that was not donated, and what host
      callbacks have seen. That in no order: JAX keeps none, and XLA's CPU runtime starts what is
      ready, whatever the schedule says. Where a result depends on it, the outputs show it.
    """
    copies = jax.tree.map(lambda a: jnp.array(a, copy=True), given)
    SEEN.clear()
    results = jax.block_until_ready(compiled(*copies))
    jax.effects_barrier()
    donated = jax.tree.leaves(compiled.args_info)
    kept = [
        leaf
        for leaf, info in zip(jax.tree.leaves((copies, {})), donated, strict=True)
        if not info.donated
    ]
    arrays = [*jax.tree.leaves(results), *kept]
    return [*(np.asarray(a).tobytes() for a in arrays), "\n".join(sorted(SEEN)).encode()]
