"""`verify=True`: the first results of a planned executable against XLA's own, bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hlo.module import module_from_bytes
from olla_xla.compile import first_use
from olla_xla.compile.accounting import final_module
from olla_xla.compile.environment import switch_if_set
from olla_xla.compile.first_use import FirstUse
from olla_xla.compile.jax_private import devices_of
from olla_xla.compile.outcomes import Outcome
from olla_xla.errors import InputError

__all__ = [
    "Comparison",
    "copies",
    "difference",
    "due",
    "is_of",
    "reason_not_to",
    "report",
    "wanted",
]

_VARIABLE = "OLLA_XLA_VERIFY"


def wanted(verify: bool | None) -> bool | None:
    """Whether to verify: as asked for, or else as the environment variable OLLA_XLA_VERIFY says.

    None where neither says: then the first plan of each kind on a device (`first_use`).

    Raises:
      InputError: either is neither true nor false.
    """
    if verify is None:
        return switch_if_set(_VARIABLE)
    if not isinstance(verify, bool):
        raise InputError(f"verify={verify!r} must be True, False or None")
    return verify


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of an executable's first results with XLA's own, that is due.

    Attributes:
      digest: names the lowered function. members: numbers of the processes that make it together.
      use: what it shows of the device; None where it was asked for.
      say: tells the user a line.
    """

    digest: str
    members: tuple[int, ...]
    use: FirstUse | None
    say: Callable[[str], None]

    def expected(self, own: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any] | None:
        """What XLA's own executable gives; None where it fails and nobody has asked for it."""
        try:
            return (jax.block_until_ready(own(*args, **kwargs)),)
        except Exception as error:  # it runs out of memory, or cannot be traced twice
            if self.use is None:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self.say(f"its first results are not verified: {reason}")
            return None

    def settle(self, difference: str) -> None:
        """Remembers what came of it, where it was not asked for."""
        if self.use is not None:
            self.use.remember(same=not difference)


def due(
    verify: bool | None,
    outcome: Outcome,
    lowered: jax.stages.Lowered,
    say: Callable[[str], None],
) -> Comparison | None:
    """The comparison that is due when an executable is first called, if any.

    Args:
      verify: as `wanted` gives it. outcome: the executable. lowered: what it was made of.
      say: tells the user a line: why there is none.
    """
    use, reason, plan = None, "", outcome.plan
    if verify is False or not outcome.planned or plan is None:
        return None
    if verify is None:
        # What several processes do together, each of them must do; one of them may know more.
        devices = devices_of(lowered)
        use = first_use.due(plan, devices) if len(outcome.members) < 2 else None
        if use is None:
            return None
        reason = first_use.lacks_memory(plan, outcome.compiled, next(iter(devices)))
    if reason := reason or reason_not_to(outcome.compiled):
        say(reason)
        return None
    return Comparison(_digest(lowered), outcome.members, use, say)


def is_of(digests: set[str], lowered: jax.stages.Lowered) -> bool:
    """Whether a lowered function is one of those that comparisons name."""
    return bool(digests) and _digest(lowered) in digests


def copies(tree: Any) -> Any:
    """The same arguments in arrays of their own, which a call may take as donated."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def _digest(lowered: jax.stages.Lowered) -> str:
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
    """What the user is switch_if_set of a difference."""
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
