"""What a module does while its transfers run: collectives in their order, work before a done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hlo.module import Module
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel

__all__ = ["Overlap", "overlap"]

_COLLECTIVES = (
    "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all "
    "recv reduce-scatter send"
).split()


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Of one module.

    Attributes:
      order: names of the collectives of each computation, in the order they run.
      hidden: predicted seconds of what runs between each start and its done, by the start's name.
    """

    order: Mapping[str, tuple[str, ...]]
    hidden: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """All that runs while something is under way."""
        return sum(self.hidden.values())

    def moved(self, other: Overlap) -> tuple[str, ...]:
        """Computations in which another module runs the same collectives in another order."""
        both = self.order.keys() & other.order.keys()
        return tuple(sorted(name for name in both if self.order[name] != other.order[name]))

    def least_kept(self, other: Overlap) -> float:
        """The least part of any start's seconds that another module has too; 1 without starts."""
        parts = [
            other.hidden[name] / before
            for name, before in self.hidden.items()
            if before > 0 and name in other.hidden
        ]
        return min(parts, default=1.0)


def overlap(module: Module, target: str) -> Overlap:
    """Reads the schedule of a module.

    Args:
      module: scheduled. target: "cpu" or "cuda", for predicted times.
    """
    cost = CostModel(device(target), target)
    order: dict[str, tuple[str, ...]] = {}
    hidden: dict[str, float] = {}
    for computation in module.control_computations:
        schedule = computation.schedule or ()
        kinds = [i.opcode.removesuffix("-start").removesuffix("-done") for i in schedule]
        order[computation.name] = tuple(
            i.name for i, kind in zip(schedule, kinds, strict=True) if kind in _COLLECTIVES
        )
        step = {i: k for k, i in enumerate(schedule)}
        for k, i in enumerate(schedule):
            if i.opcode.endswith("-done"):
                start = i.operands[0]
                between = schedule[step[start] + 1 : k]
                hidden[start.name] = sum(cost.seconds(b) for b in between)
    return Overlap(order, hidden)
