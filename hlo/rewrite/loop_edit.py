"""Descriptions of changes of a pair of loops: what is removed from them and what is added."""

from __future__ import annotations

import dataclasses

from hlo.rewrite.fused_body import Part
from hlo.shapes import ShapeIndex

SLOTS = 2
"""Slices of a scan residual for one iteration only: with a single one XLA would leave out the
index. One is enough where that cannot change how a fusion rounds.
"""


@dataclasses.dataclass(frozen=True)
class ValueRef:
    """Names a value that the backward loop's body can read: a new one, or one there already.

    Attributes:
      made: name of a new instruction. index: shape index of a leaf of its result.
      element: else an element of the state, as numbered before the change; new ones follow.
      own: else an instruction of that body as it was, by name.
      iteration: else the iteration of the forward loop, a scalar integer.
      whole: shape of the scan residual that this is, if one slice of it is meant; else b"". What
        was made with `slots` has fewer slices.
      axis: the dimension of it that counts slices.
      part: a range of all this, if only that is meant.
      copy: which of several arrays that hold the same; all but 0 are copies. Not of a slice.
    """

    made: str = ""
    index: ShapeIndex = ()
    element: int = -1
    own: str = ""
    iteration: bool = False
    whole: bytes = b""
    axis: int = 0
    part: Part | None = None
    copy: int = 0


@dataclasses.dataclass(frozen=True)
class NewInstruction:
    """Describes an instruction to add to the backward loop's body, mostly a copy of a forward one.

    Attributes:
      name: new in the module.
      original: instruction of the forward loop's body that it copies; "" for what is `operands[0]`.
      root: of a fusion that changes, the instruction inside that the copy ends with; else "".
      operands: by number of an operand, of a conditional by that of an array in all its operands;
        of a fusion that changes, by name of an instruction inside.
      slice_axes: where `original` stands beside the loops and reorders all slices, while the copy
        reorders one: the dimensions that count them in its operand, in its result, and in each
        instruction of a fusion. Else empty.
      beside: `original` stands beside the loops, and reads only constants, which are copied too.
      element_type: XLA's number of the type that `operands[0]` is converted to; 0 leaves it.
      layout: shape in whose layout `operands[0]` is copied; b"" leaves it.
      slots: of a fusion that puts results into scan residuals, each operand that is one, its
        dimension that counts slices, and how many the copy is given instead: 1 or `SLOTS`.
      restores: `operands[0]` is an element of the state, of which the iteration that the backward
        loop goes back to overwrote a part: that is `operands[1]`, and is put back at the indices
        that follow, of dimensions of which it is a part. The element is then the result.
      results: of a fusion that advances a transfer (`hlo.async_collective_fusion`), numbers of
        the results that it computes itself: the copy gives these alone. Else empty.
    """

    name: str
    original: str
    root: str = ""
    operands: tuple[tuple[int | str, ValueRef], ...] = ()
    slice_axes: tuple[int, ...] = ()
    beside: bool = False
    element_type: int = 0
    layout: bytes = b""
    slots: tuple[tuple[int, int, int], ...] = ()
    results: tuple[int, ...] = ()
    restores: bool = False

    def inside(self, name: str) -> str:
        """Names the copy of instruction `name` of a computation that `original` runs."""
        return f"{name}.{self.name}"


@dataclasses.dataclass(frozen=True)
class NewResidual:
    """A value of the forward loop's body that is to be stored for each iteration, in a new array.

    Attributes:
      value: name of the instruction that defines it. index: of a leaf of its result.
    """

    value: str
    index: ShapeIndex


@dataclasses.dataclass(frozen=True)
class Overwritten:
    """What each iteration of the forward loop overwrites, which is to be stored in a new array.

    Attributes:
      element: number of an array in the state.
      owner: name of the instruction of the loop's body that overwrites a part of the array.
      update: name of the dynamic-update-slice that does: in a fusion `owner`, or `owner` itself.
      index: dimension of which the part's index is stored; None: what the part was before.
    """

    element: int
    owner: str
    update: str
    index: int | None = None


@dataclasses.dataclass(frozen=True)
class FinalElement:
    """The final value of an element of the forward loop's state; `element` is its number."""

    element: int


Added = str | int | NewResidual | Overwritten | FinalElement
"""A new element of the backward loop's state (`LoopEdit.added`)."""


@dataclasses.dataclass(frozen=True)
class OperandReplacement:
    """Replaces a scan residual as an operand of an instruction in the backward loop's body.

    A scan residual is an array with a slice for each iteration, written by the forward loop.

    Attributes:
      reader: name of the instruction. operand: number of the operand that is the scan residual.
      given: what it reads instead.
      replaced: whether `given` is the reader's result, so that the reader itself is removed.
      axis: the dimension of the operand that counts slices, if it is to be a scan residual still;
        else -1: then it is one slice. slices: that it has then, 1 or `SLOTS`.
    """

    reader: str
    operand: int
    given: ValueRef
    replaced: bool = False
    axis: int = -1
    slices: int = SLOTS


@dataclasses.dataclass(frozen=True)
class Checkpointed:
    """An element of the forward loop's state that is kept at every k-th iteration's start only.

    Attributes:
      element: its number. following: its value after the iteration that is run again.
      begun: name for its value at the start of that iteration. held: name for its value at the
        start of the iteration that the backward loop goes back to; "" where nothing reads that.
    """

    element: int
    following: ValueRef
    begun: str
    held: str = ""


@dataclasses.dataclass(frozen=True)
class Residual:
    """A value of the forward loop's body, kept for the last k iterations only, else recomputed.

    Attributes:
      value: name of the instruction of that body that gives it; index: of a leaf of its result.
      again: its value in the iteration that is run again.
      held: name for its value in the iteration that the backward loop goes back to.
    """

    value: str
    index: ShapeIndex
    again: ValueRef
    held: str


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Describes values that the forward loop keeps at every k-th iteration; others are rerun.

    Attributes:
      every: k, at least 2 and less than the number of iterations.
      kept: elements of the state; what is run again reads no other elements that change.
      again: name for the number of the iteration that is run again; "" where nothing reads it.
      residuals: other values, kept for the iterations since the last checkpoint.
    """

    every: int
    kept: tuple[Checkpointed, ...]
    again: str = ""
    residuals: tuple[Residual, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopEdit:
    """Describes a change of two while loops: scan residuals that are removed, and what is added.

    A scan residual is an array of which each iteration of the forward loop, the writer, writes one
    slice, and each iteration of the backward loop, the reader, reads one.

    Attributes:
      writer, reader: names of the whiles, each in one computation or one that only runs that while.
      dropped: (element of the writer's state, element of the reader's) of each scan residual.
      added: new elements of the reader's state: an instruction beside the loops, by name; what the
        writer leaves in an element of its state; or a new scan residual, of an element of the
        writer's state at each iteration's start, by number, or of a value that its body computes or
        overwrites.
      counter: name of the instruction of the reader's body that counts its iterations.
      iterations: of each loop.
      written, place: (factor, offset) of the slice that an iteration of the writer writes, and of
        that which one of the reader reads. iteration: of the writer's iteration that wrote that.
      made: new instructions, each after those that it reads. taken: changed readers.
      target: "cpu", "cuda" or "tpu", whose rules say what is overwritten in place.
      checkpoints: what is kept at few iterations, and run again in between; None: nothing.
    """

    writer: str
    reader: str
    dropped: tuple[tuple[int, int], ...] = ()
    added: tuple[Added, ...] = ()
    counter: str = ""
    iterations: int
    written: tuple[int, int] = (1, 0)
    place: tuple[int, int] = (1, 0)
    iteration: tuple[int, int] = (1, 0)
    made: tuple[NewInstruction, ...] = ()
    taken: tuple[OperandReplacement, ...] = ()
    target: str
    checkpoints: Checkpoints | None = None
