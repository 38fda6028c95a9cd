"""Records of how values were made, kept by the value's number (`element_numbering`).

They are plain data. The file that makes a record also has the rules for it: `transposes` for steps,
`converts`, `scan_residuals`, and `checkpoints` for what is kept, held and tracked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.integers import Form, Values
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.program import Body

_AT = hashed(b"turn")

Steps = tuple[tuple[int, int], ...]
"""An order of a row's elements: (count, distance) pairs, the outermost first (`element_order`)."""

Digit = tuple[int, int]
"""(count, distance in elements): a digit of the position in a row, as one step over it is."""

Cut = tuple[bytes, bytes, Digit]
"""A slice: the array's number, the index's number, and the digit of its row that the index is."""


class Move(NamedTuple):
    """An array that has another one's elements, in another order or under other extents.

    Attributes:
      base: number of the other array. shape: of it.
      steps: the array's row as steps over the other's. new: shape of the array.
    """

    base: bytes
    shape: Shape
    steps: Steps
    new: Shape


class Update(NamedTuple):
    """A dynamic-update-slice.

    Attributes:
      made: number of its attributes. numbers: of its operands.
      shape: of the whole. part: of what is written.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    shape: Shape
    part: Shape


class Concatenation(NamedTuple):
    """A concatenation.

    Attributes:
      made: number of its attributes. numbers: of its operands.
      dimension: the one concatenated. starts: of each operand in it; and the end of the last one.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    dimension: int
    starts: tuple[int, ...]


class Rounded(NamedTuple):
    """A convert to a type that is not wider.

    Attributes:
      code: number of the code of the fusion that computes it; empty inside it and outside of any.
      operand: number of what is converted. old: its shape. new: shape of the result.
    """

    code: bytes
    operand: bytes
    old: Shape
    new: Shape


@dataclasses.dataclass(eq=False)
class Loop:
    """A loop with a constant trip count that has been numbered.

    Attributes:
      body: of the loop. start: numbers of the state before it, finals: after it.
      counter: the element that counts, from 0. type: its element type. iterations: trip count.
      runs: by number of an iteration, the numbers of the body's result in it.
      is_followed: whether the body is being numbered for one of its iterations.
      tracked: its checkpoint arrays of another loop.
    """

    body: Body
    start: Numbers
    finals: Numbers
    counter: ShapeIndex
    type: int
    iterations: int
    runs: dict[bytes, Numbers] = dataclasses.field(default_factory=dict)
    is_followed: bool = False
    tracked: Tracked | None = None

    def state(self, iteration: bytes) -> Numbers:
        """Numbers of the state at the start of an iteration, given by its number."""
        given = {
            i: n if self.finals[i] == n else hashed(_AT + self.finals[i] + iteration)
            for i, n in self.start.items()
        }
        given[self.counter] = iteration
        return given


@dataclasses.dataclass(frozen=True)
class ScanResidual:
    """An element of which each iteration writes one slice.

    Attributes:
      loop: the loop. index: of the element.
      digit: of the position in the element's row, that counts slices.
      factor, offset: iteration t writes slice factor * t + offset; the factor is 1 or -1.
    """

    loop: Loop
    index: ShapeIndex
    digit: Digit
    factor: int
    offset: int


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """A checkpoint array, as the loop that wrote it leaves it.

    Attributes:
      loop: the loop. index: of the array in its state.
      digit: of the position in the array's row, that counts slices.
      value: number of what an iteration writes, as a row.
      element: of the state, whose value as an iteration begins is what it writes; None if none is.
      iterations: for each slice the iteration that wrote it last, or -1 where that is not known.
    """

    loop: Loop
    index: ShapeIndex
    digit: Digit
    value: bytes
    element: ShapeIndex | None
    iterations: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """A checkpoint array in an iteration of another loop, which changes it.

    Attributes:
      kept: the array as this loop receives it.
      taken: for each index that the loop reads slices at: the slice in each iteration, and the
        iteration of the first loop that the slice belongs to.
      counted: symbol that counts the loop's iterations -> the iteration in terms of it.
    """

    kept: Kept
    taken: list[tuple[Values, Values]]
    counted: dict[bytes, Form]


@dataclasses.dataclass(frozen=True, eq=False)
class Tracked:
    """The checkpoint arrays of another loop that a loop changes.

    Attributes:
      names: by element of the loop's state, the array's number in its iterations.
      arrays: likewise, the array.
    """

    names: Numbers
    arrays: Mapping[ShapeIndex, Held]
