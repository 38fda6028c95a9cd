"""JAX's own `jit`, also where a program has put another function in its place."""

import importlib
from typing import Any

import jax


def _found() -> Any:
    """`jit` of `jax._src.api`, which is not public: `jax.jit` may be `olla_xla.plan` by now.

    If this JAX does not have it there, it is `jax.jit` as of this import, which a program may have
    replaced.
    """
    try:
        return importlib.import_module("jax._src.api").jit
    except (ImportError, AttributeError):
        return jax.jit


own_jit: Any = _found()
"""For what olla_xla compiles for itself: benchmarks of the machine, XLA's own executables."""
