"""Ways to make a value of the forward loop's iteration in the backward loop."""

from __future__ import annotations

import dataclasses

from hlo.async_collective_fusion import OwnPart
from hlo.module import Instruction
from olla_xla.remat.loops.nodes import Node

__all__ = ["ConcatOperand", "Recipe"]


@dataclasses.dataclass(frozen=True, eq=False)
class ConcatOperand:
    """What a scan residual's slices hold as a part: each is a concatenation, as of steps in one
    iteration.

    Attributes:
      whole: number of the slices. made: the concatenation.
      node: what it is given there. start: first index of it along the concatenation's dimension.
    """

    whole: int
    made: Node
    node: Node
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """How to make a value.

    Attributes:
      node: the value. owner: the instruction that is run again for it.
      inside: nodes inside a fusion -> None, of what it is given there; a fusion without any runs
        as it is. needs: numbers of the values that it is given.
      between: whether the owner stands between the loops, and moves all slices of a scan residual.
      narrowed: whether it is what a scan residual has in a wider type, converted back.
      stacked: whether it is an element of the forward loop's state that gets a scan residual of its
        own.
      exchanged: whether the owner is a collective, which devices run once more.
      relaid: what the backward loop has itself of it, in another layout; else None.
      part: of a fusion that runs parts of a transfer, what runs again: all but that.
      updated: numbers of the owner's operands that it puts results into, if it runs as it is but
        for these, of which the copy has arrays of few slices.
    """

    node: Node
    owner: Instruction
    inside: dict[Node, None] | None
    needs: tuple[int, ...]
    between: bool = False
    narrowed: bool = False
    stacked: bool = False
    exchanged: bool = False
    updated: tuple[int, ...] = ()
    part: OwnPart | None = None
    relaid: Instruction | None = None
