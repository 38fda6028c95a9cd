"""What `as_policy` returns: the scan residuals that a plan keeps or spills, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from olla_xla.memory.sources import short_line


class Unnamed(NamedTuple):
    """An array that a forward loop (scan) saves for its backward loop, without a `checkpoint_name`.

    Attributes:
      bytes: of the slices of all iterations. operation: that makes it, as "dot_general", or "".
      line: "file:line" of the operation, or "". spilled: whether it is kept in host memory.
    """

    bytes: int
    operation: str
    line: str
    spilled: bool = False


@dataclasses.dataclass(frozen=True)
class CheckpointPolicy:
    """The scan residuals that a plan keeps, as a `jax.checkpoint` policy; `str` gives its code.
    A scan residual is what the forward loop of a scan saves for the backward loop. Inputs of a
    scan's body are kept by every policy, and are in no list.

    Attributes:
      names: of residuals that are kept, in the order of the program.
      recomputed: names of residuals that are recomputed.
      unnamed: residuals that are kept and have no name, largest first. Unless they get names, the
        policy recomputes them, and its total differs from the plan's.
      offloaded: names of residuals that are kept in host memory.
    """

    names: tuple[str, ...]
    recomputed: tuple[str, ...]
    unnamed: tuple[Unnamed, ...]
    offloaded: tuple[str, ...] = ()

    def policy(self) -> Callable[..., Any]:
        """Makes the JAX policy, for `jax.checkpoint(body, policy=...)` around a scan's body."""
        if not self.offloaded:
            return jax.checkpoint_policies.save_only_these_names(*self.names)
        return jax.checkpoint_policies.save_and_offload_only_these_names(**self._offloading())

    def _offloading(self) -> dict[str, Any]:
        lists = [f"names_which_can_be_{what}" for what in ("saved", "offloaded")]
        given = list(self.names), list(self.offloaded), "device", "pinned_host"
        return dict(zip((*lists, "offload_src", "offload_dst"), given, strict=True))

    def maxtext(self) -> str:
        """Returns MaxText's flags of it: "remat_policy=custom NAME=device|offload|remat ..."."""
        places = {"device": self.names, "offload": self.offloaded, "remat": self.recomputed}
        flags = [f"{name}={place}" for place, names in places.items() for name in names]
        return " ".join(["remat_policy=custom", *flags])

    def __str__(self) -> str:
        """Python code of the policy, with a comment line for each residual that has no name."""
        called, given = "save_only_these_names", ", ".join(map(repr, self.names))
        if self.offloaded:
            called = "save_and_offload_only_these_names"
            given = ", ".join(f"{name}={value!r}" for name, value in self._offloading().items())
        lines = [f"jax.checkpoint_policies.{called}({given})"]
        lines += [
            f"# unnamed residual{' (spilled)' * one.spilled}: {one.bytes / 2**20:,.1f} MB of "
            f"{one.operation or 'a value'}{f' at {short_line(one.line)}' * bool(one.line)}"
            for one in self.unnamed
        ]
        return "\n".join(lines)
