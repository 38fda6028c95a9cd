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

import itertools
from collections.abc import Collection, Sequence

from hlo.device_groups import participants
from hlo.shapes import Shape, ShapeIndex, cut_dimensions
from hlo.wire import slice_ranges
from olla_xla.check.executable.arrays import Arrays
from olla_xla.check.executable.converts import convert_of, converted
from olla_xla.check.executable.element_numbering import ElementNumbering
from olla_xla.check.executable.element_order import as_row, permuted, row_major, typed
from olla_xla.check.executable.expressions import EXCHANGES, ROUNDING
from olla_xla.check.executable.fusions import from_outside, is_elementwise, note_own, put
from olla_xla.check.executable.iterations import Loops
from olla_xla.check.executable.loops import number_loop
from olla_xla.check.executable.numbering import (
    EFFECT,
    HANDLERS,
    Numbers,
    all_of,
    hashed,
    is_exchange,
)
from olla_xla.check.executable.program import Body, Op, Program, acts
from olla_xla.check.executable.records import Concatenation, Digit, Update
from olla_xla.check.executable.slices import (
    part_kind,
    slice_of,
    sliced_axis,
    sliced_digit,
    without_axis,
    without_ones,
)

_MEMORIES = ("MoveToHost", "MoveToDevice")
"""Custom calls that XLA's host offloader replaces by copies."""


def program_digest(program: Program, target: str) -> str:
    """Hashes what a module computes, 32 hex digits; each element of a loop's state by itself."""
    numbering = ElementExpressions(target)
    root, effects = _results(numbering, program)
    return hashed(b"".join((all_of(root), EFFECT, *effects, *numbering.loops.marks()))).hex()


def _results(numbering: ElementExpressions, program: Program) -> tuple[Numbers, list[bytes]]:
    """(value numbers of the entry's results, hashes of its side effects except collectives)."""
    root, effects = numbering.function(program.entry)
    return root, [effect for effect in effects if not is_exchange(effect)]


def changed_results(before: Program, after: Program, target: str) -> tuple[list[ShapeIndex], bool]:
    """Finds the results that `after` may compute otherwise than `before`, or that only one has.

    Returns (their indices in the entry's result, whether the modules' visible effects differ).
    """
    (old, acts_then), (new, acts_now) = (
        _results(ElementExpressions(target), program) for program in (before, after)
    )
    changed = [i for i in sorted({*old, *new}) if old.get(i) != new.get(i)]
    return changed, acts_then != acts_now


class ElementExpressions(ElementNumbering):
    """Value numbering that tracks elements through loops, slices, updates, bitcasts and fusions."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._elementwise: dict[Body, bool] = {}
        self.loops = Loops()

    def computation(self, body: Body) -> bytes:
        """A hash of a computation: its results and effects as functions of its parameters."""
        terms, self.terms = self.terms, None
        digest = super().computation(body)
        self.terms = terms
        return digest

    def taken(self, number: bytes, at: bytes, shape: Shape, digit: Digit) -> bytes:
        """Value number of one slice of array `number`, at index `at` (both value numbers).

        `digit`: (count, stride in elements) of the sliced dimension. The slice is flattened.
        """
        return slice_of(self, number, at, shape, digit)

    def plain(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of an operation that has no rule: a hash of it and its operands' numbers.

        A scalar integer whose value is known has the number of that integer. Appends to `effects`.
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
        """Records, in a loop's body, how to recompute `op`'s value number for other operands."""
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
        array, *indices = (number for operand in operands for number in operand.values())
        if op.shape.element_bits < 8 or op.shape.element_type != whole.shape.element_type:
            return self.plain(op, operands, effects)
        return {(): self._taken_at(array, indices, whole.shape, op.shape)}

    def _taken_at(self, array: bytes, indices: Sequence[bytes], whole: Shape, part: Shape) -> bytes:
        """Value number of the part of `array` of shape `part` that begins at `indices`.

        Array and indices are value numbers. A part that was just written at the same indices
        (`_put`) has the number of what was written.
        """
        cut = cut_dimensions(part.dimensions, whole.dimensions)
        axis = next((k for k in cut if part.dimensions[k] == 1), None)
        if axis is None:
            new, small = without_ones(whole, part)
            array = self.arranged(array, whole, permuted(whole), new)
            at = tuple(indices[k] for k in cut)
            number = self.part_of(Update(part_kind(new, small), (array, b"", *at), new, small))
            return self.arranged(number, small, permuted(small), part)
        digit = sliced_digit(whole, axis)
        row = self.taken(array, indices[axis], whole, digit)
        if len(cut) == 1:
            return self.arranged(row, as_row(part), permuted(part), part)
        inner, small, others = without_axis(whole, part, axis)
        row = self.arranged(row, as_row(inner), permuted(inner), inner)
        row = self._taken_at(row, [indices[k] for k in others], inner, small)
        return self.arranged(row, small, permuted(small), part)

    def _slice(self, op: Op, number: bytes, index: bytes, axis: int) -> Numbers:
        """Value number of `op`: the slice of array `number` at `index` along dimension `axis`."""
        whole = op.operands[0].shape
        row = self.taken(number, index, whole, sliced_digit(whole, axis))
        return {(): self.arranged(row, as_row(op.shape), permuted(op.shape), op.shape)}

    def broadcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a broadcast; records its operand, dimensions and shapes in `repeated`."""
        numbers = self.plain(op, operands, effects)
        ((number,), (operand,)) = numbers.values(), operands[0].values()
        self.repeated[number] = operand, tuple(op.proto.dimensions), op.operands[0].shape, op.shape
        self._note_operation(op, operands, numbers)
        return numbers

    def concatenate(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a concatenate; records where its operands begin in `concatenations`."""
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
        """Value number of a static slice: the operand's if it is all of it, else by `_known_part`,
        or by `plain` if that does not apply.
        """
        (number,) = operands[0].values()
        if self.shape(op.operands[0].shape) == self.shape(op.shape):
            return operands[0]
        known = self._known_part(op, number)
        if known is None:
            numbers = self.plain(op, operands, effects)
            if number not in self.concatenations:
                self._note_operation(op, operands, numbers)
            return numbers
        if self._parts is not None:  # on a TPU, parts of arrays are joined again
            self._parts.note(op, number, known[()])
        return known

    def _known_part(self, op: Op, number: bytes) -> Numbers | None:
        """Value number of static slice `op` of array `number`, if it is a whole operand of the
        concatenate that made the array, or one index along one dimension; else None.
        """
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
        if axis is None:
            return None
        return self._slice(op, number, self.integers.number(ranges[axis][0]), axis)

    def convert(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value number of a convert; the original one if a value is widened and converted back."""
        ((number,), old) = operands[0].values(), op.operands[0].shape
        if (new_number := convert_of(self, number, old, op.shape)) is not None:
            return {(): new_number}
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
        """Value number of a dynamic-update-slice; an update of another type (on TPUs) is converted.

        That of a whole array is the update's, but for types under a byte. `effects`: not used.
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
        """Value number of `array` with `value` in place of the part of shape `part` at `indices`.

        A part of extent 1 along some dimension is put into the slice there, which is then put back.
        """
        cut = cut_dimensions(part.dimensions, whole.dimensions)
        if not cut:
            return value
        axis = next((k for k in cut if part.dimensions[k] == 1), None)
        if axis is None:
            new, small = without_ones(whole, part)
            array = self.arranged(array, whole, permuted(whole), new)
            value = self.arranged(value, part, permuted(part), small)
            numbers = array, value, *(indices[k] for k in cut)
            number = self.updated(Update(part_kind(new, small), numbers, new, small))
            return self.arranged(number, new, permuted(new), whole)
        digit = sliced_digit(whole, axis)
        row = self.arranged(value, part, permuted(part), as_row(part))
        if len(cut) > 1:
            inner, small, others = without_axis(whole, part, axis)
            old = self.taken(array, indices[axis], whole, digit)
            old = self.arranged(old, as_row(inner), permuted(inner), inner)
            row = self.arranged(row, as_row(small), permuted(small), small)
            row = self._put(old, row, [indices[k] for k in others], inner, small)
            row = self.arranged(row, inner, permuted(inner), as_row(inner))
        return self.updated(Update.of_slice((array, row, indices[axis]), row_major(whole), digit))

    def custom(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a custom call; the operand's if it moves that to or from the host."""
        is_move = op.proto.custom_call_target in _MEMORIES
        return operands[0] if is_move else self.plain(op, operands, effects)

    def fusion(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a fusion's results, with a hash of its code if that may change bits."""
        computed, arrays = set[bytes](), Arrays(op, self.alike)

        def noted(inner: Op, read: list[Numbers], result: Numbers) -> None:
            arrays.note(inner, read)
            note_own(self, inner, read, result, computed)

        outer = self._fused, self.noted
        self._fused, self.noted = computed, noted
        inside = self.run(op.called[0], operands, effects)
        self._fused, self.noted = outer
        rounded = {i: n for i, n in inside.items() if not self.is_free(op, i)}
        if not rounded:
            return inside
        made = self._codes_of(op, arrays, rounded)
        if self._is_elementwise(op.called[0]):
            outside = {i: from_outside(self, n, made[i], computed) for i, n in rounded.items()}
        else:
            outside = {i: put(self, n, made[i], computed) for i, n in rounded.items()}
        return inside | outside

    def _codes_of(
        self, op: Op, arrays: Arrays, results: Collection[ShapeIndex]
    ) -> dict[ShapeIndex, bytes]:
        """Result index -> hash of a fusion's code and of which arrays it reads have equal values.

        On XLA:TPU, which removes unread results, a hash covers only what its result needs.
        """
        root = op.called[0].result
        if not self.is_tpu or root.opcode != "tuple":
            return dict.fromkeys(results, self._code_of(op, arrays.candidates()))
        codes = {}
        for i in results:
            among = left = {root.operands[i[0]]}
            while left:
                left = {o for k in left for o in k.operands} - among
                among = among | left
            codes[i] = self._code_of(op, arrays.candidates(among))
        return codes

    def _code_of(self, op: Op, read: dict[bytes, frozenset[object]]) -> bytes:
        """A hash of a fusion's code, and of those values in `read` that several arrays hold.

        `read`: value number -> the arrays outside the fusion that it is read from.
        """
        return self.code_of(tuple(read.values()), self.code(op), *read) if read else self.code(op)

    def _is_elementwise(self, body: Body) -> bool:
        """Whether a fused computation is elementwise but for moves of elements; cached."""
        if body not in self._elementwise:
            self._elementwise[body] = is_elementwise(body)
        return self._elementwise[body]

    def loop(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a while: iteration by iteration, or by what each element depends on; of
        one with stateful operations as a whole. Appends to `effects`.

        In another loop's body they are placeholders, which each of its iterations replaces.
        """
        start = operands[0]
        if self.terms is not None:
            return self.loops.later(self, op, start, effects)
        if self.loops.is_stateful(op):
            return super().loop(op, operands, effects)
        numbers, seen = self.loops.followed(self, op, start) or number_loop(self, op, start)
        effects += [e for e in seen if e not in effects or not is_exchange(e)]
        return numbers


def _again(numbering: ElementExpressions, op: Op, *operands: bytes) -> bytes:
    """Recomputes the value number of an operation in a loop's body for other operands' numbers."""
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
    "custom-call": ElementExpressions.custom,
    "dynamic-slice": ElementExpressions.slice,
    "slice": ElementExpressions.part,
    "transpose": ElementExpressions.transpose,
    "dynamic-update-slice": ElementExpressions.update,
    "fusion": ElementExpressions.fusion,
    "while": ElementExpressions.loop,
}
