"""What a function takes and returns, array by array, and which arguments could be donated.

Nothing heavy is imported: `olla_xla.plan` looks at it on every compile.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from hlo.shapes import ShapeIndex


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array that a function takes or returns: a leaf of a pytree.

    Attributes:
      path: in the pytree of arguments or results.
      shape, dtype: as JAX has them. bytes: its size on one device.
      donated: whether the caller donated it; False for results.
      number: of the entry parameter, or of the result; None for arguments that are not passed.
      argnum: of its positional argument, for `donate_argnums`; None for keyword ones and results.
      layout: a text that is equal for equal layouts. sharding: JAX's, or None.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    donated: bool = False
    number: int | None = None
    argnum: int | None = None
    layout: str = ""
    sharding: Any = None

    @property
    def type(self) -> str:
        """The array's dtype and shape as text: "float32[8,128]"."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def not_donated(
    taken: Sequence[Leaf],
    free: Sequence[Leaf],
    aliased: set[tuple[int, ShapeIndex]],
) -> list[tuple[Leaf, Leaf]]:
    """(argument, output) pairs: the argument was not donated, but the output could use its memory.
    Both have one type, layout and sharding; an output at the argument's path comes first. `free`:
    outputs in memory of their own. `aliased`: (number, index) of parameters that outputs take over.
    """
    left = list(free)
    waiting = [
        a
        for a in taken
        if not a.donated and a.number is not None and parameter_of(a) not in aliased
    ]
    pairs: dict[str, tuple[Leaf, Leaf]] = {}
    for strict in (True, False):
        for argument in waiting:
            if argument.path in pairs or not argument.bytes:
                continue
            fits = [
                r
                for r in left
                if r.type == argument.type
                and not other_form(argument, r)
                and (not strict or stands_at(r, argument))
            ]
            if fits:
                pairs[argument.path] = (argument, fits[0])
                left.remove(fits[0])
    return list(pairs.values())


def parameter_of(leaf: Leaf) -> tuple[int, ShapeIndex]:
    """(number, tuple index) of the entry parameter that holds an argument; (-1, ()) if none."""
    return (-1 if leaf.number is None else leaf.number), ()


_ARGUMENT = re.compile(r"^(?:argument \[\d+\]|\w+)")
_RESULT = re.compile(r"^result\[\d+\]")


def stands_at(result: Leaf, argument: Leaf) -> bool:
    """Whether a result's path, such as `.params.w`, is also the path of the argument in its pytree.
    The argument's name is ignored, and the result's number where several are returned.
    """
    place = _ARGUMENT.sub("", argument.path, count=1)
    return place in (result.path.removeprefix("result"), _RESULT.sub("", result.path))


def unlike(what: str, ours: str, result: Leaf, theirs: str) -> str:
    """The sentence "the argument's WHAT is OURS, that of output PATH is THEIRS"."""
    return f"the argument's {what} is {ours}, that of output {result.path} is {theirs}"


def other_form(argument: Leaf, result: Leaf) -> str:
    """How an argument's layout or sharding differs from an output's; "" if not, or not known."""
    if argument.layout != result.layout:
        return unlike("layout", argument.layout, result, result.layout)
    ours, theirs = argument.sharding, result.sharding
    if ours is None or theirs is None or ours.is_equivalent_to(theirs, len(argument.shape)):
        return ""
    return unlike("sharding", _spec(ours), result, _spec(theirs))


def _spec(sharding: Any) -> str:
    return str(getattr(sharding, "spec", type(sharding).__name__))


def to_donate(leaves: Sequence[Any]) -> str:
    """The `jax.jit` option that donates some arguments, such as "donate_argnums=0"; donate_argnames
    if one has no `argnum`. `leaves`: Leafs or DonationRows, which have `path` and `argnum`.
    """
    if any(leaf.argnum is None for leaf in leaves):
        names = dict.fromkeys(_NAME.split(leaf.path, maxsplit=1)[0] for leaf in leaves)
        return f"donate_argnames={_few([repr(name) for name in names])}"
    numbers = sorted({leaf.argnum for leaf in leaves if leaf.argnum is not None})
    return f"donate_argnums={_few([str(number) for number in numbers])}"


_NAME = re.compile(r"[.\[]")


def _few(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"({', '.join(items)})"
