"""The loops of a module: where they run, how often, and what they carry."""

from __future__ import annotations

import dataclasses
from typing import Any

from hlo.module import Computation, Instruction
from hlo.trip_count import trip_count
from olla_xla.analysis.category import Category
from olla_xla.analysis.live_tensor import LiveTensor
from olla_xla.analysis.memory_view import MemoryView


@dataclasses.dataclass(frozen=True)
class LoopView:
    """One while loop of a module; sizes in bytes.

    Attributes:
      name: of the HLO instruction. line: the user's line that makes it, or "".
      start, stop: half-open steps of the schedule that its body takes, counted for one iteration.
      trips: number of iterations, or None where XLA does not know.
      inside_bytes: the most memory in use while it runs.
      stacks: arrays that it writes slice by slice, largest first.
    """

    name: str
    line: str
    start: int
    stop: int
    trips: int | None
    inside_bytes: int
    stacks: tuple[LiveTensor, ...]

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with every field by name."""
        return {**dataclasses.asdict(self), "stacks": [s.to_dict() for s in self.stacks]}


def loop_views(view: MemoryView) -> tuple[LoopView, ...]:
    """The while loops of a module in execution order, outer ones before inner ones."""
    memory, describer = view._occupancy, view._describer
    step = {i: k for k, i in enumerate(memory.instructions) if i is not None}
    in_use = memory.in_use()
    found = []
    for loop, stop in step.items():
        if loop.opcode != "while":
            continue
        inside = [step[i] for c in loop.called for i in _below(c) if i in step]
        start = min(inside, default=stop)
        stacks = [
            describer.tensor(v, (int(memory.start[k]), int(memory.stop[k])), None)
            for k, v in enumerate(memory.values)
            if v.instruction is loop
            and describer.category(v) in (Category.STACKS, Category.GRADIENTS)
        ]
        found.append(
            LoopView(
                name=loop.name,
                line=describer.line(loop),
                start=start,
                stop=stop + 1,
                trips=trip_count(loop),
                inside_bytes=int(in_use[start : stop + 1].max(initial=0)),
                stacks=tuple(sorted(stacks, key=lambda t: (-t.bytes, t.name))),
            )
        )
    return tuple(sorted(found, key=lambda loop: (loop.start, -loop.stop)))


def _below(computation: Computation) -> list[Instruction]:
    """All instructions that a computation runs, those of what it calls included."""
    found = []
    for i in computation.instructions:
        found += [i, *(inner for c in i.called_control for inner in _below(c))]
    return found
