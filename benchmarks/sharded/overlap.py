"""The overlap of a module's transfers with computation, and the order of its collectives."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from hlo.module import Module
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel

_COLLECTIVES = (
    "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all "
    "recv reduce-scatter send"
).split()


@dataclasses.dataclass(frozen=True)
class Overlap:
    """The overlap of one module.

    Attributes:
      order: the collectives of each computation in the order they begin, as (name, opcode without
        -start). XLA's last passes may name them anew.
      hidden: predicted seconds of what runs between each start and its done, by the start's name
        and the operator's.
      operators: names of all that runs.
    """

    order: Mapping[str, tuple[tuple[str, str], ...]]
    hidden: Mapping[str, Mapping[str, float]]
    operators: frozenset[str]

    @property
    def seconds(self) -> float:
        """Predicted seconds of all work that runs during any transfer."""
        return sum(sum(between.values()) for between in self.hidden.values())

    def moved(self, other: Overlap, free: Collection[str] = ()) -> tuple[str, ...]:
        """Computations in which another module runs the same collectives in another order.

        Args:
          other: of that one. free: opcodes that may run at any time.
        """
        both = self.order.keys() & other.order.keys()
        one, two = (
            {n: [pair for pair in o.order[n] if pair[1] not in free] for n in both}
            for o in (self, other)
        )
        return tuple(sorted(n for n in both if _differ(one[n], two[n])))

    def least_kept(self, other: Overlap) -> float:
        """The smallest fraction of a transfer's overlapped time that another module keeps.

        Work that the other module does not run at all, such as writing scan residuals that are
        recomputed, is left out. The result is 1.0 if all is kept.
        """
        parts = [1.0]
        for start in self.hidden.keys() & other.hidden.keys():
            left = {n: s for n, s in self.hidden[start].items() if n in other.operators and s > 0}
            if left:
                kept = sum(s for n, s in left.items() if n in other.hidden[start])
                parts.append(kept / sum(left.values()))
        return min(parts)


def _differ(one: Sequence[tuple[str, str]], other: Sequence[tuple[str, str]]) -> bool:
    """Whether the instructions that both have follow each other in another order.

    XLA names some anew: where none runs more or less often, neither may their opcodes.
    """
    common = dict(one).keys() & dict(other).keys()
    names = ([name for name, _ in order if name in common] for order in (one, other))
    kinds = [[kind for _, kind in order] for order in (one, other)]
    first, second = kinds
    moved = collections.Counter(first) == collections.Counter(second) and first != second
    return next(names) != next(names) or moved


def overlap(module: Module, target: str) -> Overlap:
    """Reads the schedule of a module.

    Args:
      module: scheduled. target: "cpu" or "cuda", for predicted times.
    """
    cost = CostModel(device(target), target)
    order: dict[str, tuple[tuple[str, str], ...]] = {}
    hidden: dict[str, dict[str, float]] = {}
    operators: set[str] = set()
    for computation in module.control_computations:
        schedule = computation.schedule or ()
        begun = [(i.name, i.opcode.removesuffix("-start")) for i in schedule]
        order[computation.name] = tuple(pair for pair in begun if pair[1] in _COLLECTIVES)
        step = {i: k for k, i in enumerate(schedule)}
        for k, i in enumerate(schedule):
            if i.opcode.endswith("-done"):
                start = i.operands[0]
                between = schedule[step[start] + 1 : k]
                hidden[start.name] = {b.name: cost.seconds(b) for b in between}
        operators |= {i.name for i in schedule}
    return Overlap(order, hidden, frozenset(operators))
