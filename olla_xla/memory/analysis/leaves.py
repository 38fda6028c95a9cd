"""What a function takes and returns, array by array, and which arguments could be donated.

Nothing heavy is imported: `olla_xla.plan` looks at it on every compile.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from hlo.shapes import ShapeIndex

__all__ = ["Leaf", "not_donated", "other_form", "parameter_of", "place_of"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array that a function takes or returns.

    Attributes:
      path: in the pytree of arguments or results.
      shape, dtype: as JAX has them. bytes: of the whole array.
      donated: by the caller; False for results.
      number: of the entry parameter, or of the result; None for arguments that are not passed.
      layout: as text, equal where layouts are. sharding: JAX's, or None.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    donated: bool = False
    number: int | None = None
    layout: str = ""
    sharding: Any = None

    @property
    def type(self) -> str:
        """Dtype and shape: "float32[8,128]"."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def not_donated(
    taken: Sequence[Leaf],
    free: Sequence[Leaf],
    aliased: set[tuple[int, ShapeIndex]],
) -> list[tuple[Leaf, Leaf]]:
    """Arguments that were not donated, each with an output that could take over its memory.

    An output at the same place in its pytree comes first, then any of the same type.

    Args:
      taken: the arguments. free: outputs that take memory of their own.
      aliased: (number, index) of the parameters that outputs take over.
    """
    left = list(free)
    waiting = [
        a
        for a in taken
        if not a.donated and a.number is not None and parameter_of(a) not in aliased
    ]
    found: dict[str, tuple[Leaf, Leaf]] = {}
    for strict in (True, False):
        for argument in waiting:
            if argument.path in found or not argument.bytes:
                continue
            fits = [
                r
                for r in left
                if r.type == argument.type
                and not other_form(argument, r)
                and (not strict or place_of(r.path) == place_of(argument.path))
            ]
            if fits:
                found[argument.path] = (argument, fits[0])
                left.remove(fits[0])
    return list(found.values())


def parameter_of(leaf: Leaf) -> tuple[int, ShapeIndex]:
    """(number, index) of the entry parameter that an argument is; (-1, ()) where it is none."""
    return (-1 if leaf.number is None else leaf.number), ()


_HEAD = re.compile(r"^\w+(\[\d+\])?")


def place_of(path: str) -> str:
    """A path in its pytree, without the argument's name or the result's number."""
    return _HEAD.sub("", path, count=1)


def other_form(argument: Leaf, result: Leaf) -> str:
    """Why an output of the same type cannot take over an argument's memory as it is, or ""."""
    if argument.layout != result.layout:
        return f"layout: it is laid out {argument.layout}, output {result.path} {result.layout}"
    ours, theirs = argument.sharding, result.sharding
    if ours is None or theirs is None or ours.is_equivalent_to(theirs, len(argument.shape)):
        return ""
    return f"sharding: it is sharded {_spec(ours)}, output {result.path} {_spec(theirs)}"


def _spec(sharding: Any) -> str:
    return str(getattr(sharding, "spec", type(sharding).__name__))
