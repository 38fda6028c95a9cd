"""Which slices of scan residuals the instructions of a loop's body wait for."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection

from hlo.module import Instruction
from olla_xla.remat.loops.body import Body
from olla_xla.remat.loops.nodes import Node

__all__ = ["Waits"]


class Waits:
    """Which slices of scan residuals the instructions of a loop's body wait for.

    Args:
      body: of the loop. slices: dynamic-slices of scan residuals.
    """

    def __init__(self, body: Body, slices: Collection[Instruction]) -> None:
        bits = {i: 1 << k for k, i in enumerate(slices)}
        self._parts: dict[Node, int] = {}
        for node in body.at.values():  # operands first
            parts = [self._parts[o] for o in node.operands]
            self._parts.setdefault(node, functools.reduce(operator.or_, parts, bits.get(node.i, 0)))
        within: dict[Instruction, int] = {}
        for node in body.at.values():
            if bit := bits.get(node.i, 0):
                within[node.owner] = within.get(node.owner, 0) | bit
        self._before: dict[Instruction, int] = {}
        for i in body.computation.instructions:
            before = [self._before[o] for o in (*i.operands, *i.control_predecessors)]
            self._before[i] = functools.reduce(operator.or_, before, within.get(i, 0))

    def only_for_parts(self, i: Instruction, node: Node) -> bool:
        """Whether an instruction waits for no other slices than those that a result is made of."""
        return self._before[i] == self._parts[node]
