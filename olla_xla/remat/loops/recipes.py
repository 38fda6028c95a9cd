"""How a value of the forward loop's iteration is made in the backward loop."""

from __future__ import annotations

import dataclasses

from hlo.async_collective_fusion import OwnPart
from hlo.module import Instruction
from olla_xla.remat.loops.nodes import Node


@dataclasses.dataclass(frozen=True, eq=False)
class ConcatOperand:
    """A value that a scan residual holds as one part of a concatenation.

    Attributes:
      whole: value number of the residual's slice. made: the concatenation.
      node: the operand. start: first index of it along the concatenation's dimension.
    """

    whole: int
    made: Node
    node: Node
    start: int


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """How to make one value of the forward loop's iteration in the backward loop.

    Attributes:
      node: the value. owner: the instruction that is run again for it.
      inside: the nodes (keys of a dict) at which a fusion is cut: operands of the copy; None: the
        fusion is copied whole. needs: numbers of the values that the copy reads.
      between: of an owner that stands between the loops, and moves all slices of a scan residual,
        the dimensions that count them (`NewInstruction.slice_axes`); else empty.
      narrowed: whether it is what a scan residual has in a wider type, converted back. stacked:
        whether it is an element of the forward loop's state that gets a scan residual of its own.
      exchanged: whether the owner is a collective, which devices run once more.
      relaid: the backward loop's instruction with the same elements in another layout, or None.
      part: of a fusion that runs parts of a transfer, what runs again: all except these.
      restored: element of the forward loop's state that it is, before `owner` overwrites a part of
        it or after (`is_after`), where the backward loop undoes that; or None.
      updated: numbers of the owner's operands that it writes results into; the copy has arrays of
        `SLOTS` slices for them.
    """

    node: Node
    owner: Instruction
    inside: dict[Node, None] | None
    needs: tuple[int, ...]
    between: tuple[int, ...] = ()
    narrowed: bool = False
    stacked: bool = False
    exchanged: bool = False
    updated: tuple[int, ...] = ()
    part: OwnPart | None = None
    relaid: Instruction | None = None
    restored: int | None = None
    is_after: bool = False
