"""What a module computes: a digest of its results as expressions of its arguments.

Every value gets a number, the hash of its operation and of the numbers of what that reads; two
values with one number hold the same bits. Order, names, copies, clones and in-place results leave
no trace in it, a wrong operand, a lost update or an exchanged loop state does. Fusions are seen
through, but for what decides the code that XLA makes of them (`Numbering.code`) where that may
change a bit (`exact`); what they only move is not theirs, and what they compute element by element
does not depend on where they put it. Loops are numbered element by element (`loops`). What the
world outside can see (callbacks, random state) is counted in its order.

A collective counts for its value: it is the same where the groups, what they count (replicas,
partitions or both), the reduction and the operands are. What else it does is that devices come to
it together. All of them run one module, so they come alike to all of its entry computation, and of
loops there that turn as often as a constant says: nothing there depends on how many collectives
there are. A branch, or another loop, may be for some of them: there it counts which groups meet,
and not how often, as those that came to one collective come to the next one of the same groups.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

from hlo import xla_pb2
from hlo.device_groups import groups_listed, participants
from hlo.shapes import Shape
from hlo.wire import slice_ranges
from olla_xla.check.executable.arrays import Alike, Arrays
from olla_xla.check.executable.checkpoints import Held, Kept
from olla_xla.check.executable.converts import (
    Rounded,
    exposed,
    is_wider,
    narrowed,
    rounded,
    slice_of_converted,
    widened,
)
from olla_xla.check.executable.exact import divides
from olla_xla.check.executable.integers import Form, Integers, Known
from olla_xla.check.executable.loops import (
    Stack,
    is_leading,
    number_loop,
    one_slice,
    slice_of,
    sliced_axis,
)
from olla_xla.check.executable.numbering import (
    BITCAST,
    EFFECT,
    END,
    HANDLERS,
    PARAMETER,
    Numbering,
    Numbers,
    all_of,
    hashed,
    is_exchange,
    named,
)
from olla_xla.check.executable.program import Body, Op, Program, leaves
from olla_xla.check.executable.scalars import Scalars
from olla_xla.check.executable.turns import (
    Steps,
    one_of,
    same_digit,
    slice_of_turned,
    transposed,
    turned,
)

__all__ = ["ElementNumbering", "program_digest"]

_PASSING = frozenset(
    "bitcast copy tuple get-tuple-element opt-barrier optimization-barrier domain".split()
)
"""Opcodes whose result's elements are those of their operands."""

_MOVING = frozenset(
    "broadcast concatenate constant dynamic-slice dynamic-update-slice iota reshape reverse slice "
    "transpose".split()
)
"""Opcodes that compute nothing: whoever runs them, the bits are the same."""

_EACH = frozenset(
    "abs add and atan2 bitcast-convert cbrt ceil clamp clz compare convert cosine divide erf "
    "exponential exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum "
    "multiply negate not or pad parameter popcnt power remainder round-nearest-afz "
    "round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign "
    "sine sqrt subtract tan tanh xor".split()
)
"""Opcodes that compute every element of their result for itself."""


_EXACT = frozenset(
    "abs add and clamp compare convert maximum minimum multiply negate not or select sign subtract "
    "xor".split()
)
_WHOLE = frozenset(range(1, 10))
"""Opcodes that round nothing where all they read and give is of these types: integers and pred."""


def program_digest(program: Program, target: str) -> str:
    """The digest of a module, 32 hex digits. The program cannot be used for anything else then."""
    root, effects = ElementNumbering(target).function(program.entry)
    seen = [effect for effect in effects if not is_exchange(effect)]
    return hashed(b"".join((all_of(root), EFFECT, *seen))).hex()


_INTEGER, _SLICE = hashed(b"integer"), hashed(b"slice")


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


class ElementNumbering(Numbering):
    """Numbers what fusions compute element by element wherever it stands, and loops likewise.

    Attributes:
      integers: what is known of scalar integers.
      updates: by number, the dynamic-update-slice that it is.
      concatenations: by number, the concatenation that it is.
      repeated: by number, the broadcast that it is: its operand's number, dimensions and shape.
      comparisons: by number, the comparison of two known integers: direction, left, right.
      stacks: by number, what a loop wrote slice by slice.
      widened: by number, what was converted to a wider type: its number, its shape, the new one.
      rounded: by number, the convert that it is, to a type that is not wider.
      turns: by number, the row of which it has the elements in another order, its shape, and steps
        over it.
      scalars: how scalar integers were computed.
      cuts: by number, of one slice of an array: the array's, and that of the index.
      given: numbers of slices, by the array's and the index's.
      kept: by number, what a loop kept of some turns. held: likewise, in a turn of another loop.
      alike: elements of loops' states that are arrays from outside.
      depth: in how many loops it is.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.integers = Integers()
        self.updates: dict[bytes, Update] = {}
        self.concatenations: dict[bytes, Concatenation] = {}
        self.repeated: dict[bytes, tuple[bytes, tuple[int, ...], Shape]] = {}
        self.comparisons: dict[bytes, tuple[str, Form, Form]] = {}
        self.stacks: dict[bytes, Stack] = {}
        self.widened: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.rounded: dict[bytes, Rounded] = {}
        self.turns: dict[bytes, tuple[bytes, Shape, Steps]] = {}
        self.scalars = Scalars(self.integers)
        self.cuts: dict[bytes, tuple[bytes, bytes]] = {}
        self.given: dict[tuple[bytes, bytes], bytes] = {}
        self.kept: dict[bytes, Kept] = {}
        self.held: dict[bytes, Held] = {}
        self.depth = 0
        self._fused: set[bytes] | None = None
        """Of the fusion that is looked into, the numbers of what it computes and not only moves."""
        self._arrays = Arrays()
        self.alike: Alike = {}
        self._plain_bodies: dict[Body, bool] = {}
        self._lies: dict[Shape, bytes] = {}
        self.bitcasts: dict[bytes, tuple[bytes, Shape, Shape]] = {}

    def run(self, body: Body, given: list[Numbers], effects: list[bytes]) -> Numbers:
        """Numbers of a computation's result for those of its parameters; notes its effects."""
        at: dict[Op, Numbers] = dict(zip(body.parameters, given, strict=True))
        handlers, plain = self.handlers, type(self).plain
        for op in body.ops:
            if op.opcode != "parameter":
                handler = handlers.get(op.opcode, plain)
                read = [at[o] for o in op.operands]
                at[op] = handler(self, op, read, effects)
                if self._fused is not None:
                    self._arrays.note(op, read)
                    if op.opcode not in _PASSING:
                        self._note_computed(op, read, at[op], self._fused)
        return at[body.result]

    def apart(self, body: Body, given: Numbers) -> Numbers:
        """The same of a body without effects, whatever is being looked into."""
        fused, self._fused = self._fused, None
        result = self.run(body, [given], [])
        self._fused = fused
        return result

    def _note_computed(
        self, op: Op, read: list[Numbers], result: Numbers, computed: set[bytes]
    ) -> None:
        """Notes what an operation inside a fusion computes, and does not only move."""
        if op.opcode in _MOVING:
            if not any(n in computed for numbers in read for n in numbers.values()):
                return
            if op.opcode == "slice" and self._is_handed_on(read[0], result):
                return
        elif _is_exact(op) and not any(n in computed for given in read for n in given.values()):
            return
        elif op.opcode == "convert":
            (number,), (before,) = result.values(), read[0].values()
            is_narrowed = narrowed(self, before, op.shape) == number
            if is_narrowed or (self._unmoved(number) in self.widened and before not in computed):
                return
        elif all(n in self.comparisons or self.integers.form(n) for n in result.values()):
            return
        computed.update(result.values())

    def _is_handed_on(self, whole: Numbers, result: Numbers) -> bool:
        """Whether a slice gives just what a concatenation was given."""
        ((number,), (part,)) = whole.values(), result.values()
        made = self.concatenations.get(number)
        return made is not None and part in made.numbers

    def first(self, number: bytes) -> bytes:
        """The number behind a bitcast."""
        return self.bitcasts[number][0] if number in self.bitcasts else number

    def _unmoved(self, number: bytes) -> bytes:
        """The number behind bitcasts and transposes."""
        while number in self.bitcasts or number in self.turns:
            number = (self.bitcasts.get(number) or self.turns[number])[0]
        return number

    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The same bytes by another shape; there and back again is nothing."""
        first, began, made = self.bitcasts.get(number, (number, old, old))
        if self._lying(made) == self._lying(old):  # a copy in between may have changed the layout
            old = began
        else:
            first = number
        if self._lying(old) == self._lying(new):
            return first
        result = hashed(BITCAST + first + self._lying(old) + self._lying(new))
        self.bitcasts[result] = first, old, new
        self.note_moved(first, result)
        return result

    def note_moved(self, number: bytes, result: bytes) -> None:
        """Notes what is nothing but a number's elements elsewhere: it is computed where that is."""
        if self.is_computed(number):
            self.note_computed(result)

    def is_computed(self, number: bytes) -> bool:
        """Whether the fusion that is looked into computes it."""
        return self._fused is not None and number in self._fused

    def _lying(self, shape: Shape) -> bytes:
        """A number for how elements lie in memory: extents of 1 may stand anywhere in a layout."""
        if shape not in self._lies:
            order = tuple(k for k in shape.minor_to_major if shape.dimensions[k] != 1)
            said = (shape.element_type, shape.element_bits, shape.dimensions, order)
            self._lies[shape] = hashed(repr(said).encode())
        return self._lies[shape]

    def note_computed(self, number: bytes) -> None:
        """Notes what the fusion that is looked into computes."""
        if self._fused is not None:
            self._fused.add(number)

    def integer(self, form: Form, kind: int, *, whole: bool) -> bytes:
        """A number for an integer of element type `kind` that is known so far.

        Args:
          form: of it. kind: its element type. whole: whether it is sure to be the form's value,
            and not only what is left of that after wrapping around.
        """
        known = self.integers
        if form.symbol is not None and form[1:] == (1, 0) and known.kind(form.symbol) == kind:
            return form.symbol
        number = hashed(_INTEGER + repr((kind, *form)).encode())
        self.scalars.type(number, kind)
        known.note(number, form, known.over(form) if whole else None)
        return number

    def _settled(self, known: Known, kind: int, numbers: Callable[[], Numbers]) -> Numbers:
        """Numbers of an integer of which something is known; `numbers` gives those of others."""
        if known.number is not None:
            return {(): known.number}
        if known.form is not None:
            return {(): self.integer(known.form, kind, whole=known.bounds is not None)}
        result = numbers()
        self.integers.note(result[()], None, known.bounds)
        return result

    def plain(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """An operation that is nothing but its opcode, attributes, operands and callees."""
        read = [number for numbers in operands for number in numbers.values()]
        kind = self.integers.type_of(op)
        known = self.integers.result(op, kind, read) if kind else None
        if known is None:
            numbers = super().plain(op, operands, effects)
            if kind:
                self.scalars.note(op, kind, numbers[()], read)
            return numbers
        numbers = self._settled(
            known, kind, functools.partial(super().plain, op, operands, effects)
        )
        self.scalars.note(op, kind, numbers[()], read)
        if op.opcode == "compare":
            left, right = map(self.integers.whole, read)
            if left is not None and right is not None:
                self.comparisons[numbers[()]] = op.proto.comparison_direction, left, right
        return numbers

    def bitcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """The same bytes by another shape."""
        (number,) = operands[0].values()
        return {(): self.cast(number, op.operands[0].shape, op.shape)}

    def slice(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A dynamic-slice; one of a stack is what a loop wrote, one of the whole is the whole."""
        whole = op.operands[0]
        if self.shape(whole.shape) == self.shape(op.shape):
            return operands[0]  # XLA clamps the index to the only place there is
        axis = sliced_axis(op.shape, whole.shape)
        if axis is None:
            return self.plain(op, operands, effects)
        ((number,), (index,)) = operands[0].values(), operands[1 + axis].values()
        if (given := self._given(number, index, axis, op.shape)) is not None:
            return {(): given}
        return {(): self.taken(number, index, whole.shape, axis)}

    def _given(self, number: bytes, at: bytes, axis: int, part: Shape) -> bytes | None:
        """What a slice is of an array that has another loop's turns."""
        if axis or number not in self.held:
            return self.given.get((number, at))
        return self.held[number].slice(self, at, part)

    def taken(self, number: bytes, at: bytes, shape: Shape, axis: int) -> bytes:
        """One slice of an array, by what that was made of.

        Args:
          number: of the array. at: of the place. shape: of the array. axis: along which.
        """
        part = one_of(shape, axis)
        if (held := self._held(number, at, shape, part)) is not None:
            return held
        if (found := slice_of(self, number, at, shape, part)) is not None:
            return found
        if (found := slice_of_turned(self, number, at, axis)) is not None:
            return found
        if (found := slice_of_converted(self, number, at, axis)) is not None:
            return found
        if number in self.bitcasts:
            first, old, new = self.bitcasts[number]
            if (theirs := same_digit(old, new, axis)) is not None:
                inner = self.taken(first, at, old, theirs)
                return self.cast(inner, one_of(old, theirs), one_of(new, axis))
        kind = named((shape.element_type, axis, *shape.dimensions))
        result = hashed(b"".join((_SLICE, kind, number, at)))
        if axis == 0:
            self.cuts[result] = number, at
        self.note_moved(number, result)
        return result

    def _held(self, number: bytes, at: bytes, shape: Shape, part: Shape) -> bytes | None:
        """What a slice is of an array that was just updated there, or that repeats it.

        Args:
          number: of the array. at: of the place, which XLA moves into the array for both alike.
          shape: of the array. part: of the slice.
        """
        axis = sliced_axis(part, shape)
        if axis is None:
            return None
        if (update := self.updates.get(number)) is not None:
            same = self._is_one_place(update.numbers[2 + axis], at)
            same &= self.shape(update.part) == self.shape(part)
            return update.numbers[1] if same else None
        if (repeated := self.repeated.get(number)) is not None:
            value, dimensions, old = repeated
            others = tuple(k for k in range(len(shape.dimensions)) if k != axis)
            return self.cast(value, old, part) if dimensions == others else None
        first, old, new = self.bitcasts.get(number, (number, shape, shape))
        count = shape.dimensions[0]
        if first == number or axis or not is_leading(old, count) or not is_leading(new, count):
            return None
        inner = self._held(first, at, old, one_slice(old))
        return None if inner is None else self.cast(inner, one_slice(old), one_slice(new))

    def _is_one_place(self, one: bytes, other: bytes) -> bool:
        """Whether two indices are equal, of whichever types they are."""
        left, right = self.integers.whole(one), self.integers.whole(other)
        return one == other or (left is not None and left == right)

    def broadcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A broadcast."""
        numbers = self.plain(op, operands, effects)
        ((number,), (operand,)) = numbers.values(), operands[0].values()
        self.repeated[number] = operand, tuple(op.proto.dimensions), op.operands[0].shape
        return numbers

    def concatenate(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A concatenation."""
        numbers = tuple(number for operand in operands for number in operand.values())
        (dimension,) = op.proto.dimensions
        extents = (o.shape.dimensions[dimension] for o in op.operands)
        starts = (0, *itertools.accumulate(extents))
        return {(): self._joined(Concatenation(self.attributes(op), numbers, dimension, starts))}

    def _joined(self, made: Concatenation) -> bytes:
        number = hashed(b"".join((made.made, END, *made.numbers)))
        self.concatenations[number] = made
        return number

    def part(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A slice; it may be all, or just what a concatenation was given."""
        (number,) = operands[0].values()
        if self.shape(op.operands[0].shape) == self.shape(op.shape):
            return operands[0]
        made = self.concatenations.get(number)
        if made is None:
            return self.plain(op, operands, effects)
        ranges, whole = slice_ranges(op.proto), op.operands[0].shape.dimensions
        start, limit, _ = ranges[made.dimension]
        others = [r for k, r in enumerate(ranges) if k != made.dimension]
        full = [(0, n, 1) for k, n in enumerate(whole) if k != made.dimension]
        if others == full and ranges[made.dimension][2] == 1 and start in made.starts:
            k = made.starts.index(start)
            if made.starts[k + 1 : k + 2] == (limit,):
                return {(): made.numbers[k]}
        return self.plain(op, operands, effects)

    def convert(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A convert; one to a wider type loses nothing, so that back again is nothing."""
        ((number,), old) = operands[0].values(), op.operands[0].shape
        if (found := narrowed(self, number, op.shape)) is not None:
            return {(): found}
        if is_wider(old, op.shape):
            return {(): widened(self, number, old, op.shape)}
        if (found := rounded(self, number, old, op.shape)) is not None:
            return {(): found}
        return self.plain(op, operands, effects)

    def exchanged(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A collective that sums nothing: what it gives of an operand is that one's alone."""
        numbers = self.plain(op, operands, effects)
        proto = xla_pb2.HloInstructionProto()
        proto.CopyFrom(op.proto)  # without what is not its own
        proto.ClearField("shape")
        made = hashed(groups_listed(proto.SerializeToString(deterministic=True)))
        parts = [part for _, part in leaves(op.shape)]
        if len(parts) != len(operands) or any(len(n) != 1 for n in operands):
            return numbers
        shapes = (
            self.shape(o.shape) + self.shape(p) for o, p in zip(op.operands, parts, strict=True)
        )
        given = (number for read in operands for number in read.values())
        found = [hashed(made + s + END + n) for s, n in zip(shapes, given, strict=True)]
        return {index: n for (index, _), n in zip(leaves(op.shape), found, strict=True)}

    def meeting(self, op: Op, effect: bytes) -> bytes:
        """A number for the groups that meet in a collective, whatever they exchange."""
        return hashed(participants(op.proto.SerializeToString(deterministic=True)))

    def transpose(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A transpose; what it does to a stack it does to each slice."""
        (operand,) = operands[0].values()
        before = op.operands[0].shape
        if before.element_bits < 8:
            return self.plain(op, operands, effects)
        return {(): transposed(self, operand, before, op.proto.dimensions, op.shape)}

    def update(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A dynamic-update-slice."""
        numbers = tuple(number for operand in operands for number in operand.values())
        shapes = op.operands[0].shape, op.operands[1].shape
        return {(): self._updated(Update(self.attributes(op), numbers, *shapes))}

    def _updated(self, update: Update) -> bytes:
        number = hashed(b"".join((update.made, END, *update.numbers)))
        self.updates[number] = update
        return number

    def fusion(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """What its computation gives for these operands, made by code of this kind."""
        outer = self._fused, self._arrays
        self._fused, self._arrays = set(), Arrays.of(op, self.alike)
        inside = self.run(op.called[0], operands, effects)
        computed, arrays = self._fused, self._arrays
        self._fused, self._arrays = outer
        if self.is_free(op):
            return inside
        made = self.code(op)
        if several := arrays.several():
            made = hashed(made + several)
        if self._is_each(op.called[0]):
            return {i: self._exposed(n, made, computed) for i, n in inside.items()}
        return {i: hashed(made + n) if n in computed else n for i, n in inside.items()}

    def _exposed(self, number: bytes, made: bytes, computed: set[bytes]) -> bytes:
        """What a fusion computes element by element, wherever it puts it."""
        if number not in computed:
            return number
        if number in self.bitcasts:
            first, old, new = self.bitcasts[number]
            return self.cast(self._exposed(first, made, computed), old, new)
        if number in self.widened:
            first, old, new = self.widened[number]
            return widened(self, self._exposed(first, made, computed), old, new)
        if number in self.turns:
            row, flat, steps = self.turns[number]
            return turned(self, self._exposed(row, made, computed), flat, steps)
        if number in self.updates:
            update = self.updates[number]
            numbers = tuple(self._exposed(n, made, computed) for n in update.numbers)
            return self._updated(update._replace(numbers=numbers))
        if number in self.concatenations:
            whole = self.concatenations[number]
            numbers = tuple(self._exposed(n, made, computed) for n in whole.numbers)
            return self._joined(whole._replace(numbers=numbers))
        return exposed(self, number, made)

    def _is_each(self, body: Body) -> bool:
        """Whether a fused computation has nothing that depends on how its code is arranged."""
        if body not in self._plain_bodies:
            self._plain_bodies[body] = all(
                op.opcode in _EACH or op.opcode in _MOVING or op.opcode in _PASSING
                for op in body.ops
            )
        return self._plain_bodies[body]

    def symbol(self, number: bytes, shape: Shape, turns: int | None = None) -> None:
        """Says that a number of its own is an integer, if it is one; and what it counts."""
        if shape.is_array and not shape.dimensions:
            self.integers.symbol(number, shape.element_type, turns)

    def loop(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A while: its body and condition as functions of the state, and where that begins."""
        body, condition = op.called
        start = operands[0]
        symbols = {i: hashed(PARAMETER + named((0, *i))) for i in start}
        for i, number in symbols.items():
            self.symbol(number, body.parameters[0].shape.at(i))
        inner: list[bytes] = []
        before = self.stateful
        root = self.run(body, [symbols], inner)
        self.run(condition, [symbols], inner)
        turns = hashed(op.proto.backend_config)  # a known number of turns, which XLA counts by
        if self.stateful == before:
            numbers, seen = number_loop(self, op, start, symbols, root, turns)
            effects += [e for e in seen if e not in effects or not is_exchange(e)]
            return numbers
        whole, numbers = self.whole_loop(op, start, symbols, root, inner)
        effects.append(hashed(EFFECT + whole))
        return numbers


def _is_exact(op: Op) -> bool:
    """Whether it gives the same bits by whatever code it is computed."""
    kinds = (o.shape.element_type for o in (op, *op.operands))
    return (op.opcode in _EXACT or divides(op)) and all(kind in _WHOLE for kind in kinds)


ElementNumbering.handlers = {
    **HANDLERS,
    "all-gather": ElementNumbering.exchanged,
    "collective-broadcast": ElementNumbering.exchanged,
    "collective-permute": ElementNumbering.exchanged,
    "bitcast": ElementNumbering.bitcast,
    "broadcast": ElementNumbering.broadcast,
    "concatenate": ElementNumbering.concatenate,
    "convert": ElementNumbering.convert,
    "dynamic-slice": ElementNumbering.slice,
    "slice": ElementNumbering.part,
    "transpose": ElementNumbering.transpose,
    "dynamic-update-slice": ElementNumbering.update,
    "fusion": ElementNumbering.fusion,
    "while": ElementNumbering.loop,
}
