"""Keeps a loop's state at every k-th iteration only, and reruns iterations to get the others.

N iterations form segments of k, counted from the end, so that the first segment may be shorter.
With p = ceil(N / k) k - N, iteration i has the position u = i + p, in segment u // k.

- The forward loop has an array `few` with a slice for each segment, for the state with which that
  begins. Every iteration writes its initial state: the first of a segment into its segment's slice,
  the others into the next segment's, to be overwritten there; iteration 0 into slice 0. An array
  `since` of k slices gets the initial state of every iteration; those of the last k remain.
- The backward loop goes back one iteration at a time, and takes that one's initial state out of
  `since`. Into the slice that this frees it writes the initial state of an iteration of the segment
  before, which it takes out of `few`. It runs that iteration again, and writes the state that
  results back into `few`. So when it has gone back through a segment, it has run the one before
  again, in order.

In even segments `since` has the iterations in order, in odd ones in reverse: so the freed slice is
that of the iteration that runs again. Iterations before 0 are run on whatever is there; their state
goes into the last slice of `few`, which nothing reads: the iterations of the last segment are all
in `since`. XLA clamps indices to the array.
"""

from collections.abc import Callable
from typing import NamedTuple

from hlo import xla_pb2
from hlo.module import HloError
from hlo.rewrite.fused_body import FusedBody
from hlo.rewrite.loop_edit import Checkpoints, ValueRef
from hlo.rewrite.loop_module import LoopModule

_Instruction = xla_pb2.HloInstructionProto


class Ring(NamedTuple):
    """An array in a loop's state of which each iteration overwrites one slice.

    Attributes:
      name: suffix for the names of its instructions. slices: how many it has.
      at: adds the slice index to a fused body, computed from the counter, an instruction outside.
    """

    name: str
    slices: int
    at: Callable[[FusedBody, _Instruction], _Instruction]


class Segments:
    """The iterations of a loop, divided into segments that are counted from the end.

    Of two arrays of kept states `few` has a slice for each segment, `since` one for each iteration
    of a segment. Methods add instructions to `inner` that compute an index from `iteration`.

    Args:
      iterations: of the loop. every: iterations of a segment, at least 2 and fewer than there are.

    Attributes:
      every: as given. count: number of segments.

    Raises:
      HloError: `every` is out of range, or the iterations are too many for 32-bit integers.
    """

    def __init__(self, iterations: int, every: int) -> None:
        self.every = every
        self.count = -(-iterations // every)
        self._missing = self.count * every - iterations
        if not 2 <= every < iterations or 4 * (iterations + every) >= 1 << 31:
            raise HloError(f"of {iterations} iterations, every {every}th cannot be kept")

    def kept(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the index of the slice of `few` that an iteration of the forward loop writes."""
        here = inner.integer("add", iteration, self._missing + self.every - 1)
        segment = inner.integer("divide", here, self.every)
        # Iteration 0 alone has a slice of its own.
        return inner.integer("minimum", segment, iteration)

    def since(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the index of the slice of `since` with an iteration's initial state.

        Args:
          inner: fused body to which instructions are added. iteration: number of the iteration.
        """
        here = inner.integer("add", iteration, self._missing)
        rest = inner.integer("remainder", here, 2 * self.every)
        back = inner.integer("add", inner.integer("negate", rest), 2 * self.every - 1)
        return inner.integer("minimum", rest, back)

    def before(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the index of the slice of `few` for the segment before the iteration's."""
        here = inner.integer("add", iteration, self._missing)
        return inner.integer("add", inner.integer("divide", here, self.every), -1)

    def again(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes which forward iteration the backward loop reruns in this one; may be below 0."""
        here = inner.integer("add", iteration, self._missing)
        begin = inner.integer("multiply", inner.integer("divide", here, self.every), 2 * self.every)
        mirrored = inner.integer("subtract", begin, here)
        return inner.integer("add", mirrored, -1 - self._missing)

    def after(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the slice of `few` for the state after `again`; the last if that is below 0."""
        before_first = inner.integer(
            "minimum", inner.integer("negate", self.again(inner, iteration)), 1
        )
        away = inner.integer("multiply", inner.integer("maximum", before_first, 0), self.count)
        return inner.integer("maximum", self.before(inner, iteration), away)


def kept_in(segments: Segments) -> tuple[Ring, Ring]:
    """Describes the two arrays of kept states that a forward loop writes: (`few`, `since`)."""

    def few(inner: FusedBody, counter: _Instruction) -> _Instruction:
        return segments.kept(inner, inner.parameter(counter))

    def since(inner: FusedBody, counter: _Instruction) -> _Instruction:
        return segments.since(inner, inner.parameter(counter))

    return Ring("few", segments.count, few), Ring("since", segments.every, since)


class Places(NamedTuple):
    """At which numbers of the backward loop's state the arrays are that hold checkpoints.

    Attributes:
      few, since: for each of `Checkpoints.kept` (see `Segments`); -1 where `since` is missing.
      residuals: for each of `Checkpoints.residuals`, its array `since`.
    """

    few: list[int]
    since: list[int]
    residuals: list[int]


class RerunEdit:
    """Changes the backward loop's body so that it reruns iterations of the forward loop.

    Args:
      module: of the loops. checkpoints: which states are kept.
      places: of the checkpoints' arrays in the backward loop's state.
    """

    def __init__(self, module: LoopModule, checkpoints: Checkpoints, places: Places) -> None:
        self._module = module
        self._checkpoints = checkpoints
        self._segments = Segments(module.edit.iterations, checkpoints.every)
        self._body = module.backward
        self._places = places

    def begin(self) -> dict[str, _Instruction]:
        """Adds reads of kept states; returns name -> instruction. HloError if a name is taken."""
        made = {}
        if self._checkpoints.again:
            name = self._module.names.claim(self._checkpoints.again)
            inner = self._module.fused_body(name)
            made[name] = self._add(inner, name, self._segments.again(inner, self._iteration(inner)))
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

    def end(self, value: Callable[[ValueRef], _Instruction]) -> None:
        """Adds writes of the rerun's results, which `value` finds, into the checkpoints' arrays."""
        residuals = zip(self._checkpoints.residuals, self._places.residuals, strict=True)
        for residual, since in residuals:
            self._put(since, value(residual.again), self._segments.since)
        for kept, few in zip(self._checkpoints.kept, self._places.few, strict=True):
            early = bool(self._checkpoints.residuals)
            self._put(few, value(kept.following), self._segments.after, early=early)

    def _iteration(self, inner: FusedBody) -> _Instruction:
        """Adds the number of the forward iteration that a backward iteration goes back to."""
        return inner.index(self._body.named(self._module.edit.counter), self._module.edit.iteration)

    def _add(
        self, inner: FusedBody, name: str, root: _Instruction, *, early: bool = False
    ) -> _Instruction:
        return self._body.add(inner.fusion(name, root, "kLoop", _Instruction()), early=early)

    def _taken(
        self, name: str, element: int, at: Callable[[FusedBody, _Instruction], _Instruction]
    ) -> _Instruction:
        """Adds a fusion `name` that reads slice `at` of an array, an element of the state."""
        inner = self._module.fused_body(self._module.names.claim(name))
        whole = self._body.element(element)
        return self._add(
            inner, name, inner.sliced(whole, whole.shape, at(inner, self._iteration(inner)), 0)
        )

    def _put(
        self,
        element: int,
        value: _Instruction,
        at: Callable[[FusedBody, _Instruction], _Instruction],
        *,
        early: bool = True,
    ) -> None:
        """Adds a fusion that writes `value` into slice `at` of an array, an element of the state.

        If `early`, it is scheduled before older instructions: the old slice is not kept for long.
        """
        name = self._module.names.new(f"{value.name}.put")
        inner = self._module.fused_body(name)
        root = inner.update(self._body.element(element), value, at(inner, self._iteration(inner)))
        added = self._add(inner, name, root, early=early)
        self._body.root.operand_ids[element] = added.id
