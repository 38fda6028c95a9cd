"""Checkpoint arrays: each slice has a value with which an iteration of another loop began.

A first loop writes such values of some of its iterations; of each slice the last write counts. A
later loop may read slices, move them, and fill in the values of iterations in between, which it
recomputes. The iteration that each slice belongs to is computed here for all iterations of the
later loop, from the values of the indices; no rule for the indices is assumed. A value written to a
slice must be another slice, or what the first loop's body computes from slices of one iteration and
that iteration's number.

A slice that is read has the number of the element at its iteration. Nothing else may depend on the
arrays: it must have the same numbers when the arrays have others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

import numpy as np

from hlo.shapes import ShapeIndex
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.integers import Form, Values
from olla_xla.check.executable.loop_iterations import ARRAY, follow, note_counter
from olla_xla.check.executable.numbering import Numbers, hashed, named
from olla_xla.check.executable.program import Op
from olla_xla.check.executable.records import Digit, Held, Kept, Loop, Tracked
from olla_xla.check.executable.scan_residuals import value_written, written

_UNKNOWN = -1
_MOST_ITERATIONS = 1 << 18
"""Limit for loops that are followed iteration by iteration."""

_OTHER, _ITERATION, _COUNTER = (hashed(n.encode()) for n in "other turn counter".split())


def slice_of_held(numbering: ElementNumbering, held: Held, at: bytes, digit: Digit) -> bytes | None:
    """The number of a slice of a checkpoint array, as a row; None if its iteration is not known.

    Args:
      numbering: of the module. held: the array. at: number of the slice's index.
      digit: of the position in the array's row that equals the index.
    """
    here = held.counted.get(numbering.integers.symbol_of(at) or b"")
    same = digit == held.kept.digit
    if here is None or here.symbol is None or abs(here.factor) != 1 or not same:
        return None
    iterations = np.arange(len(held.taken[0][0]) if held.taken else 0)
    counted = (iterations - here.offset) * here.factor
    where = numbering.integers.values(at, here.symbol)
    inside = (counted >= 0).all() and (counted < len(counted)).all()
    if where is None or len(where) != len(counted) or not inside:
        return None
    where = _within(where[counted], len(held.kept.iterations))
    found = next((whose for slices, whose in held.taken if (slices == where).all()), None)
    return None if found is None else _number(numbering, held.kept, found, here)


def _number(numbering: ElementNumbering, array: Kept, whose: Values, here: Form) -> bytes | None:
    """The number of slices that belong to consecutive iterations of the other loop, up or down.

    Args:
      numbering: of the module. array: as this loop receives it. whose: for each iteration of this
        loop, that of the other loop. here: the iteration of this loop in terms of a symbol.
    """
    loop, offset = array.loop, int(whose[0])
    factor = int(whose[1]) - offset if len(whose) > 1 else 0
    if abs(factor) != 1 or (whose != offset + factor * np.arange(len(whose))).any():
        return None
    if whose.min() < 0 or whose.max() >= loop.iterations:
        return None
    form = Form(here.symbol, factor * here.factor, factor * here.offset + offset)
    root = follow(numbering, loop, numbering.integers.integer(form, loop.type, whole=True), form)
    return None if root is None else _written(numbering, array, root)


def _written(numbering: ElementNumbering, array: Kept, root: Numbers) -> bytes | None:
    """The number of the slice that an iteration writes; `root` has its body's results."""
    return value_written(numbering, root[array.index], array.digit)


def _written_after(numbering: ElementNumbering, array: Kept, root: Numbers) -> bytes | None:
    """What the next iteration writes: the element as this one leaves it; else as `_written`."""
    if array.element is None:
        return _written(numbering, array, root)
    element = root[array.element]
    move = numbering.moves.get(array.value)
    return element if move is None else numbering.rearranged(element, move)


def kept(
    numbering: ElementNumbering, loop: Loop, i: ShapeIndex, root: bytes, names: Numbers
) -> Kept | None:
    """Element `i` of a loop's state as a checkpoint array; None if it is not one.

    Args:
      numbering: of the module. loop: the loop. root: number of the element after an iteration.
      names: numbers of the state as the iteration begins.
    """
    write = written(numbering, root, names[i])
    if write is None or loop.iterations > _MOST_ITERATIONS:
        return None
    digit, at, value = write
    first = numbering.first(value)
    elements = (k for k, n in names.items() if n == first and k not in (loop.counter, i))
    where = numbering.integers.values(at, names[loop.counter])
    if where is None:
        return None
    whose = [_UNKNOWN] * digit[0]
    for iteration, there in enumerate(_within(where, len(whose)).tolist()):
        whose[there] = iteration
    return Kept(loop, i, digit, value, next(elements, None), tuple(whose))


def _within(where: Values, slices: int) -> Values:
    """Indices clamped to [0, slices), as XLA does."""
    return np.clip(where, 0, slices - 1)


def tracked(
    numbering: ElementNumbering,
    op: Op,
    begun: Mapping[ShapeIndex, Kept],
    names: Numbers,
    counter: ShapeIndex,
    iterations: int,
) -> Tracked | None:
    """The checkpoint arrays that a loop changes; None if their slices cannot be followed.

    Args:
      numbering: of the module. op: the loop. begun: its elements that begin as checkpoint arrays.
      names: numbers of the state in an iteration. counter: the element that counts, from 0.
      iterations: the trip count.
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
    """What the iterations write to an array.

    Attributes:
      at: the slice written in each iteration. source: where the value is read: (array, number of
        the index); None for the result of a recomputed iteration.
    """

    at: Values
    source: tuple[ShapeIndex, bytes] | None


class _Check:
    """Follows the arrays through a loop; arguments as for `tracked`, and the counter's symbol."""

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
        """For each array the slices that the loop reads, as in `Held`; None if not known."""
        numbering, names = self._numbering, self._names
        root = numbering.run(self._body, [names], [])
        arrays = {names[i]: i for i in self._begun}
        cuts = {
            n: (arrays[a], at)
            for n, (a, at, digit) in numbering.cuts.items()
            if a in arrays and digit == self._begun[arrays[a]].digit
        }
        read: dict[tuple[ShapeIndex, bytes], Values] = {}
        for i, at in cuts.values():
            where = self._values(at, i)
            if where is None:
                return None
            read[i, at] = where
        moves: dict[ShapeIndex, _Move] = {}
        for i in self._begun:
            write = written(numbering, root[i], names[i])
            if write is None or write[0] != self._begun[i].digit:
                return None
            where = self._values(write[1], i)
            if where is None:
                return None
            source = cuts.get(write[2])
            moved = source is not None and self._is_alike(i, source[0])
            moves[i] = _Move(where, source if moved else None)
        given = [i for i, move in moves.items() if move.source is None]
        elements = [i for i in given if self._begun[i].element is not None]
        begins = [key for key in read if key[0] in elements]
        if len(begins) != len(elements):
            return None  # each is read at one index only, to recompute its iteration
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
        """The slice of an array that an index selects in each iteration; None if not known."""
        where = self._numbering.integers.values(at, self._symbol)
        return None if where is None else _within(where, len(self._begun[i].iterations))

    def _is_alike(self, i: ShapeIndex, other: ShapeIndex) -> bool:
        """Whether each iteration of the first loop writes one value to both arrays."""
        return self._begun[i].value == self._begun[other].value

    def _follow(
        self,
        read: Mapping[tuple[ShapeIndex, bytes], Values],
        moves: Mapping[ShapeIndex, _Move],
        begins: list[tuple[ShapeIndex, bytes]],
        count: Values | None = None,
    ) -> tuple[dict[tuple[ShapeIndex, bytes], Values], Values]:
        """The iterations that slices read belong to, and those recomputed; -1 for unknown.

        Args:
          read: slices read. moves: of each array. begins: reads that a recomputed iteration starts
            from. count: the recomputed iteration's counter, in each iteration; None if not read.
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
        """Whether the values written to arrays are those of an iteration of the other loop.

        Args:
          before: numbers of the body's results. given: arrays with recomputed slices.
          begins: as in `_follow`. iteration: number of the recomputed iteration's counter.
        """
        numbering, names, outer = self._numbering, self._names, self._numbering.given
        loop = next(iter(self._begun.values())).loop
        expected = numbering.apart(loop.body, loop.state(iteration))
        numbering.given = dict(outer)
        for i, at in begins:
            array = self._begun[i]
            if (number := _written(numbering, array, expected)) is None:
                return False
            numbering.given[names[i], at, array.digit] = number
        root = numbering.run(self._body, [names], [])
        numbering.given = outer
        for i in given:
            write, old = (written(numbering, r[i], names[i]) for r in (root, before))
            if write is None or old is None or write[:2] != old[:2]:
                return False
            if write[2] != _written_after(numbering, self._begun[i], expected):
                return False
        return True

    def _count(self, number: bytes) -> Values | None:
        """A number's values in all iterations; None unless it depends on the counter alone."""
        integers = self._numbering.integers
        if integers.symbol_of(number) != self._symbol:
            return None
        return integers.values(number, self._symbol)

    def _counts(self, again: Values) -> Iterator[bytes]:
        """Candidates for the number of the recomputed iteration's counter.

        The first is a number of its own: if that will do, nothing depends on the counter. Others
        have the right value in at least half of the iterations.
        """
        yield hashed(_ITERATION + self._symbol)
        for number in list(self._numbering.integers.of_symbol(self._symbol)):
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
