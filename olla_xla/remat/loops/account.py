"""What loops keep and what they do without under a plan, stack by stack."""

from __future__ import annotations

import dataclasses

from hlo.module import Module
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.pairs import pairs

__all__ = ["StackRow", "stack_rows"]


@dataclasses.dataclass(frozen=True)
class StackRow:
    """A stack of one loop.

    Attributes:
      loop: name of the while that writes it. turns: slices that it has.
      bytes: of all slices. kept: whether the plan keeps it.
      op_name, location: JAX's name of what is stacked and "file:line" of it, or "".
    """

    loop: str
    turns: int
    bytes: int
    kept: bool
    op_name: str
    location: str


def stack_rows(module: Module, plan: Plan) -> list[StackRow]:
    """The stacks of the loops that a plan changes, largest first.

    Args:
      module: as XLA scheduled it. plan: made for it.
    """
    gone = {(writer, reader): set(dropped) for writer, reader, dropped, _ in plan.loops}
    rows = []
    for pair in pairs(module, plan.target):
        dropped = gone.get((pair.writer.i.name, pair.reader.i.name))
        if dropped is None:
            continue
        for stack in pair.stacks:
            made = stack.value.i
            rows.append(
                StackRow(
                    pair.writer.i.name,
                    pair.writer.turns,
                    stack.bytes,
                    stack.written not in dropped,
                    made.op_name or stack.update.i.op_name,
                    made.location or stack.update.i.location,
                )
            )
    return sorted(rows, key=lambda row: (-row.bytes, row.kept))
