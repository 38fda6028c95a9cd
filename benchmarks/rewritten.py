"""Compiles of modules that are rewritten by hand."""

import contextlib
from collections.abc import Callable

import jax

from olla_xla.compile.compiles import Compiles


def compile_rewritten(
    lowered: jax.stages.Lowered, rewrite: Callable[[bytes], bytes]
) -> jax.stages.Compiled:
    """Compiles `lowered` with the scheduled module rewritten; the result is not checked.

    Args:
      lowered: JAX's lowered stage; calls of its function never run the executable.
      rewrite: serialized HloModuleProto as XLA scheduled it -> the one that XLA compiles on.

    Raises:
      OllaError: XLA hands over no schedule on this backend. Whatever `rewrite` or XLA raises.
    """
    with contextlib.closing(Compiles(lowered, None, {})) as compiles:
        return compiles.handed_over("", lambda _, module: rewrite(module))
