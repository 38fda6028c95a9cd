"""What a module computes: a digest of its results as expressions of its arguments.

Every value gets a number, the hash of its operation and of the numbers of what that reads; two
values with one number hold the same bits. Order, names, copies, clones and in-place results leave
no trace in it, a wrong operand, a lost update or an exchanged loop state does. Fusions are seen
through, but for their kind and configuration, which decide the code that XLA makes of them. What
the world outside can see (callbacks, random state, collectives) is counted in its order.
"""

from __future__ import annotations

import hashlib

from hlo import xla_pb2
from hlo.shapes import TUPLE, Shape, ShapeIndex
from olla_xla.check.executable.program import Body, Op, Program, acts, has_state, leaves, may_repeat

__all__ = ["program_digest"]

Numbers = dict[ShapeIndex, bytes]
"""Leaf index -> number, of one operation's result."""

_CLEARED = (
    "name id operand_ids control_predecessor_ids called_computation_ids metadata "
    "frontend_attributes output_operand_aliasing sharding"
).split()
"""Fields of an instruction that say nothing of its result, or are hashed otherwise."""

_SHAPE_ONLY = frozenset(
    "abs add and ceil clamp convert divide floor maximum minimum multiply negate not or remainder "
    "select sign subtract xor".split()
)
"""Opcodes that say nothing but their shape: most of what fusions hold."""

_CONFIGURED = frozenset("fusion custom-call dot convolution while".split())
"""Opcodes whose backend_config decides what is computed, or by which code."""


def program_digest(program: Program) -> str:
    """The digest of a module, 32 hex digits. The program cannot be used for anything else then."""
    return _Numbering().computation(program.entry).hex()


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
) = (
    _hash(name.encode())
    for name in "parameter effect bitcast context while conditional body end part done bare".split()
)


class _Numbering:
    """Numbers the values of one module."""

    def __init__(self) -> None:
        self._bodies: dict[Body, bytes] = {}
        self._attributes: dict[Op, bytes] = {}
        self._bitcasts: dict[bytes, tuple[bytes, bytes]] = {}
        self._shapes: dict[Shape, bytes] = {}
        self._shape_only: dict[bytes, bytes] = {}

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
                handler = _HANDLERS.get(op.opcode, _Numbering.plain)
                at[op] = handler(self, op, [at[o] for o in op.operands], effects)
        return at[body.result]

    def attributes(self, op: Op) -> bytes:
        """A number for all that an instruction says of itself beside its operands and callees."""
        found = self._attributes.get(op)
        if found is None and op.opcode in _SHAPE_ONLY:
            made = op.opcode.encode() + b" " + op.proto.shape.SerializeToString()
            found = self._shape_only.get(made)
            if found is None:
                found = self._shape_only[made] = _hash(
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

    def plain(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """An operation that is nothing but its opcode, attributes, operands and callees."""
        if op.opcode.endswith("-done") and op.operands[0].shape.is_tuple:
            return self.done(op, operands[0])
        read = [number for numbers in operands for number in numbers.values()]
        whole = [self.attributes(op), *map(self.computation, op.called), _END, *read]
        if acts(op):
            if has_state(op):
                whole.append(_named((len(effects),)))
            effect = _hash(b"".join((_EFFECT, *whole)))
            if not (may_repeat(op) and effect in effects):
                effects.append(effect)
        number = _hash(b"".join(whole))
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
        """The same bytes by another shape; there and back again is nothing."""
        (number,) = operands[0].values()
        first, old = self._bitcasts.get(number, (number, self.shape(op.operands[0].shape)))
        new = self.shape(op.shape)
        if new == old:
            return {(): first}
        result = _hash(_BITCAST + first + old + new)
        self._bitcasts[result] = first, old
        return {(): result}

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
        inside = self.run(op.called[0], operands, effects)
        op.forget_shape()  # one result more or less leaves the others as they are
        made = self.attributes(op)
        return {i: _hash(made + n) for i, n in inside.items()}

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
        inner: list[bytes] = []
        root = self.run(body, [symbols], inner)
        # It may say how often the loop runs; XLA counts by that and does not ask the condition.
        config = _hash(op.proto.backend_config)
        made = (config, self.computation(condition), _all(root), _EFFECT, *inner, _all(start))
        parts = (_WHILE, *made)
        whole = _hash(b"".join(parts))
        if inner:
            effects.append(_hash(_EFFECT + whole))
        return {
            i: n if root[i] == symbols[i] else _hash(_PART + whole + _named(i))
            for i, n in start.items()
        }


def _normalise(precision: xla_pb2.PrecisionConfig) -> None:
    """XLA names the default once for each operand, and not always for as many as there are."""
    if not any(precision.operand_precision):
        del precision.operand_precision[:]


def _all(numbers: Numbers) -> bytes:
    """The numbers of all leaves, each after its index."""
    return b"".join(part for i in sorted(numbers) for part in (_named(i), numbers[i]))


_HANDLERS = {
    "bitcast": _Numbering.bitcast,
    "copy": _Numbering.same,
    "domain": _Numbering.same,
    "add-dependency": _Numbering.same,
    "async-update": _Numbering.same,
    "tuple": _Numbering.pack,
    "get-tuple-element": _Numbering.element,
    "opt-barrier": _Numbering.barrier,
    "optimization-barrier": _Numbering.barrier,
    "fusion": _Numbering.fusion,
    "call": _Numbering.call,
    "async-start": _Numbering.begin,
    "copy-start": _Numbering.copy_start,
    "conditional": _Numbering.choose,
    "while": _Numbering.loop,
}
