"""JAX's own `jit`, also where a program has put another function in its place."""

import sys
from typing import Any

import jax

own_jit: Any = getattr(sys.modules.get("jax._src.api"), "jit", jax.jit)
"""For what olla_xla compiles for itself: benchmarks of the machine, XLA's own executables.

`jit` of `jax._src.api`, which is not public: `jax.jit` may be `olla_xla.plan` by now. If this JAX
does not have it there, it is `jax.jit` as of this import, which a program may have replaced.
"""
