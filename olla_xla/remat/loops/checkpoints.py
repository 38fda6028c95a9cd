"""Loops that keep every k-th of what their turns begin with, and run the turns in between again.

What the reading loop cannot make of anything else is what the turn began with that it goes back to.
A stack of that has a slice for each of N turns. Kept for every k-th turn, with the turns since the
last one that is kept, it takes N / k + k slices, about 2 sqrt(N) at best; for that all turns run
once more. (Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", 2016.)
`hlo.rewrite.checkpoints` says which slice is whose.
"""

from __future__ import annotations

import dataclasses
import math

from hlo.rewrite.loop_edit import Checkpoints, Given, Kept
from olla_xla.errors import PlanMismatchError
from olla_xla.remat.loops.again import Again, New
from olla_xla.remat.loops.nodes import Affine
from olla_xla.remat.loops.pairs import Pair
from olla_xla.remat.loops.ways import Way, Ways

__all__ = ["Rerun", "can_be_kept", "least_every", "slices"]

_COUNTERS = (4, 5)  # s32 and s64: what is below turn 0 must be below zero
_FEWEST_TURNS = 6  # of fewer, what is kept is no less than all
_MOST_TURNS = 1 << 20  # as many as the referee follows one by one


def can_be_kept(pair: Pair) -> bool:
    """Whether a pair goes back turn by turn, and what its turns begin with can be counted off."""
    turns = pair.writer.turns
    back = Affine((pair.reader.counter,), -1, turns - 1)
    kind = pair.writer.start[pair.writer.counter].shape.element_type
    return pair.turn == back and kind in _COUNTERS and _FEWEST_TURNS <= turns <= _MOST_TURNS


def slices(turns: int, every: int) -> int:
    """Slices that are kept of an element of a loop's state, at every so many of its turns."""
    return -(-turns // every) + every


def least_every(pair: Pair, checkpoints: Checkpoints) -> int:
    """For which number of turns from one that is kept to the next least is kept."""
    turns, state = pair.writer.turns, pair.writer.start
    few = sum(state[k.element].shape.bytes for k in checkpoints.kept)
    since = sum(state[k.element].shape.bytes for k in checkpoints.kept if k.held)
    best = math.isqrt(turns * few // max(since, 1))
    tried = range(max(best // 2, 2), max(min(2 * best + 2, turns // 2), 2) + 1)
    return min(tried, key=lambda k: -(-turns // k) * few + k * since)


class Rerun(Again):
    """The turns that run again.

    Args:
      pair: of loops, that `can_be_kept`. new: what a change of them adds.
      every: turns from one that is kept to the next.
    """

    def __init__(self, pair: Pair, new: New, every: int) -> None:
        bare = dataclasses.replace(pair, stacks=())
        super().__init__(bare, Ways(bare, None), {}, new)
        self._every = every
        self._begun: dict[int, str] = {}
        self._held: dict[int, str] = {}
        self._again = ""

    def held(self, way: Way) -> Given:
        """What the turn that the reading loop goes back to began with, of an element of a state."""
        (element,) = way.node.index
        if element not in self._held:
            self._begin(element)
            self._held[element] = self._new.name(f"{self._named(element)}.held")
        return Given(made=self._held[element])

    def checkpoints(self) -> Checkpoints | None:
        """What is kept for all that was asked for; None if nothing was.

        Raises:
          PlanMismatchError: a turn cannot be run again.
        """
        following: dict[int, Given] = {}
        while missing := [k for k in self._begun if k not in following]:  # one may need another
            for k in missing:
                end = self._body.root[(k,)].behind
                following[k] = self._value(self._body.number(end))
        kept = (
            Kept(k, following[k], begun, self._held.get(k, "")) for k, begun in self._begun.items()
        )
        return Checkpoints(self._every, tuple(kept), self._again) if self._begun else None

    def _there(self, number: int) -> Given | None:
        if self._ways.is_turn(number):
            self._again = self._again or self._new.name(f"{self._pair.reader.i.name}.again")
            return Given(made=self._again)
        element = self._ways.element(number)
        return None if element is None else Given(element=self._element(element))

    def _stacked(self, way: Way) -> Given:
        (element,) = way.node.index
        return Given(made=self._begin(element))

    def _begin(self, element: int) -> str:
        """The name for what the turn that is run again begins with."""
        if element not in self._begun:
            self._begun[element] = self._new.name(f"{self._named(element)}.begun")
        return self._begun[element]

    def _named(self, element: int) -> str:
        (parameter,) = self._body.computation.parameters
        return f"{parameter.name}.{element}"

    def _updated(self, number: int) -> Given | None:
        way = self._ways.way(number)
        if way is not None and way.updated >= 0:
            raise PlanMismatchError("what a turn ends with is made as part of a stack")
        return None
