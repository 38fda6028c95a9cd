"""Keeps what loops begin every so many turns with, and runs the turns in between again.

Of N turns, every k-th is kept: with the last one, so many before the end. Counted from there, turn
i stands at u = i + p, where p completes the last ones at the beginning to k, and in segment u // k.

- The writing loop has an array `few` of a slice for each segment. All turns of a segment write the
  slice of the next one, so that this ends as the segment begins; the first turn of all writes slice
  0. An array `since` of k slices gets what every turn begins with; that of the last k stays.
- The reading loop goes back, a turn for each of the other's. It takes what that began with out of
  `since`. In the place that this leaves free it puts what a turn of the segment before began with,
  which it takes out of `few`; runs that turn again; and puts what comes of it back into `few`. So
  when it has gone back through a segment, it has run the one before again, in order.

In a segment with an even number the slices of `since` are its turns' in order, in one with an odd
number in reversed order: the turn of the segment before then belongs where one was just taken. What
would be before turn 0 is run on whatever is there, and goes into the last slice of `few`, which
nothing reads: the turns of the last segment are all in `since`. XLA clamps indices to the array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hlo import xla_pb2
from hlo.module import HloError
from hlo.rewrite.bodies import Body, Names
from hlo.rewrite.fused_body import FusedBody
from hlo.rewrite.loop_edit import Given, LoopEdit

__all__ = ["Places", "Rerun", "Ring", "Segments", "kept_in"]

_Instruction = xla_pb2.HloInstructionProto


class Ring(NamedTuple):
    """An array of slices that every turn of a loop writes one of.

    Attributes:
      name: part of the names of what belongs to it. slices: how many.
      at: the slice of a turn, in a fused computation, for what counts turns outside it.
    """

    name: str
    slices: int
    at: Callable[[FusedBody, _Instruction], _Instruction]


class Segments:
    """The turns of a loop, divided.

    Args:
      turns: of the loop. every: turns of a segment, at least 2 and fewer than there are.

    Attributes:
      every: as given. count: segments.

    Raises:
      HloError: they are too many to be counted in 32 bits, or there is nothing to divide.
    """

    def __init__(self, turns: int, every: int) -> None:
        self.every = every
        self.count = -(-turns // every)
        self._missing = self.count * every - turns
        if not 2 <= every < turns or 4 * (turns + every) >= 1 << 31:
            raise HloError(f"{turns} turns cannot be kept at every {every}th")

    def kept(self, inner: FusedBody, turn: _Instruction) -> _Instruction:
        """The slice of `few` that a turn of the writing loop writes."""
        here = inner.integer("add", turn, self._missing + self.every - 1)
        segment = inner.integer("divide", here, self.every)
        return inner.integer("minimum", segment, turn)  # turn 0 alone has a slice of its own

    def since(self, inner: FusedBody, turn: _Instruction) -> _Instruction:
        """The slice of `since` that is a turn's."""
        here = inner.integer("add", turn, self._missing)
        rest = inner.integer("remainder", here, 2 * self.every)
        back = inner.integer("add", inner.integer("negate", rest), 2 * self.every - 1)
        return inner.integer("minimum", rest, back)

    def before(self, inner: FusedBody, turn: _Instruction) -> _Instruction:
        """The slice of `few` for the segment before that of a turn."""
        here = inner.integer("add", turn, self._missing)
        return inner.integer("add", inner.integer("divide", here, self.every), -1)

    def again(self, inner: FusedBody, turn: _Instruction) -> _Instruction:
        """The turn that the reading loop runs again when it goes back to a turn; maybe below 0."""
        here = inner.integer("add", turn, self._missing)
        begin = inner.integer("multiply", inner.integer("divide", here, self.every), 2 * self.every)
        mirrored = inner.integer("subtract", begin, here)
        return inner.integer("add", mirrored, -1 - self._missing)

    def after(self, inner: FusedBody, turn: _Instruction) -> _Instruction:
        """The slice of `few` for what comes of that: the last where it is before turn 0."""
        before_first = inner.integer("minimum", inner.integer("negate", self.again(inner, turn)), 1)
        away = inner.integer("multiply", inner.integer("maximum", before_first, 0), self.count)
        return inner.integer("maximum", self.before(inner, turn), away)


def kept_in(segments: Segments) -> tuple[Ring, Ring]:
    """The arrays `few` and `since` of the writing loop."""

    def few(inner: FusedBody, counter: _Instruction) -> _Instruction:
        return segments.kept(inner, inner.parameter(counter))

    def since(inner: FusedBody, counter: _Instruction) -> _Instruction:
        return segments.since(inner, inner.parameter(counter))

    return Ring("few", segments.count, few), Ring("since", segments.every, since)


class Places(NamedTuple):
    """Which elements of the reading loop's state the arrays are.

    Attributes:
      few, since: of each kept element; -1 where the latter is not there.
      residuals: `since` of each.
    """

    few: list[int]
    since: list[int]
    residuals: list[int]


class Change(Protocol):
    """What changes a module."""

    names: Names

    def fused_body(self, name: str) -> FusedBody:
        """A new fused computation, for the fusion of this name."""
        ...


class Rerun:
    """The turns that the reading loop runs again.

    Args:
      change: of the module. edit: with checkpoints. body: of the reading loop.
      places: of the arrays in that loop's state.
    """

    def __init__(self, change: Change, edit: LoopEdit, body: Body, places: Places) -> None:
        assert edit.checkpoints is not None
        self._change = change
        self._edit = edit
        self._checkpoints = edit.checkpoints
        self._segments = Segments(edit.turns, edit.checkpoints.every)
        self._body = body
        self._places = places

    def begin(self) -> dict[str, _Instruction]:
        """What the turn that is run again begins with, and the one gone back to, by name."""
        made = {}
        if self._checkpoints.again:
            name = self._new(self._checkpoints.again)
            inner = self._change.fused_body(name)
            made[name] = self._add(inner, name, self._segments.again(inner, self._turn(inner)))
        residuals = zip(self._checkpoints.residuals, self._places.residuals, strict=True)
        held = [(residual.held, place) for residual, place in residuals]
        elements = list(zip(self._checkpoints.kept, *self._places[:2], strict=True))
        held += [(kept.held, since) for kept, _, since in elements if kept.held]
        for name, since in held:
            made[name] = self._taken(name, since, self._segments.since)
        for kept, few, since in elements:
            begun = made[kept.begun] = self._taken(kept.begun, few, self._segments.before)
            if kept.held:
                self._put(since, begun, self._segments.since)
        return made

    def end(self, value: Callable[[Given], _Instruction]) -> None:
        """Keeps what comes of the turn that is run again; `value` finds it in the body."""
        residuals = zip(self._checkpoints.residuals, self._places.residuals, strict=True)
        for residual, since in residuals:
            self._put(since, value(residual.again), self._segments.since)
        for kept, few in zip(self._checkpoints.kept, self._places.few, strict=True):
            early = bool(self._checkpoints.residuals)
            self._put(few, value(kept.following), self._segments.after, early=early)

    def _new(self, name: str) -> str:
        if self._change.names.new(name) != name:
            raise HloError(f"the module has {name} already; plan it again")
        return name

    def _turn(self, inner: FusedBody) -> _Instruction:
        """The turn that the reading loop goes back to."""
        return inner.index(self._body.named(self._edit.counter), self._edit.turn)

    def _add(
        self, inner: FusedBody, name: str, root: _Instruction, *, early: bool = False
    ) -> _Instruction:
        return self._body.add(inner.fusion(name, root, "kLoop", _Instruction()), early=early)

    def _taken(
        self, name: str, element: int, at: Callable[[FusedBody, _Instruction], _Instruction]
    ) -> _Instruction:
        """One slice of an array of the state."""
        inner = self._change.fused_body(self._new(name))
        whole = self._body.element(element)
        return self._add(
            inner, name, inner.sliced(whole, whole.shape, at(inner, self._turn(inner)), 0)
        )

    def _put(
        self,
        element: int,
        value: _Instruction,
        at: Callable[[FusedBody, _Instruction], _Instruction],
        *,
        early: bool = True,
    ) -> None:
        """Writes one slice of an array of the state: early, so that the slice does not live on."""
        name = self._change.names.new(f"{value.name}.put")
        inner = self._change.fused_body(name)
        root = inner.update(self._body.element(element), value, at(inner, self._turn(inner)))
        added = self._add(inner, name, root, early=early)
        self._body.root().operand_ids[element] = added.id
