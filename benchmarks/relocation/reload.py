"""A compiled stage with its executable's bytes rewritten; reads private attributes of JAX's."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import jax

from olla_xla.errors import InputError

__all__ = ["reloaded"]


def reloaded(
    compiled: jax.stages.Compiled, rewrite: Callable[[bytes], bytes]
) -> jax.stages.Compiled:
    """A compiled stage serialized, its executable's bytes rewritten, and loaded again.

    JAX's `serialize_executable` is public, but not what finds the executable inside.

    Raises:
      InputError: this stage, or any on this JAX, cannot be serialized. Whatever `rewrite` raises.
    """
    from jax.experimental import serialize_executable

    try:
        base: Any = serialize_executable._JaxPjrtPickler  # pyright: ignore
        inner: Any = compiled
        parts = (inner._executable._unloaded_executable, inner._no_kwargs)
        constants = inner._params.const_args
    except AttributeError as error:
        raise InputError(f"JAX {jax.__version__} cannot serialize this function") from error
    if constants or getattr(getattr(parts[0], "mut", None), "in_mut", None):
        raise InputError("functions that close over arrays or references cannot be serialized")

    class Pickler(base):
        def persistent_id(self, obj: Any) -> Any:
            found = super().persistent_id(obj)
            return ("exec", rewrite(found[1])) if found and found[0] == "exec" else found

    leaves, tree = jax.tree.flatten(compiled.args_info)
    executable: Any = compiled.runtime_executable()
    with io.BytesIO() as file:
        Pickler(file).dump((parts[0], leaves, parts[1]))
        return serialize_executable.deserialize_and_load(
            file.getvalue(),
            tree,
            compiled.out_tree,
            backend=executable.client,
            execution_devices=executable.local_devices(),
        )
