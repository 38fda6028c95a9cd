"""`verify=True`: compares a planned executable's first results with XLA's own, bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hlo.backend import platform_of_jax
from hlo.module import module_from_bytes
from olla_xla.compile import first_use
from olla_xla.compile.accounting import final_module
from olla_xla.compile.environment import switch
from olla_xla.compile.jax_private import devices_of
from olla_xla.compile.outcomes import Outcome
from olla_xla.errors import InputError

_VARIABLE = "OLLA_XLA_VERIFY"


def wanted(verify: bool | None) -> bool | None:
    """Whether to verify results, by the argument or else OLLA_XLA_VERIFY; None if neither is set.
    Then the first plan of each kind on a device is verified (`first_use`).
    Raises InputError: the argument is no bool, or the variable is set to other than 0 or 1.
    """
    if verify is None:
        return switch(_VARIABLE) if os.environ.get(_VARIABLE) else None
    if not isinstance(verify, bool):
        raise InputError(f"verify={verify!r} must be True, False or None (OLLA_XLA_VERIFY decides)")
    return verify


@dataclasses.dataclass(frozen=True)
class ResultComparison:
    """A comparison, to be made at the first call, of planned results with those of XLA's own order.

    Attributes:
      digest: names the lowered function. members: numbers of the processes that make it together.
      use: the kinds of plans that it verifies on the device; None where the user asked for it.
      say: tells the user a line.
    """

    digest: str
    members: tuple[int, ...]
    use: first_use.FirstUse | None
    say: Callable[[str], None]

    def expected(self, own: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any] | None:
        """Runs `own`, XLA's executable; returns (results,). If that fails, says so to the user and
        returns None; if the user asked for the comparison, it raises the error.
        """
        try:
            return (jax.block_until_ready(own(*args, **kwargs)),)
        except Exception as error:  # it runs out of memory, or cannot be traced twice
            if self.use is None:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self.say(f"first results are not compared with XLA's own: {reason}")
            return None

    def settle(self, difference: str) -> None:
        """Stores whether results differ on the device, unless the user asked for the comparison."""
        if self.use is not None:
            self.use.remember(same=not difference)


def due(
    verify: bool | None,
    outcome: Outcome,
    lowered: jax.stages.Lowered,
    say: Callable[[str], None],
) -> ResultComparison | None:
    """Returns the comparison with XLA's results to make at an executable's first call; else None.
    `verify`: as from `wanted`. `lowered`: the stage it was compiled from. `say`: called with a line
    that says why there is none, if one was due.
    """
    use, reason, plan = None, "", outcome.plan
    if verify is False or not outcome.planned or plan is None:
        return None
    if verify is None:
        # Several processes must all compare or none, and their stored outcomes may differ.
        device = next(iter(devices_of(lowered)), None)
        tested = device is None or platform_of_jax(device.platform).has_tested_bits  # on a CPU
        if tested or len(outcome.members) > 1 or (use := first_use.due(plan, device)) is None:
            return None
        reason = first_use.lacks_memory(plan, outcome.compiled, device)
    if reason := reason or reason_not_to(outcome.compiled):
        say(reason)
        return None
    return ResultComparison(digest(lowered), outcome.members, use, say)


def copies(tree: Any) -> Any:
    """Copies all JAX arrays in a pytree, so that a call may donate them; other leaves stay."""
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)


def digest(lowered: jax.stages.Lowered) -> str:
    """Returns a SHA-256 digest of a lowered function's text, which names it."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


def reason_not_to(compiled: jax.stages.Compiled) -> str:
    """Says why an executable must not run twice: an instruction has side effects; or ""."""
    module = module_from_bytes(final_module(compiled))
    for computation in module.control_computations:
        for i in computation.instructions:
            if i.side_effect or i.opcode in ("infeed", "outfeed", "send", "recv"):
                return f"results are not compared: {i.name} has side effects; it cannot run twice"
    return ""


def difference(expected: Any, found: Any) -> str:
    """Names the first output that differs in type, shape or a bit, by its path in the pytree, or
    says that the pytrees differ; "" if all is equal.
    """
    leaves, tree = jax.tree.flatten_with_path(expected)
    if jax.tree.structure(found) != tree:
        return "the outputs' structure"
    for (path, a), b in zip(leaves, jax.tree.leaves(found), strict=True):
        if _bits(a) != _bits(b):
            return f"output{jax.tree_util.keystr(path)}"
    return ""


def report(name: str, where: str) -> str:
    """Returns the warning that planned results of `name` differ from XLA's own at `where`."""
    return (
        f"planned results of {name} differ from XLA's own at {where}; XLA's own executable is used "
        "from now on. This is a bug: please report it with `step.lower(...).as_text()`"
    )


def _bits(leaf: Any) -> tuple[Any, ...]:
    """Returns what two equal arrays have in common: type, shape and bytes (of keys, their data).
    For an array on devices of several processes: those of each local shard.
    """
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return tuple(_bits(np.asarray(shard.data)) for shard in leaf.addressable_shards)
    array = np.asarray(leaf)
    return str(array.dtype), array.shape, array.tobytes()
