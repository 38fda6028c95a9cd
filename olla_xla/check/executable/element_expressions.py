"""What a module computes: a digest of its results as expressions of its arguments.

Every value gets a number, the hash of its operation and of its operands' numbers; values with one
number hold the same bits. Order, names, copies, clones and in-place results do not change the
digest; a wrong operand, a lost update or swapped elements of a loop's state do. Fusions are
inlined. Where a fusion's code may change a bit (`exact`), what decides the code is hashed too
(`Numbering.code`). It is not hashed for elements that the fusion only moves, and elementwise
results do not depend on where the fusion puts them. Loops are followed iteration by iteration where
their condition is computed from constants (`iterations`), else numbered element by element
(`loops`). Visible effects (callbacks, random state) are hashed in their order.

A collective's number has its device groups, what these count (replicas, partitions or both), its
reduction and its operands. Its other effect is that devices meet. All devices run one module, so
all reach the collectives of its entry computation, and of loops there with a constant trip count:
the digest does not depend on how many these are. A branch, or another loop, may run on some devices
only: there the digest has the groups that meet, but not how often, as devices that reach one
collective also reach the next one of the same groups.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from hlo.device_groups import participants
from hlo.shapes import Shape
from hlo.wire import slice_ranges
from olla_xla.check.executable.arrays import Arrays
from olla_xla.check.executable.converts import convert_of, converted, slice_of_converted
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import (
    as_row,
    digits,
    joined,
    of_dimensions,
    permuted,
    row_major,
    typed,
    within,
    without,
)
from olla_xla.check.executable.expressions import EXCHANGES, ROUNDING
from olla_xla.check.executable.fusions import from_outside, is_elementwise, note_own, put
from olla_xla.check.executable.iterations import Loops
from olla_xla.check.executable.loops import number_loop
from olla_xla.check.executable.numbering import (
    EFFECT,
    HANDLERS,
    PARAMETER,
    Numbers,
    all_of,
    hashed,
    is_exchange,
    named,
)
from olla_xla.check.executable.program import Body, Op, Program, acts
from olla_xla.check.executable.records import Concatenation, Digit, Update


def program_digest(program: Program, target: str) -> str:
    """Digest, 32 hex digits, of what a module computes; loops are numbered element by element."""
    numbering = ElementExpressions(target)
    root, effects = numbering.function(program.entry)
    seen = [effect for effect in effects if not is_exchange(effect)]
    return hashed(b"".join((all_of(root), EFFECT, *seen, *numbering.loops.marks()))).hex()


class ElementExpressions(ElementNumbering):
    """Value numbering that sees through loops, slices, moved elements and elementwise fusions."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._arrays = Arrays()
        """The arrays that the fusion being numbered reads."""
        self._elementwise: dict[Body, bool] = {}
        self.loops = Loops()

    def computation(self, body: Body) -> bytes:
        """A hash of a computation: its results and effects as functions of its parameters."""
        terms, self.terms = self.terms, None
        found = super().computation(body)
        self.terms = terms
        return found

    def run(self, body: Body, given: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a computation's result, given its parameters'; appends to `effects`."""
        at: dict[Op, Numbers] = dict(zip(body.parameters, given, strict=True))
        handlers, plain = self.handlers, type(self).plain
        for op in body.ops:
            if op.opcode != "parameter":
                handler = handlers.get(op.opcode, plain)
                read = [at[o] for o in op.operands]
                at[op] = handler(self, op, read, effects)
                if self._fused is not None:
                    self._arrays.note(op, read)
                    note_own(self, op, read, at[op], self._fused)
        return at[body.result]

    def taken(self, number: bytes, at: bytes, shape: Shape, digit: Digit) -> bytes:
        """The value number of one slice of an array, flattened; arguments as in the base class."""
        return slice_of(self, number, at, shape, digit)

    def plain(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of any other operation: a hash of it and its operands, or a
        known integer's.
        """
        kind = self.integers.type_of(op)
        read = [number for numbers in operands for number in numbers.values()] if kind else []
        known = self.integers.result(op, kind, read) if kind else None
        if known is not None:
            return {(): known}
        numbers = super().plain(op, operands, effects)
        if kind and not op.called and not acts(op):
            self._note_operation(op, operands, numbers)
        return numbers

    def _note_operation(self, op: Op, operands: list[Numbers], result: Numbers) -> None:
        """Notes an operation that may have another number where its operands have others."""
        read = [number for numbers in operands for number in numbers.values()]
        self.note_term(result[()], _again, op, *read)

    def bitcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a bitcast: its operand's elements under another shape."""
        (number,) = operands[0].values()
        return {(): self.cast(number, op.operands[0].shape, op.shape)}

    def slice(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a dynamic-slice; the operand's if all of it is taken."""
        whole = op.operands[0]
        if self.shape(whole.shape) == self.shape(op.shape):
            return operands[0]  # XLA clamps the index to the only place there is
        axis = sliced_axis(op.shape, whole.shape)
        if axis is None:
            return self.plain(op, operands, effects)
        (index,) = operands[1 + axis].values()
        return self._slice(op, operands[0][()], index, axis)

    def _slice(self, op: Op, number: bytes, index: bytes, axis: int) -> Numbers:
        """Value number of an operation that takes one slice along `axis` of its operand."""
        whole = op.operands[0].shape
        row = self.taken(number, index, whole, sliced_digit(whole, axis))
        return {(): self.arranged(row, as_row(op.shape), permuted(op.shape), op.shape)}

    def broadcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a broadcast; `repeated` gets its operand, dimensions and both shapes."""
        numbers = self.plain(op, operands, effects)
        ((number,), (operand,)) = numbers.values(), operands[0].values()
        self.repeated[number] = operand, tuple(op.proto.dimensions), op.operands[0].shape, op.shape
        self._note_operation(op, operands, numbers)
        return numbers

    def concatenate(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a concatenate, which is recorded in `concatenations`."""
        numbers = tuple(number for operand in operands for number in operand.values())
        (dimension,) = op.proto.dimensions
        extents = (o.shape.dimensions[dimension] for o in op.operands)
        starts = (0, *itertools.accumulate(extents))
        part, slices = op.operands[0].shape, None
        if len(numbers) == starts[-1] > 1 and sliced_axis(part, op.shape) == dimension:
            slices = row_major(op.shape), part, sliced_digit(op.shape, dimension)
        made = self.attributes(op), numbers, dimension, starts, slices
        return {(): self.joined(Concatenation(*made))}

    def part(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a static slice; it is the operand's if the slice takes all of it."""
        (number,) = operands[0].values()
        if self.shape(op.operands[0].shape) == self.shape(op.shape):
            return operands[0]
        made = self.concatenations.get(number)
        ranges, whole = slice_ranges(op.proto), op.operands[0].shape
        if made is not None:
            start, limit, step = ranges[made.dimension]
            others = [r for k, r in enumerate(ranges) if k != made.dimension]
            full = [(0, n, 1) for k, n in enumerate(whole.dimensions) if k != made.dimension]
            if others == full and step == 1 and start in made.starts:
                k = made.starts.index(start)
                if made.starts[k + 1 : k + 2] == (limit,):
                    return {(): made.numbers[k]}
        axis = sliced_axis(op.shape, whole)
        if axis is not None:
            return self._slice(op, number, self.integers.number(ranges[axis][0]), axis)
        numbers = self.plain(op, operands, effects)
        if made is None:
            self._note_operation(op, operands, numbers)
        return numbers

    def convert(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a convert; the original one if a value is widened and converted back."""
        ((number,), old) = operands[0].values(), op.operands[0].shape
        if (found := convert_of(self, number, old, op.shape)) is not None:
            return {(): found}
        return self.plain(op, operands, effects)

    def meeting(self, op: Op, effect: bytes) -> bytes:
        """A hash of which devices take part in a collective; what they exchange does not count."""
        return hashed(participants(op.proto.SerializeToString(deterministic=True)))

    def transpose(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a transpose: its operand's elements in another order.

        One of a type of less than a byte is numbered by `plain`.
        """
        (operand,) = operands[0].values()
        before = op.operands[0].shape
        if before.element_bits < 8:
            return self.plain(op, operands, effects)
        steps = permuted(before, tuple(op.proto.dimensions))
        return {(): self.arranged(operand, before, steps, op.shape)}

    def update(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a dynamic-update-slice, which may convert the update on a TPU.

        An update of the whole array has the update's number, as XLA clamps its index to 0.
        """
        array, value, *indices = (number for operand in operands for number in operand.values())
        whole, part = op.operands[0].shape, op.operands[1].shape
        if part.element_type != whole.element_type:
            before, part = part, typed(part, whole)
            value = converted(self, value, before, part)
        if whole.element_bits < 8:
            numbers = array, value, *indices
            return {(): self.updated(Update(self.attributes(op), numbers, whole, part))}
        return {(): self._put(array, value, indices, whole, part)}

    def _put(
        self, array: bytes, value: bytes, indices: Sequence[bytes], whole: Shape, part: Shape
    ) -> bytes:
        """The value number of an array with a part of it replaced; of whole rows, or in one slice.

        A part of one slice is put into that slice, which then replaces the old one.
        """
        both = zip(part.dimensions, whole.dimensions, strict=True)
        cut = [k for k, (some, every) in enumerate(both) if some != every]
        if not cut:
            return value
        axis = next((k for k in cut if part.dimensions[k] == 1), None)
        if axis is None:
            left = [k for k, extent in enumerate(whole.dimensions) if extent != 1]
            new, small = (of_dimensions(s, [s.dimensions[k] for k in left]) for s in (whole, part))
            array = self.arranged(array, whole, permuted(whole), new)
            value = self.arranged(value, part, permuted(part), small)
            made = hashed(b"".join((_PART, self.shape(new), self.shape(small))))
            numbers = array, value, *(indices[k] for k in cut)
            number = self.updated(Update(made, numbers, new, small))
            return self.arranged(number, new, permuted(new), whole)
        digit = sliced_digit(whole, axis)
        row = self.arranged(value, part, permuted(part), as_row(part))
        if len(cut) > 1:
            others = [k for k in range(len(whole.dimensions)) if k != axis]
            inner, small = (
                of_dimensions(s, [s.dimensions[k] for k in others]) for s in (whole, part)
            )
            old = self.taken(array, indices[axis], whole, digit)
            old = self.arranged(old, as_row(inner), permuted(inner), inner)
            row = self.arranged(row, as_row(small), permuted(small), small)
            row = self._put(old, row, [indices[k] for k in others], inner, small)
            row = self.arranged(row, inner, permuted(inner), as_row(inner))
        return self.updated(Update.of_slice((array, row, indices[axis]), row_major(whole), digit))

    def fusion(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a fusion's results; with a hash of its code if that may change bits."""
        outer = self._fused, self._arrays
        self._fused, self._arrays = set(), Arrays.of(op, self.alike)
        inside = self.run(op.called[0], operands, effects)
        computed, arrays = self._fused, self._arrays
        self._fused, self._arrays = outer
        rounded = {i: n for i, n in inside.items() if not self.is_free(op, i)}
        if not rounded:
            return inside
        made = self.code(op)
        if read := arrays.candidates():
            made = self.code_of(tuple(read.values()), made, *read)
        if self._is_elementwise(op.called[0]):
            found = {i: from_outside(self, n, made, computed) for i, n in rounded.items()}
        else:
            found = {i: put(self, n, made, computed) for i, n in rounded.items()}
        return inside | found

    def _is_elementwise(self, body: Body) -> bool:
        """`is_elementwise` of a fused computation, cached."""
        if body not in self._elementwise:
            self._elementwise[body] = is_elementwise(body)
        return self._elementwise[body]

    def loop(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a while: by its iterations, or as a function of its initial state."""
        start = operands[0]
        if self.terms is not None:
            return self.loops.later(self, op, start, effects)
        if self.loops.is_stateful(op):
            symbols = {i: hashed(PARAMETER + named((0, *i))) for i in start}
            inner: list[bytes] = []
            root = self.run(op.called[0], [symbols], inner)
            whole, numbers = self.whole_loop(op, start, symbols, root, inner)
            effects.append(hashed(EFFECT + whole))
            return numbers
        numbers, seen = self.loops.followed(self, op, start) or number_loop(self, op, start)
        effects += [e for e in seen if e not in effects or not is_exchange(e)]
        return numbers


def _again(numbering: ElementExpressions, op: Op, *operands: bytes) -> bytes:
    """The number of an operation for other operands."""
    handler = numbering.handlers.get(op.opcode, ElementExpressions.plain)
    return handler(numbering, op, [{(): number} for number in operands], [])[()]


ElementExpressions.handlers = {
    **HANDLERS,
    **EXCHANGES,
    **ROUNDING,
    "bitcast": ElementExpressions.bitcast,
    "broadcast": ElementExpressions.broadcast,
    "concatenate": ElementExpressions.concatenate,
    "convert": ElementExpressions.convert,
    "dynamic-slice": ElementExpressions.slice,
    "slice": ElementExpressions.part,
    "transpose": ElementExpressions.transpose,
    "dynamic-update-slice": ElementExpressions.update,
    "fusion": ElementExpressions.fusion,
    "while": ElementExpressions.loop,
}


# The number of one slice of an array, by how the array was made.
#
# A slice of an array that was updated there is the update, and one at another constant place is
# the array's before the update. One of a broadcast is the operand. One of an array that was moved
# or converted is the moved or converted slice, and of two slices along different digits the outer
# one is taken first, so that it does not matter which was done first. Any other slice is numbered
# plainly. XLA clamps the indices of an update and of a slice alike.


_SLICE, _PART = hashed(b"slice"), hashed(b"part")


def slice_of(
    numbering: ElementNumbering, number: bytes, at: bytes, shape: Shape, digit: Digit
) -> bytes:
    """The value number of one slice of an array, flattened in row-major order.

    Args:
      numbering: of the module. number: the array's value number. at: the index's value number.
      shape: of the array.
      digit: (count, stride in elements) of the sliced dimension, in row-major order.
    """
    (count, distance), size = digit, shape.num_elements
    flat = as_row(shape, size // count)
    if count == 1:
        return numbering.arranged(number, shape, permuted(shape), flat)
    if number in numbering.moves:
        move = numbering.moves[number]
        if (found := without(move.steps, size, digit)) is not None:
            row = slice_of(numbering, move.base, at, move.shape, found[0])
            return numbering.arranged(row, flat, found[1], flat)
        others = (size // (count * distance), count * distance), (distance, 1)
        number = numbering.arranged(number, shape, joined((digit, *others)), as_row(shape))
        digit, shape = (count, size // count), as_row(shape)
    place = numbering.integers.clamped(at, count)
    if place is not None:
        at = numbering.integers.number(place)
        row, array = numbering.written.at(number, digit, place)
        if row is not None:
            return row
        if array != number:
            return slice_of(numbering, array, at, shape, digit)
    cut = number, at, digit
    for rule in (_updated, slice_of_converted):
        if (row := rule(numbering, *cut)) is not None:
            return row
    for rule in (_repeated, _cut_before):
        if (row := rule(numbering, *cut, flat)) is not None:
            return row
    result = numbering.term(_SLICE, _kind(shape.element_type, size, digit), number, at)
    numbering.note_term(
        result, lambda it, of, *cut: it.taken(*cut, *of), (shape, digit), number, at
    )
    numbering.cuts[result] = cut
    numbering.note_moved(number, result)
    return result


@functools.lru_cache(maxsize=4096)
def _kind(element_type: int, size: int, digit: Digit) -> bytes:
    """A number for what a slice is of."""
    return hashed(repr((element_type, size, digit)).encode())


def sliced_axis(part: Shape, shape: Shape) -> int | None:
    """The dimension along which a part is one slice of an array: one element thick along it, and
    whole along all others. None if it is not one, or its elements are smaller than a byte.

    A part that is the whole array is a slice along dimension 0, if that has extent 1.
    """
    if part.element_type != shape.element_type or shape.element_bits < 8 or not shape.dimensions:
        return None
    both = zip(part.dimensions, shape.dimensions, strict=True)
    axes = [k for k, (one, all_of_it) in enumerate(both) if one != all_of_it]
    axis = axes[0] if axes else 0
    return axis if len(axes) < 2 and part.dimensions[axis] == 1 else None


def sliced_digit(shape: Shape, axis: int) -> Digit:
    """Dimension `axis` of an array as (extent, stride in elements), in row-major order."""
    return digits(row_major(shape))[axis]


def _updated(numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit) -> bytes | None:
    """The number of a slice that was just updated at an index, as a row; else None."""
    update = numbering.updates.get(number)
    if update is None or update.digit != digit or update.numbers[2] != at:
        return None
    return update.numbers[1]


def _repeated(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit, flat: Shape
) -> bytes | None:
    """The number of a slice that a broadcast repeats, as a row like `flat`; else None."""
    if number not in numbering.repeated:
        return None
    value, dimensions, old, new = numbering.repeated[number]
    every = range(len(new.dimensions))
    axis = next((k for k in every if sliced_digit(new, k) == digit), None)
    if dimensions != tuple(k for k in every if k != axis):
        return None
    return numbering.arranged(value, old, permuted(old), flat)


def _cut_before(
    numbering: ElementNumbering, number: bytes, at: bytes, digit: Digit, flat: Shape
) -> bytes | None:
    """The number of a slice of a slice, the outer of both digits taken first; None for others."""
    if number not in numbering.cuts:
        return None
    array, index, (count, distance) = numbering.cuts[number]
    part = flat.num_elements * digit[0]
    found = within(((part // distance, count * distance), (distance, 1)), *digit)
    if found is None or len(found) != 1 or found[0][1] < distance:
        return None
    outer = slice_of(numbering, array, at, as_row(flat, part * count), found[0])
    return slice_of(
        numbering, outer, index, as_row(flat, part * count // digit[0]), (count, distance)
    )
