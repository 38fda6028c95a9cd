"""Random arrays to run steps on. NumPy draws them: what JAX draws is compiled for each shape."""

import jax.numpy as jnp
import numpy as np


def normal(*shape, seed=0, scale=1.0):
    """Numbers of a normal distribution, in float32."""
    drawn = np.random.default_rng(seed).normal(size=shape) * scale
    return jnp.asarray(drawn.astype(np.float32))


def normals(*shapes, scale=1.0):
    """An array for each shape, no two of the same numbers."""
    return [normal(*shape, seed=k, scale=scale) for k, shape in enumerate(shapes)]
