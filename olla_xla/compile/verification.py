"""`verify=True`: the first results of a planned executable against XLA's own, bit for bit."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np

from hlo.module import module_from_bytes
from olla_xla.compile.accounting import final_module
from olla_xla.compile.environment import switch
from olla_xla.errors import InputError

__all__ = ["copies", "difference", "digest", "reason_not_to", "report", "wanted"]

_VARIABLE = "OLLA_XLA_VERIFY"


def wanted(verify: bool | None) -> bool:
    """Whether to verify: as asked for, or else as the environment variable OLLA_XLA_VERIFY says.

    Raises:
      InputError: either is neither true nor false.
    """
    if verify is None:
        return switch(_VARIABLE)
    if not isinstance(verify, bool):
        raise InputError(f"verify={verify!r} must be True, False or None")
    return verify


def copies(tree: Any) -> Any:
    """The same arguments in arrays of their own, which a call may take as donated."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def digest(lowered: jax.stages.Lowered) -> str:
    """Names a lowered function by its text."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def reason_not_to(compiled: jax.stages.Compiled) -> str:
    """Why an executable is not run twice, or ""."""
    module = module_from_bytes(final_module(compiled))
    for computation in module.control_computations:
        for i in computation.instructions:
            if i.side_effect or i.opcode in ("infeed", "outfeed", "send", "recv"):
                return f"it is not verified: {i.name} has side effects, which must not happen twice"
    return ""


def difference(expected: Any, found: Any) -> str:
    """The first outputs that differ in a bit, named by their path; or ""."""
    leaves, tree = jax.tree.flatten_with_path(expected)
    if jax.tree.structure(found) != tree:
        return "the outputs' structure"
    for (path, a), b in zip(leaves, jax.tree.leaves(found), strict=True):
        if _bits(a) != _bits(b):
            return f"output{jax.tree_util.keystr(path)}"
    return ""


def report(name: str, where: str) -> str:
    """What the user is told of a difference."""
    return (
        f"planned results of {name} differ from XLA's own at {where}; XLA's own executable is used "
        "from now on. This is a bug: please report it with `step.lower(...).as_text()`"
    )


def _bits(leaf: Any) -> tuple[Any, ...]:
    """Type, shape and bytes of an array; keys by their data."""
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return tuple(_bits(np.asarray(shard.data)) for shard in leaf.addressable_shards)
    array = np.asarray(leaf)
    return str(array.dtype), array.shape, array.tobytes()
