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
  results back into `few`. So when it is through a segment, it has run the one before in order.

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
    """Describes an array in a loop's state of which each iteration overwrites one slice.

    Attributes:
      name: suffix for the names of its instructions. slices: how many it has.
      at: adds the instructions that compute the slice's index to a fused computation, from the
        loop's counter, an instruction outside of it; returns the index.
    """

    name: str
    slices: int
    at: Callable[[FusedBody, _Instruction], _Instruction]


class Segments:
    """Divides a loop's iterations into segments, counted from the end, to keep few of its states.

    Of two arrays of iterations' initial states `few` has a slice for each segment, `since` one for
    each iteration of a segment. Methods add integer instructions to a fused computation. Raises
    HloError if `every` is out of range, or the iterations are too many for 32-bit integers.

    Args:
      iterations: of the loop. every: iterations of a segment, at least 2 and fewer than there are.

    Attributes:
      every: as given. count: number of segments.
    """

    def __init__(self, iterations: int, every: int) -> None:
        self.every = every
        self.count = -(-iterations // every)
        self._missing = self.count * every - iterations
        if not 2 <= every < iterations or 4 * (iterations + every) >= 1 << 31:
            raise HloError(f"of {iterations} iterations, every {every}th cannot be kept")

    def kept(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the index at which a forward iteration writes its initial state into `few`.

        That array has a slice for each segment of iterations; iteration 0 writes slice 0, others
        the slice of the first segment that begins with or after them, past the end if none does.
        """
        here = inner.integer("add", iteration, self._missing + self.every - 1)
        segment = inner.integer("divide", here, self.every)
        # Iteration 0 alone has a slice of its own.
        return inner.integer("minimum", segment, iteration)

    def since(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the index of an iteration's initial state in the array `since`.
        That array has a slice for each iteration of one segment.
        """
        here = inner.integer("add", iteration, self._missing)
        rest = inner.integer("remainder", here, 2 * self.every)
        back = inner.integer("add", inner.integer("negate", rest), 2 * self.every - 1)
        return inner.integer("minimum", rest, back)

    def before(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Adds the number of the segment (`every` iterations) before the iteration's own; or -1."""
        here = inner.integer("add", iteration, self._missing)
        return inner.integer("add", inner.integer("divide", here, self.every), -1)

    def again(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes which forward iteration is rerun while the backward loop is at `iteration`.
        It is in the segment before; the number may be below 0.
        """
        here = inner.integer("add", iteration, self._missing)
        begin = inner.integer("multiply", inner.integer("divide", here, self.every), 2 * self.every)
        mirrored = inner.integer("subtract", begin, here)
        return inner.integer("add", mirrored, -1 - self._missing)

    def after(self, inner: FusedBody, iteration: _Instruction) -> _Instruction:
        """Computes the index at which the state after the rerun iteration is written into `few`.

        That array has a slice for each segment. Where the iteration's number (`again`) is below 0,
        the index is past the end, which XLA clamps to the last slice.
        """
        before_first = inner.integer(
            "minimum", inner.integer("negate", self.again(inner, iteration)), 1
        )
        away = inner.integer("multiply", inner.integer("maximum", before_first, 0), self.count)
        return inner.integer("maximum", self.before(inner, iteration), away)


def kept_in(segments: Segments) -> tuple[Ring, Ring]:
    """Describes the arrays into which a forward loop writes the initial states of its iterations.
    Returns one with a slice for each segment, and one with a slice for each iteration of one.
    """

    def few(inner: FusedBody, counter: _Instruction) -> _Instruction:
        return segments.kept(inner, inner.parameter(counter))

    def since(inner: FusedBody, counter: _Instruction) -> _Instruction:
        return segments.since(inner, inner.parameter(counter))

    return Ring("few", segments.count, few), Ring("since", segments.every, since)


class Places(NamedTuple):
    """Numbers of the elements of the backward loop's state that are arrays of checkpoints.

    Attributes:
      few, since: for each of `Checkpoints.kept`, of its array with a slice for each segment of
        iterations, and of its array for the iterations of one segment, -1 if that is missing.
      residuals: for each of `Checkpoints.residuals`, of its array for one segment's iterations.
    """

    few: list[int]
    since: list[int]
    residuals: list[int]


class RerunEdit:
    """Changes the backward loop's body so that it reruns iterations of the forward loop.

    `places` are numbers of elements in the backward loop's state, of arrays of kept states.
    """

    def __init__(self, module: LoopModule, checkpoints: Checkpoints, places: Places) -> None:
        self._module = module
        self._checkpoints = checkpoints
        self._segments = Segments(module.edit.iterations, checkpoints.every)
        self._body = module.backward
        self._places = places

    def begin(self) -> dict[str, _Instruction]:
        """Adds reads of kept states, and the rerun iteration's number, to the backward loop's body;
        returns them by name. What it reads of `few` it also writes into `since`.
        Raises HloError if a name is taken.
        """
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
        """Adds writes of the rerun forward iteration's results into the arrays of kept states.

        Args:
          value: finds the instruction of a result that `Checkpoints` describes.
        """
        residuals = zip(self._checkpoints.residuals, self._places.residuals, strict=True)
        for residual, since in residuals:
            self._put(since, value(residual.again), self._segments.since)
        for kept, few in zip(self._checkpoints.kept, self._places.few, strict=True):
            early = bool(self._checkpoints.residuals)
            self._put(few, value(kept.following), self._segments.after, early=early)

    def _iteration(self, inner: FusedBody) -> _Instruction:
        """Adds the number of the forward iteration that the backward loop is at to `inner`."""
        return inner.index(self._body.named(self._module.edit.counter), self._module.edit.iteration)

    def _add(
        self, inner: FusedBody, name: str, root: _Instruction, *, early: bool = False
    ) -> _Instruction:
        return self._body.add(inner.fusion(name, root, "kLoop", _Instruction()), early=early)

    def _taken(
        self, name: str, element: int, at: Callable[[FusedBody, _Instruction], _Instruction]
    ) -> _Instruction:
        """Adds a fusion `name` that reads a slice of an array in the loop's state.

        Args:
          element: the array's number in the state. at: computes the slice's index in the fusion.
        """
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
        """Adds a fusion that writes `value` as a slice into an array of the loop's state, which is
        the element's value in the next iteration.

        Args:
          element: the array's number in the state. at: computes the slice's index in the fusion.
          early: whether to schedule it before older instructions, so that the old slice can go.
        """
        name = self._module.names.new(f"{value.name}.put")
        inner = self._module.fused_body(name)
        root = inner.update(self._body.element(element), value, at(inner, self._iteration(inner)))
        added = self._add(inner, name, root, early=early)
        self._body.root.operand_ids[element] = added.id
