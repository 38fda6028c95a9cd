"""How values were made, of those that the numbering of elements knows more of than a number.

A numbering keeps these by the number of the value (`element_numbering`). They are plain data, read
off the module by the file that makes them, which also says what follows of them: `transposes` of
steps, `converts`, `scan_residuals`, and `checkpoints` of what is kept, held and tracked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.numbering import Numbers, hashed
from olla_xla.check.executable.program import Body
from olla_xla.check.executable.scalars import Values

__all__ = [
    "Concatenation",
    "Held",
    "Kept",
    "Loop",
    "Rounded",
    "ScanResidual",
    "Steps",
    "Tracked",
    "Update",
]

_AT = hashed(b"turn")

Steps = tuple[tuple[int, int], ...]
"""In which order a row's elements are taken: (count, distance) of each digit of the place, the
outermost first (`transposes`)."""


class Update(NamedTuple):
    """A dynamic-update-slice: number of its attributes, and of its operands; shapes.

    Attributes:
      shape: of the whole. part: of what is written.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    shape: Shape
    part: Shape


class Concatenation(NamedTuple):
    """A concatenation: number of its attributes, and of its operands.

    Attributes:
      dimension: along which they lie. starts: where each does; and where the last one ends.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    dimension: int
    starts: tuple[int, ...]


class Rounded(NamedTuple):
    """A convert to a type that is not wider.

    Attributes:
      code: number of the fusion's code that it is made by, empty inside of that and outside of any.
      operand: number of what is converted. old: its shape. new: shape of the result.
    """

    code: bytes
    operand: bytes
    old: Shape
    new: Shape


@dataclasses.dataclass(eq=False)
class Loop:
    """A counted loop whose elements have their numbers.

    Attributes:
      body: of the loop. start: numbers of the state before it, finals: after it.
      counter: the element that counts, from 0. type: its element type. iterations: how many.
      runs: by number of an iteration, the numbers of the body's result in it.
      is_followed: whether the body is being numbered for one of its iterations.
      tracked: arrays of its state with what another loop's iterations began with.
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
        """Numbers of the state as an iteration of this number begins with it."""
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
      axis: dimension that counts slices.
      factor, offset: iteration t writes slice factor * t + offset; the factor is 1 or -1.
      cast: the element's shape and the one in which a bitcast lets slices be written, where these
        lie apart in memory: they are slices of that shape only. None: of the element's own, or of
        any in which they lie one after the other.
    """

    loop: Loop
    index: ShapeIndex
    axis: int
    factor: int
    offset: int
    cast: tuple[Shape, Shape] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """An array of slices that a counted loop wrote.

    Attributes:
      loop: the loop. index: of the array in its state. value: number of what an iteration writes.
      element: of the state, where each iteration writes what that is as it begins; else None.
      shape: of the element. part: of a slice.
      iterations: for each slice the iteration that wrote it last, or -1 where that is not known.
    """

    loop: Loop
    index: ShapeIndex
    value: bytes
    element: ShapeIndex | None
    shape: Shape
    part: Shape
    iterations: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """Such an array in an iteration of a loop that changes it.

    Attributes:
      kept: what it begins as.
      taken: for each index that the loop takes slices at, the slices in all its iterations, and
        whose they are: iterations of the other loop.
      counted: symbols that count the loop's iterations -> the iteration in terms of it.
    """

    kept: Kept
    taken: list[tuple[Values, Values]]
    counted: dict[bytes, Form]


@dataclasses.dataclass(frozen=True, eq=False)
class Tracked:
    """The arrays that a loop changes.

    Attributes:
      names: by element of the loop's state, their numbers in its iterations.
      arrays: what they are.
    """

    names: Numbers
    arrays: Mapping[ShapeIndex, Held]
