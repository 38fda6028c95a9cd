"""What a module computes: a digest of its results as expressions of its arguments.

Every value gets a number, the hash of its operation and of the numbers of what that reads; two
values with one number hold the same bits. Order, names, copies, clones and in-place results leave
no trace in it, a wrong operand, a lost update or an exchanged loop state does. Fusions are seen
through, but for their kind and configuration, which decide the code that XLA makes of them; what
they only move is not theirs, and what they compute element by element does not depend on where they
put it. Loops are numbered element by element (`loops`). What the world outside can see (callbacks,
random state, collectives) is counted in its order.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import NamedTuple

from hlo import xla_pb2
from hlo.shapes import TUPLE, Shape, ShapeIndex
from olla_xla.check.executable.integers import Form, Integers
from olla_xla.check.executable.loops import Stack, number_loop, slice_of
from olla_xla.check.executable.program import Body, Op, Program, acts, has_state, leaves, may_repeat

__all__ = ["Numbering", "program_digest"]

Numbers = dict[ShapeIndex, bytes]
"""Leaf index -> number, of one operation's result."""

_CLEARED = (
    "name id operand_ids control_predecessor_ids called_computation_ids metadata "
    "frontend_attributes output_operand_aliasing sharding"
).split()
"""Fields of an instruction that say nothing of its result, or are hashed otherwise."""

_WIDER = frozenset({(10, 11), (16, 11), (10, 12), (16, 12), (11, 12)})
"""Element types, f16, bf16, f32 and f64, from and to which converting keeps every value."""

_BARE = frozenset(
    "abs add and ceil clamp convert divide floor maximum minimum multiply negate not or remainder "
    "select sign subtract xor".split()
)
"""Opcodes that say nothing but their shape: most of what fusions hold."""

_CONFIGURED = frozenset("fusion custom-call dot convolution while".split())
"""Opcodes whose backend_config decides what is computed, or by which code."""

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


def program_digest(program: Program) -> str:
    """The digest of a module, 32 hex digits. The program cannot be used for anything else then."""
    return Numbering().computation(program.entry).hex()


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SIZE).digest()


def _named(index: ShapeIndex) -> bytes:
    """An index as a number."""
    return _hash(b"index" + repr(index).encode())


_SIZE = 16
"""Bytes of a number. What is hashed is a list of numbers, so that no two lists read alike."""

(
    _PARAMETER,
    _EFFECT,
    _BITCAST,
    _CONTEXT,
    _WHILE,
    _CONDITIONAL,
    _BODY,
    _END,
    _PART,
    _DONE,
    _SHAPED,
    _INTEGER,
) = (
    _hash(name.encode())
    for name in (
        "parameter effect bitcast context while conditional body end part done bare integer"
    ).split()
)


class Update(NamedTuple):
    """A dynamic-update-slice: number of its attributes, and of its operands; shapes.

    Attributes:
      shape: of the whole. part: of what is written. kind: element type of the indices.
    """

    made: bytes
    numbers: tuple[bytes, ...]
    shape: Shape
    part: Shape
    kind: int


class Numbering:
    """Numbers the values of one module.

    Attributes:
      integers: what is known of scalar integers.
      updates: by number, the dynamic-update-slice that it is.
      comparisons: by number, the comparison of two known integers: direction, left, right.
      stacks: by number, what a loop wrote slice by slice.
      widened: by number, what was converted to a wider type: its number, its shape, the new one.
      transposes: by number, the transpose that keeps dimension 0, and the number of its operand.
      depth: in how many loops it is.
      stateful: how many effects it has met whose results depend on how often they ran.
    """

    def __init__(self) -> None:
        self.integers = Integers()
        self.updates: dict[bytes, Update] = {}
        self.comparisons: dict[bytes, tuple[str, Form, Form]] = {}
        self.stacks: dict[bytes, Stack] = {}
        self.widened: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self.transposes: dict[bytes, tuple[Op, bytes]] = {}
        self.depth = 0
        self.stateful = 0
        self._fused: set[bytes] | None = None
        """Of the fusion that is looked into, the numbers of what it computes and not only moves."""
        self._plain_bodies: dict[Body, bool] = {}
        self._bodies: dict[Body, bytes] = {}
        self._attributes: dict[Op, bytes] = {}
        self.bitcasts: dict[bytes, tuple[bytes, Shape, Shape]] = {}
        self._shapes: dict[Shape, bytes] = {}
        self._bare: dict[bytes, bytes] = {}

    def computation(self, body: Body) -> bytes:
        """Number of a computation as a function of its parameters."""
        if body not in self._bodies:
            given = [
                {i: _hash(_PARAMETER + _named((k, *i))) for i, _ in leaves(p.shape)}
                for k, p in enumerate(body.parameters)
            ]
            effects: list[bytes] = []
            root = self.run(body, given, effects)
            self._bodies[body] = _hash(b"".join((_BODY, _all(root), _EFFECT, *effects)))
        return self._bodies[body]

    def run(self, body: Body, given: list[Numbers], effects: list[bytes]) -> Numbers:
        """Numbers of a computation's result for those of its parameters; notes its effects."""
        at: dict[Op, Numbers] = dict(zip(body.parameters, given, strict=True))
        for op in body.ops:
            if op.opcode != "parameter":
                handler = _HANDLERS.get(op.opcode, Numbering.plain)
                read = [at[o] for o in op.operands]
                at[op] = handler(self, op, read, effects)
                if self._fused is not None and op.opcode not in _PASSING:
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
        elif op.opcode == "convert":
            (number,), (before,) = result.values(), read[0].values()
            is_narrowed = self.narrow(before, op.shape) == number
            if is_narrowed or (self.first(number) in self.widened and before not in computed):
                return
        elif all(n in self.comparisons or self.integers.form(n) for n in result.values()):
            return
        computed.update(result.values())

    def attributes(self, op: Op) -> bytes:
        """A number for all that an instruction says of itself beside its operands and callees."""
        found = self._attributes.get(op)
        if found is None and op.opcode in _BARE:
            made = op.opcode.encode() + b" " + op.proto.shape.SerializeToString()
            found = self._bare.get(made)
            if found is None:
                found = self._bare[made] = _hash(
                    _SHAPED + op.opcode.encode() + self.shape(op.shape)
                )
        elif found is None:
            proto = op.proto
            for field in _CLEARED:
                proto.ClearField(field)
            if op.opcode not in _CONFIGURED:
                proto.ClearField("backend_config")
            if op.opcode.endswith("-start"):
                proto.opcode = op.opcode.removesuffix("-start")
                op.forget_shape()
            elif proto.shape.layout.memory_space:
                proto.shape.layout.memory_space = 0
            if proto.HasField("precision_config"):
                _normalise(proto.precision_config)
            found = self._attributes[op] = _hash(proto.SerializeToString(deterministic=True))
        return found

    def shape(self, shape: Shape) -> bytes:
        """A number for element type, extents and layout."""
        found = self._shapes.get(shape)
        if found is None:
            parts = (shape.element_type, shape.dimensions, shape.minor_to_major, shape.element_bits)
            found = self._shapes[shape] = _hash(repr(parts).encode())
        return found

    def first(self, number: bytes) -> bytes:
        """The number behind a bitcast."""
        return self.bitcasts[number][0] if number in self.bitcasts else number

    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The same bytes by another shape; there and back again is nothing."""
        first, began, made = self.bitcasts.get(number, (number, old, old))
        if self.shape(made) == self.shape(old):  # a copy in between may have changed the layout
            old = began
        else:
            first = number
        if self.shape(old) == self.shape(new):
            return first
        result = _hash(_BITCAST + first + self.shape(old) + self.shape(new))
        self.bitcasts[result] = first, old, new
        if (computed := self._fused) is not None and first in computed:
            computed.add(result)
        return result

    def integer(self, form: Form, kind: int) -> bytes:
        """A number for an integer of element type `kind` that is known so far."""
        if form.symbol is not None and form[1:] == (1, 0):
            return form.symbol
        number = _hash(_INTEGER + repr((kind, *form)).encode())
        self.integers.note(number, form)
        return number

    def plain(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """An operation that is nothing but its opcode, attributes, operands and callees."""
        if op.opcode.endswith("-done") and op.operands[0].shape.is_tuple:
            return self.done(op, operands[0])
        read = [number for numbers in operands for number in numbers.values()]
        if kind := self.integers.type_of(op):
            form = self.integers.result(op, read)
            if form is not None:
                return {(): self.integer(form, kind)}
        whole = [self.attributes(op), *map(self.computation, op.called), _END, *read]
        if acts(op):
            if has_state(op):
                self.stateful += 1
                whole.append(_named((len(effects),)))
            effect = _hash(b"".join((_EFFECT, *whole)))
            if not (may_repeat(op) and effect in effects):
                effects.append(effect)
        number = _hash(b"".join(whole))
        if op.opcode == "compare":
            left, right = map(self.integers.form, read)
            if left is not None and right is not None:
                self.comparisons[number] = op.proto.comparison_direction, left, right
        if op.proto.shape.element_type != TUPLE:
            return {(): number}
        # Of a start the second element is the result, as of the same operation without one.
        begun = op.opcode.endswith("-start")
        return {
            i: number if begun and i == (1,) else _hash(_PART + number + _named(i[begun:]))
            for i, _ in leaves(op.shape)
        }

    def done(self, op: Op, start: Numbers) -> Numbers:
        """What the end of an asynchronous operation takes out of its start's tuple."""
        if op.opcode == "all-reduce-done":
            return start
        first = 0 if op.opcode in ("copy-done", "recv-done") else 1
        taken = {i[1:]: n for i, n in start.items() if i and i[0] == first}
        own = _hash(_DONE + self.attributes(op) + b"".join(start.values()))
        return {i: taken[i] if i in taken else _hash(own + _named(i)) for i, _ in leaves(op.shape)}

    def same(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Hands its operand on."""
        return operands[0]

    def bitcast(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """The same bytes by another shape."""
        (number,) = operands[0].values()
        return {(): self.cast(number, op.operands[0].shape, op.shape)}

    def slice(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A dynamic-slice; one of a stack is what a loop wrote, one of the whole is the whole."""
        whole, at = op.operands[:2]
        if self.shape(whole.shape) == self.shape(op.shape):
            return operands[0]  # XLA clamps the index to the only place there is
        number, index = (n for numbers in operands[:2] for n in numbers.values())
        kind = self.integers.type_of(at)
        found = slice_of(self, number, index, kind, whole.shape, op.shape) if kind else None
        return self.plain(op, operands, effects) if found is None else {(): found}

    def convert(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A convert; one to a wider type loses nothing, so that back again is nothing."""
        ((number,), old) = operands[0].values(), op.operands[0].shape
        if (narrow := self.narrow(number, op.shape)) is not None:
            return {(): narrow}
        if (old.element_type, op.shape.element_type) in _WIDER:
            return {(): self.widen(number, old, op.shape)}
        return self.plain(op, operands, effects)

    def narrow(self, number: bytes, new: Shape) -> bytes | None:
        """What was converted to a wider type, if it was of the new type; bitcasts stay outside."""
        if number in self.widened:
            first, before, _ = self.widened[number]
            return first if before.element_type == new.element_type else None
        if number not in self.bitcasts:
            return None
        first, old, made = self.bitcasts[number]
        inner = self.narrow(first, new) if old.element_type == made.element_type else None
        return None if inner is None else self.cast(inner, _typed(old, new), _typed(made, new))

    def widen(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The number of what a convert to a wider type makes of a number; bitcasts stay outside."""
        if number in self.bitcasts:
            first, began, made = self.bitcasts[number]
            if began.element_type == made.element_type == old.element_type:
                wide = self.widen(first, began, _typed(began, new))
                return self.cast(wide, _typed(began, new), _typed(made, new))
        result = _hash(_hash(_SHAPED + b"convert" + self.shape(new)) + _END + number)
        self.widened[result] = number, old, new
        return result

    def transpose(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A transpose; what it does to a stack it does to each slice."""
        numbers = self.plain(op, operands, effects)
        if op.proto.dimensions[:1] == [0]:
            (operand,), (number,) = operands[0].values(), numbers.values()
            self.transposes[number] = op, operand
        return numbers

    def transpose_of_slice(self, op: Op, operand: bytes) -> bytes:
        """The number of one slice of what a transpose gives, for that of its operand's slice."""
        self.attributes(op)  # clears what is not its own
        proto = xla_pb2.HloInstructionProto()
        proto.CopyFrom(op.proto)
        proto.shape.dimensions[0] = 1
        return _hash(_hash(proto.SerializeToString(deterministic=True)) + _END + operand)

    def update(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A dynamic-update-slice."""
        numbers = tuple(number for operand in operands for number in operand.values())
        shapes = op.operands[0].shape, op.operands[1].shape
        kind = self.integers.type_of(op.operands[2]) if len(op.operands) > 2 else 0
        return {(): self._updated(Update(self.attributes(op), numbers, *shapes, kind))}

    def _updated(self, update: Update) -> bytes:
        number = _hash(b"".join((update.made, _END, *update.numbers)))
        self.updates[number] = update
        return number

    def pack(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A tuple."""
        return {(k, *i): n for k, numbers in enumerate(operands) for i, n in numbers.items()}

    def barrier(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Hands its operands on."""
        return operands[0] if len(operands) == 1 else self.pack(op, operands, effects)

    def element(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """An element of a tuple."""
        k = op.proto.tuple_index
        if not op.shape.is_tuple:
            return {(): operands[0][(k,)]}
        return {i[1:]: n for i, n in operands[0].items() if i[0] == k}

    def fusion(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """What its computation gives for these operands, made by code of this kind."""
        outer, self._fused = self._fused, set()
        inside = self.run(op.called[0], operands, effects)
        computed, self._fused = self._fused, outer
        op.forget_shape()  # one result more or less leaves the others as they are
        made = self.attributes(op)
        if self._is_each(op.called[0]):
            return {i: self._exposed(n, made, computed) for i, n in inside.items()}
        return {i: _hash(made + n) if n in computed else n for i, n in inside.items()}

    def _exposed(self, number: bytes, made: bytes, computed: set[bytes]) -> bytes:
        """What a fusion computes element by element, wherever it puts it."""
        if number not in computed:
            return number
        if number in self.bitcasts:
            first, old, new = self.bitcasts[number]
            return self.cast(self._exposed(first, made, computed), old, new)
        if number in self.widened:
            first, old, new = self.widened[number]
            return self.widen(self._exposed(first, made, computed), old, new)
        if number in self.updates:
            update = self.updates[number]
            numbers = tuple(self._exposed(n, made, computed) for n in update.numbers)
            return self._updated(update._replace(numbers=numbers))
        return _hash(made + number)

    def _is_each(self, body: Body) -> bool:
        """Whether a fused computation has nothing that depends on how its code is arranged."""
        if body not in self._plain_bodies:
            self._plain_bodies[body] = all(
                op.opcode in _EACH or op.opcode in _MOVING or op.opcode in _PASSING
                for op in body.ops
            )
        return self._plain_bodies[body]

    def call(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """What its computation gives for these operands."""
        return self.run(op.called[0], operands, effects)

    def begin(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """async-start: (operands, result, context)."""
        numbers = {i: _hash(_CONTEXT + _named(i)) for i, _ in leaves(op.shape)}
        numbers |= {(0, k, *i): n for k, given in enumerate(operands) for i, n in given.items()}
        result = self.run(op.called[0], operands, effects)
        return numbers | {(1, *i): n for i, n in result.items()}

    def copy_start(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """(copy, operand, context)."""
        (number,) = operands[0].values()
        return {(0,): number, (1,): number, (2,): _CONTEXT}

    def choose(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A conditional; what all branches agree on does not depend on the choice."""
        branches, seen, acts = [], [], False
        for body, given in zip(op.called, operands[1:], strict=True):
            inner: list[bytes] = []
            branches.append(self.run(body, [given], inner))
            seen.append(_hash(b"".join((_EFFECT, *inner))))
            acts |= bool(inner)
        (index,) = operands[0].values()
        if acts:
            effects.append(_hash(b"".join((_CONDITIONAL, index, *seen))))
        numbers = {}
        for i, _ in leaves(op.shape):
            given = [branch[i] for branch in branches]
            same = all(n == given[0] for n in given)
            whole = b"".join((_CONDITIONAL, index, *given, _EFFECT, *seen))
            numbers[i] = given[0] if same else _hash(whole)
        return numbers

    def loop(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """A while: its body and condition as functions of the state, and where that begins."""
        body, condition = op.called
        start = operands[0]
        symbols = {i: _hash(_PARAMETER + _named((0, *i))) for i in start}
        for number in symbols.values():
            self.integers.symbol(number)
        inner: list[bytes] = []
        before = self.stateful
        root = self.run(body, [symbols], inner)
        self.run(condition, [symbols], inner)
        turns = _hash(op.proto.backend_config)  # a known number of turns, which XLA counts by
        if self.stateful == before:
            numbers, effect = number_loop(self, op, start, symbols, root, turns)
            if inner:
                effects.append(_hash(_EFFECT + effect))
            return numbers
        made = (turns, self.computation(condition), _all(root), _EFFECT, *inner, _all(start))
        whole = _hash(b"".join((_WHILE, *made)))
        effects.append(_hash(_EFFECT + whole))
        return {
            i: n if root[i] == symbols[i] else _hash(_PART + whole + _named(i))
            for i, n in start.items()
        }


def _typed(shape: Shape, like: Shape) -> Shape:
    """A shape with the element type of another one."""
    kind, bits = like.element_type, like.element_bits
    return dataclasses.replace(shape, element_type=kind, element_bits=bits, key=b"")


def _normalise(precision: xla_pb2.PrecisionConfig) -> None:
    """XLA names the default once for each operand, and not always for as many as there are."""
    if not any(precision.operand_precision):
        del precision.operand_precision[:]


def _all(numbers: Numbers) -> bytes:
    """The numbers of all leaves, each after its index."""
    return b"".join(part for i in sorted(numbers) for part in (_named(i), numbers[i]))


_HANDLERS = {
    "bitcast": Numbering.bitcast,
    "copy": Numbering.same,
    "domain": Numbering.same,
    "add-dependency": Numbering.same,
    "async-update": Numbering.same,
    "tuple": Numbering.pack,
    "get-tuple-element": Numbering.element,
    "opt-barrier": Numbering.barrier,
    "optimization-barrier": Numbering.barrier,
    "convert": Numbering.convert,
    "dynamic-slice": Numbering.slice,
    "transpose": Numbering.transpose,
    "dynamic-update-slice": Numbering.update,
    "fusion": Numbering.fusion,
    "call": Numbering.call,
    "async-start": Numbering.begin,
    "copy-start": Numbering.copy_start,
    "conditional": Numbering.choose,
    "while": Numbering.loop,
}
