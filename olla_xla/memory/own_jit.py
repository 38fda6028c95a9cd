"""JAX's own `jit`, also where a program has put another function in its place."""

from __future__ import annotations

import importlib
from typing import Any

import jax

__all__ = ["own_jit"]


def _found() -> Any:
    """From `jax._src.api`, which is not public: `jax.jit` may be `olla_xla.plan` by now.

    Where another JAX has it elsewhere, it is `jax.jit` as this is imported: the same, unless it was
    replaced by a function that does not name `olla_xla.plan` before its first call.
    """
    try:
        return importlib.import_module("jax._src.api").jit
    except (ImportError, AttributeError):
        return jax.jit


own_jit: Any = _found()
"""For what olla_xla compiles for itself: benchmarks of the machine, XLA's own executables."""
