"""Arrays of a loop's state whose slices are what another loop's iterations began with.

A loop may keep what some of its iterations begin with, for each slice the last one that wrote it. A
later loop may take such slices, move them, and put in what the iterations in between begin with,
which it runs again. Whose each slice is at every time is computed here for all iterations, from
the indices; nothing is said of how these come about. What is put into a slice must be another
slice, or what the body of the first loop makes of slices of one iteration and of its number.

What is taken then has the number that the element has at its iteration. All else must not depend on
the arrays: with other names for them it has the same numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import numpy as np

from hlo.shapes import Shape, ShapeIndex
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form
from olla_xla.check.executable.loop_iterations import ARRAY, follow, note_counter
from olla_xla.check.executable.numbering import Numbers, hashed, named
from olla_xla.check.executable.program import Op
from olla_xla.check.executable.records import Held, Kept, Loop, Tracked, Update
from olla_xla.check.executable.scalars import Values

__all__ = ["kept", "slice_of_held", "tracked"]

_UNKNOWN = -1
_MOST_ITERATIONS = 1 << 18
"""Of a loop that is followed iteration by iteration."""

_OTHER, _ITERATION, _COUNTER = (hashed(n.encode()) for n in "other turn counter".split())


def slice_of_held(numbering: ElementNumbering, held: Held, at: bytes, part: Shape) -> bytes | None:
    """The number of a slice of such an array; None if it is not known whose it is.

    Args:
      numbering: of the module. held: the array. at: number of the slice's index. part: its shape.
    """
    symbols = numbering.scalars.symbols(at)
    here = held.counted.get(next(iter(symbols))) if len(symbols) == 1 else None
    same = numbering.shape(part) == numbering.shape(held.kept.part)
    if here is None or here.symbol is None or abs(here.factor) != 1 or not same:
        return None
    iterations = np.arange(len(held.taken[0][0]) if held.taken else 0)
    counted = (iterations - here.offset) * here.factor
    where = numbering.scalars.values(at, here.symbol, counted)
    if where is None:
        return None
    where = _within(where, len(held.kept.iterations))
    found = next((whose for slices, whose in held.taken if (slices == where).all()), None)
    return None if found is None else _number(numbering, held.kept, found, here)


def _number(numbering: ElementNumbering, array: Kept, whose: Values, here: Form) -> bytes | None:
    """The number of slices that are of one iteration of the other loop after or before another.

    Args:
      numbering: of the module. array: as it begins. whose: slices, by the other loop's
        iterations. here: the iteration of this loop in terms of a symbol.
    """
    loop, offset = array.loop, int(whose[0])
    factor = int(whose[1]) - offset if len(whose) > 1 else 0
    if abs(factor) != 1 or (whose != offset + factor * np.arange(len(whose))).any():
        return None
    if whose.min() < 0 or whose.max() >= loop.iterations:
        return None
    form = Form(here.symbol, factor * here.factor, factor * here.offset + offset)
    root = follow(numbering, loop, numbering.integer(form, loop.type, whole=True), form)
    return None if root is None else _written(numbering, array, root)


def _written(numbering: ElementNumbering, array: Kept, root: Numbers) -> bytes:
    """The number of what an iteration writes, which makes `root` of its state."""
    return numbering.updates[root[array.index]].numbers[1]


def _written_after(numbering: ElementNumbering, array: Kept, root: Numbers) -> bytes:
    """The number of what the iteration after it writes; the same where there is no element."""
    if array.element is None:
        return _written(numbering, array, root)
    return numbering.cast(root[array.element], array.shape, array.part)


def kept(
    numbering: ElementNumbering, loop: Loop, i: ShapeIndex, root: bytes, names: Numbers
) -> Kept | None:
    """Element `i` of a loop's state as such an array; None if it is none.

    Args:
      numbering: of the module. loop: the loop. root: number of what an iteration makes of
        the element.
      names: numbers of the state in an iteration.
    """
    update = _update(numbering, root, names[i])
    if update is None or loop.iterations > _MOST_ITERATIONS:
        return None
    value = update.numbers[1]
    first, shape, part = numbering.bitcasts.get(value, (value, update.part, update.part))
    elements = (k for k, n in names.items() if n == first and k not in (loop.counter, i))
    iterations = np.arange(loop.iterations)
    where = numbering.scalars.values(update.numbers[2], names[loop.counter], iterations)
    if where is None:
        return None
    whose = [_UNKNOWN] * update.shape.dimensions[0]
    for iteration, at in enumerate(_within(where, len(whose)).tolist()):
        whose[at] = iteration
    return Kept(loop, i, value, next(elements, None), shape, part, tuple(whose))


def _update(numbering: ElementNumbering, root: bytes, name: bytes) -> Update | None:
    """The update of one slice of an element along its first dimension; None if it is none."""
    update = numbering.updates.get(root)
    if update is None or update.numbers[0] != name:
        return None
    whole, part = update.shape, update.part
    same = whole.element_type == part.element_type and whole.minor_to_major == part.minor_to_major
    several = whole.element_bits >= 8 and whole.dimensions[:1] > (1,)
    return update if same and several and part.dimensions == (1, *whole.dimensions[1:]) else None


def _within(where: Values, slices: int) -> Values:
    """The slices that indices are of; XLA moves them into the array."""
    return np.clip(where, 0, slices - 1)


def tracked(
    numbering: ElementNumbering,
    op: Op,
    begun: Mapping[ShapeIndex, Kept],
    names: Numbers,
    counter: ShapeIndex,
    iterations: int,
) -> Tracked | None:
    """The arrays that a loop changes; None if it cannot be followed whose slices they have.

    Args:
      numbering: of the module. op: the loop. begun: elements of its state that begin as arrays.
      names: numbers of the state in an iteration. counter: the element that counts, from 0.
      iterations: how many.
    """
    if iterations > _MOST_ITERATIONS or len({array.loop for array in begun.values()}) != 1:
        return None
    symbol = hashed(_COUNTER + names[counter])
    numbering.symbol(symbol, op.called[0].parameters[0].shape.at(counter), iterations)
    arrays = {i: hashed(ARRAY + names[i] + named(i)) for i in begun}
    check = _Check(numbering, op, begun, {**names, **arrays, counter: symbol}, symbol, iterations)
    taken = check.taken()
    if taken is None:
        return None
    found = {i: Held(array, taken[i], {}) for i, array in begun.items()}
    result = Tracked(arrays, found)
    note_counter(numbering, result, symbol)
    others = {i: hashed(_OTHER + n) for i, n in arrays.items()}
    note_counter(numbering, Tracked(others, found), symbol)
    return result if check.is_apart(others) else None


@dataclasses.dataclass(frozen=True)
class _Move:
    """What one iteration does to an array.

    Attributes:
      at: the slice that it writes, in all iterations. source: what it puts there: an array, and the
        number of the index at which that is taken; None for what an iteration that runs again
        gives.
    """

    at: Values
    source: tuple[ShapeIndex, bytes] | None


class _Check:
    """Follows the arrays through a loop; arguments as for `tracked`, and a symbol that counts."""

    def __init__(
        self,
        numbering: ElementNumbering,
        op: Op,
        begun: Mapping[ShapeIndex, Kept],
        names: Numbers,
        symbol: bytes,
        iterations: int,
    ) -> None:
        self._numbering = numbering
        self._body, self._condition = op.called
        self._begun = begun
        self._names = names
        self._symbol = symbol
        self._iterations = iterations

    def taken(self) -> dict[ShapeIndex, list[tuple[Values, Values]]] | None:
        """For each array what the loop takes of it, as in `Held`."""
        numbering, names = self._numbering, self._names
        root = numbering.run(self._body, [names], [])
        arrays = {names[i]: i for i in self._begun}
        cuts = {n: (arrays[a], at) for n, (a, at) in numbering.cuts.items() if a in arrays}
        read: dict[tuple[ShapeIndex, bytes], Values] = {}
        for i, at in cuts.values():
            where = self._values(at, i)
            if where is None:
                return None
            read[i, at] = where
        moves: dict[ShapeIndex, _Move] = {}
        for i in self._begun:
            update = _update(numbering, root[i], names[i])
            where = None if update is None else self._values(update.numbers[2], i)
            if update is None or where is None:
                return None
            source = cuts.get(update.numbers[1])
            moved = source is not None and self._is_alike(i, source[0])
            moves[i] = _Move(where, source if moved else None)
        given = [i for i, move in moves.items() if move.source is None]
        elements = [i for i in given if self._begun[i].element is not None]
        begins = [key for key in read if key[0] in elements]
        if len(begins) != len(elements):
            return None  # each is taken at one place: to run its iteration again
        whose, again = self._follow(read, moves, begins)
        if given:
            runs = functools.partial(self._runs, root, given, begins)
            number = next((n for n in self._counts(again) if runs(n)), None)
            if number is None:
                return None
            if (count := self._count(number)) is not None:
                whose, _ = self._follow(read, moves, begins, count)
        return {i: [(read[k], whose[k]) for k in read if k[0] == i] for i in self._begun}

    def _values(self, at: bytes, i: ShapeIndex) -> Values | None:
        """The slices of an array that an index is of, in all iterations."""
        where = self._numbering.scalars.values(at, self._symbol, np.arange(self._iterations))
        return None if where is None else _within(where, len(self._begun[i].iterations))

    def _is_alike(self, i: ShapeIndex, other: ShapeIndex) -> bool:
        """Whether an iteration wrote the same to two arrays."""
        one, two = self._begun[i], self._begun[other]
        same = self._numbering.shape(one.part) == self._numbering.shape(two.part)
        return same and one.value == two.value

    def _follow(
        self,
        read: Mapping[tuple[ShapeIndex, bytes], Values],
        moves: Mapping[ShapeIndex, _Move],
        begins: list[tuple[ShapeIndex, bytes]],
        count: Values | None = None,
    ) -> tuple[dict[tuple[ShapeIndex, bytes], Values], Values]:
        """Whose the slices are that are taken, and the iterations that run again, -1 for none.

        Args:
          read: what is taken. moves: of each array. begins: which slices an iteration begins with.
          count: what is taken for the number of the iteration that runs again, if anything is.
        """
        numbers = None if count is None else count.tolist()
        slices = {i: list(array.iterations) for i, array in self._begun.items()}
        places = {key: where.tolist() for key, where in read.items()}
        written = {i: move.at.tolist() for i, move in moves.items()}
        whose: dict[tuple[ShapeIndex, bytes], list[int]] = {key: [] for key in read}
        again = []
        for iteration in range(self._iterations):
            now = {key: slices[key[0]][where[iteration]] for key, where in places.items()}
            for key, found in now.items():
                whose[key].append(found)
            begun = {now[key] for key in begins}
            again.append(begun.pop() if len(begun) == 1 else _UNKNOWN)
            known = again[-1] != _UNKNOWN and (numbers is None or numbers[iteration] == again[-1])
            for i, move in moves.items():
                gives = again[-1] + (self._begun[i].element is not None) if known else _UNKNOWN
                slices[i][written[i][iteration]] = (
                    gives if move.source is None else now[move.source]
                )
        return {key: np.array(found) for key, found in whose.items()}, np.array(again)

    def _runs(
        self,
        before: Numbers,
        given: list[ShapeIndex],
        begins: list[tuple[ShapeIndex, bytes]],
        iteration: bytes,
    ) -> bool:
        """Whether what is put into arrays is what an iteration of the other loop made.

        Args:
          before: what an iteration makes of the state. given: the arrays.
          begins: the slices that an iteration begins with.
          iteration: number of what is taken for the number of that iteration.
        """
        numbering, names, outer = self._numbering, self._names, self._numbering.given
        loop = next(iter(self._begun.values())).loop
        expected = numbering.apart(loop.body, loop.state(iteration))
        numbering.given = outer | {
            (names[i], at): _written(numbering, self._begun[i], expected) for i, at in begins
        }
        root = numbering.run(self._body, [names], [])
        numbering.given = outer
        updates = {i: _update(numbering, root[i], names[i]) for i in given}
        return all(
            update is not None
            and update.numbers[1] == _written_after(numbering, self._begun[i], expected)
            and update.numbers[2:] == numbering.updates[before[i]].numbers[2:]
            for i, update in updates.items()
        )

    def _count(self, number: bytes) -> Values | None:
        """What a number is in all iterations."""
        scalars = self._numbering.scalars
        if scalars.symbols(number) != {self._symbol}:
            return None
        return scalars.values(number, self._symbol, np.arange(self._iterations))

    def _counts(self, again: Values) -> Iterator[bytes]:
        """A number of no integer, and those that may be that of the iteration that runs again.

        If the first one will do, nothing depends on the number of the iteration.
        """
        yield hashed(_ITERATION + self._symbol)
        for number in self._numbering.scalars.numbers():
            values = self._count(number)
            if values is not None and 2 * (values == again).sum() >= self._iterations:
                yield number

    def is_apart(self, others: Numbers) -> bool:
        """Whether all else in an iteration stays the same with other numbers for the arrays."""
        numbering, found = self._numbering, []
        for names in (self._names, {**self._names, **others}):
            effects: list[bytes] = []
            root = numbering.run(self._body, [names], effects)
            test = numbering.run(self._condition, [names], effects)
            found.append(({i: n for i, n in root.items() if i not in others}, test, effects))
        return found[0] == found[1]
