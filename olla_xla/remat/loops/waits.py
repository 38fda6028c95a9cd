"""Which slices of scan residuals the instructions of a loop's body wait for."""

import functools
import operator
from collections.abc import Callable, Collection, Iterable

from hlo.module import Instruction
from olla_xla.remat.loops.body import LoopBody
from olla_xla.remat.loops.nodes import Node


class Waits:
    """Finds which slices of scan residuals an instruction waits for without using them.

    An instruction waits for all slices that its operands and control predecessors need. One
    collective may transfer several arrays, so some of these slices may be none that it uses:
    `joined_with` gives them.

    Args:
      body: of the backward loop. slices: dynamic-slices of scan residuals in it.
    """

    def __init__(self, body: LoopBody, slices: Collection[Instruction]) -> None:
        self._bits = {i: 1 << k for k, i in enumerate(slices)}
        self._read = self._parts(body, lambda node: node.operands)
        self._made_of = self._parts(body, body.made_of)
        within: dict[Instruction, int] = {}
        for node in body.at.values():
            if bit := self._bits.get(node.i, 0):
                within[node.owner] = within.get(node.owner, 0) | bit
        self._before: dict[Instruction, int] = {}
        for i in body.computation.instructions:
            before = [self._before[o] for o in (*i.operands, *i.control_predecessors)]
            self._before[i] = functools.reduce(operator.or_, before, within.get(i, 0))

    def _parts(self, body: LoopBody, given: Callable[[Node], Iterable[Node]]) -> dict[Node, int]:
        """Node -> bit set of the slices that it is made of; `given` gives the nodes that it is made
        of directly, such as its operands.
        """
        parts: dict[Node, int] = {}
        for node in body.at.values():  # operands first
            own = self._bits.get(node.i, 0)
            parts.setdefault(
                node, functools.reduce(operator.or_, [parts[o] for o in given(node)], own)
            )
        return parts

    def joined_with(self, i: Instruction, node: Node) -> list[Instruction] | None:
        """Slices that `i`, whose value is `node`, waits for only because a collective transfers
        them with what it needs. None if it also waits for slices for another reason.
        """
        if self._before[i] != self._read[node]:
            return None
        late = self._before[i] & ~self._made_of[node]
        return [k for k, bit in self._bits.items() if bit & late]
