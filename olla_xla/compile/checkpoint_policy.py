"""What `PlannedFunction.as_policy` returns: the scan residuals that a plan keeps, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from olla_xla.memory.sources import short_line


class Unnamed(NamedTuple):
    """A scan residual that a plan keeps and that no `checkpoint_name` names.

    Attributes:
      bytes: of all its slices. operation: that makes it, such as "dot_general", or "".
      line: "file:line" of the operation, or "".
    """

    bytes: int
    operation: str
    line: str


@dataclasses.dataclass(frozen=True)
class CheckpointPolicy:
    """Which scan residuals a plan keeps, as a policy of `jax.checkpoint`; it prints as code.

    Inputs of a scan's body are kept by every policy, and are in no list.

    Attributes:
      names: of residuals that are kept, in the order of the program.
      recomputed: names of residuals that are recomputed.
      unnamed: residuals that are kept and have no name, largest first. Unless they get names, the
        policy recomputes them, and its total differs from the plan's.
    """

    names: tuple[str, ...]
    recomputed: tuple[str, ...]
    unnamed: tuple[Unnamed, ...]

    def policy(self) -> Callable[..., Any]:
        """The policy itself, for `jax.checkpoint(body, policy=...)` around the body of the scan."""
        return jax.checkpoint_policies.save_only_these_names(*self.names)

    def maxtext(self) -> str:
        """MaxText's flags for it: "remat_policy=custom", and "NAME=device" or "NAME=remat"."""
        kept = [f"{name}=device" for name in self.names]
        made = [f"{name}=remat" for name in self.recomputed]
        return " ".join(["remat_policy=custom", *kept, *made])

    def __str__(self) -> str:
        """As code, with a line for each residual that has no name."""
        given = ", ".join(map(repr, self.names))
        lines = [f"jax.checkpoint_policies.save_only_these_names({given})"]
        lines += [
            f"# no name: {one.bytes / 2**20:,.1f} MB of {one.operation or 'a value'}"
            f"{f' at {short_line(one.line)}' * bool(one.line)}"
            for one in self.unnamed
        ]
        return "\n".join(lines)
