"""What both numberings of a module's values share: all but fusions and bitcasts.

Every value gets a number, the hash of its operation and of its operands' numbers; values with one
number hold the same bits.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from hlo import xla_pb2
from hlo.device_groups import groups_listed
from hlo.late import late
from hlo.shapes import TUPLE, Shape, ShapeIndex
from olla_xla.check.executable.exact import exact_results
from olla_xla.check.executable.program import (
    CONTROL_FLOW,
    Body,
    Op,
    acts,
    has_state,
    leaves,
    may_repeat,
    nowhere,
)
from olla_xla.check.executable.rounding import is_settled, is_tiled, lacks_index
from olla_xla.errors import CheckError

if TYPE_CHECKING:
    import olla_xla.check.executable.tpu as tpu
else:
    tpu = late("olla_xla.check.executable.tpu")

Numbers = dict[ShapeIndex, bytes]
"""Leaf index -> number, of one operation's result."""

_CLEARED = (
    "name id operand_ids control_predecessor_ids called_computation_ids metadata "
    "frontend_attributes output_operand_aliasing sharding statistics_viz"
).split()
"""Fields of an instruction that do not affect its result, or are hashed separately."""

_RENDEZVOUS = "_xla_host_transfer_rendezvous"
"""Frontend attribute of sends to the host and receives from it: which transfer it is there."""

_BARE = frozenset(
    "abs add and ceil clamp convert divide floor maximum minimum multiply negate not or remainder "
    "select sign subtract xor".split()
)
"""Opcodes without attributes beside their shape: most operations in fusions."""

_CONFIGURED = frozenset("fusion custom-call dot convolution while".split())
"""Opcodes whose backend_config decides what is computed, or by which code."""

_UNTILED = frozenset(
    "broadcast concatenate convolution dot dynamic-slice dynamic-update-slice gather pad reduce "
    "reduce-window reverse scatter select-and-scatter slice".split()
)
"""Opcodes that XLA's tiled code generator for CPUs never takes."""

_SILENT = frozenset("parameter tuple get-tuple-element bitcast copy constant".split())
"""Opcodes that compute nothing, and that rewrites may add or remove."""

SIZE = 16
"""Bytes of a number. What is hashed is a list of numbers, so that no two lists read alike."""


def hashed(data: bytes) -> bytes:
    """The 16-byte BLAKE2b hash of some bytes; value numbers are such hashes."""
    return hashlib.blake2b(data, digest_size=SIZE).digest()


def named(index: ShapeIndex) -> bytes:
    """A hash of a shape index, to be part of other hashes."""
    return hashed(b"index" + repr(index).encode())


def all_of(numbers: Numbers) -> bytes:
    """Joins the value numbers of all leaves of a result to one byte string, with their indices."""
    return b"".join(part for i in sorted(numbers) for part in (named(i), numbers[i]))


def ordered(effects: list[bytes]) -> list[bytes]:
    """Hashes of side effects in a canonical order: as they are, but collectives last, and sorted.
    The order of collectives does not matter, as all devices run the same module.
    """
    return sorted(effects, key=lambda effect: effect if is_exchange(effect) else b"")


def is_exchange(effect: bytes) -> bool:
    """Whether the hash of a side effect was marked by `exchange` as that of a collective."""
    return len(effect) > SIZE


def exchange(effect: bytes) -> bytes:
    """Returns a side effect's hash, marked as that of a collective, which may run repeatedly."""
    return _EXCHANGE + effect


PARAMETER, EFFECT, BITCAST, END, SHAPED, _GENERATOR, _PARTS, _TOGETHER, _ALL = (
    hashed(name.encode())
    for name in "parameter effect bitcast end bare generator parts together all".split()
)
_CONTEXT, _CONDITIONAL, _BODY, _DONE, _WHILE, _PART, _EXCHANGE = (
    hashed(name.encode()) for name in "context conditional body done while part exchange".split()
)


class Numbering(abc.ABC):
    """Gives each value of one module a number: a 16-byte hash, equal only for values of equal bits.

    Attributes:
      handlers: opcode -> method (operation, numbers of its operands, effects so far -> numbers),
        which appends its side effects; opcodes without one use `plain`.
      is_cpu: whether the target is "cpu", for which XLA has two code generators for fusions.
      is_tpu: whether it is "tpu", for which XLA computes fusions one window after the other.
    """

    handlers: ClassVar[Mapping[str, Callable[..., Numbers]]] = {}

    def __init__(self, target: str) -> None:
        self.is_cpu = target == "cpu"
        self.is_tpu = target == "tpu"
        self._parts = tpu.Parts() if self.is_tpu else None
        self._together: set[Op] = set()
        """Fusions that are compiled into one function with others (`call`)."""
        self._codes: dict[Op, bytes] = {}
        self._bodies: dict[Body, bytes] = {}
        self._exact: dict[Body, frozenset[ShapeIndex]] = {}
        self._attributes: dict[Op, bytes] = {}
        self._shapes: dict[Shape, bytes] = {}
        self._bare: dict[bytes, bytes] = {}
        self.noted: Callable[[Op, list[Numbers], Numbers], None] | None = None
        """Gets each operation that is numbered, with its operands' numbers and its results'."""

    def term(self, *parts: bytes) -> bytes:
        """The value number that is made of these value numbers: the hash of them, joined."""
        return hashed(b"".join(parts))

    def computation(self, body: Body) -> bytes:
        """A hash of a computation: its results and effects as functions of its parameters."""
        if body not in self._bodies:
            root, effects = self.function(body)
            self._bodies[body] = hashed(b"".join((_BODY, all_of(root), EFFECT, *ordered(effects))))
        return self._bodies[body]

    def function(self, body: Body) -> tuple[Numbers, list[bytes]]:
        """Value numbers of a computation's result for symbolic parameters, and its effects."""
        given = [
            {i: hashed(PARAMETER + named((k, *i)) + self.shape(s)) for i, s in leaves(p.shape)}
            for k, p in enumerate(body.parameters)
        ]
        effects: list[bytes] = []
        return self.run(body, given, effects), effects

    def run(self, body: Body, given: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a computation's result, given its parameters'; appends to `effects`.
        CheckError if they are too few or too many.
        """
        if len(given) != len(body.parameters):
            raise CheckError(f"{body.name} is called with a wrong number of operands")
        at: dict[Op, Numbers] = dict(zip(body.parameters, given, strict=True))
        handlers, plain = self.handlers, type(self).plain
        for op in body.ops:
            if op.opcode != "parameter":
                handler = handlers.get(op.opcode, plain)
                read = [at[o] for o in op.operands]
                at[op] = handler(self, op, read, effects)
                if self.noted is not None:
                    self.noted(op, read, at[op])
        return at[body.result]

    def attributes(self, op: Op) -> bytes:
        """A hash of opcode, attributes, shape (not a -start's), no operands; edits `op.proto`."""
        digest = self._attributes.get(op)
        if digest is None and op.opcode in _BARE:
            made = op.opcode.encode() + b" " + op.proto.shape.SerializeToString()
            digest = self._bare.get(made)
            if digest is None:
                whole = SHAPED + op.opcode.encode() + self.shape(op.shape)
                digest = self._bare[made] = hashed(whole)
        elif digest is None:
            proto = op.proto
            met = proto.frontend_attributes.map.get(_RENDEZVOUS, "")
            for field in _CLEARED:
                proto.ClearField(field)
            if op.opcode not in _CONFIGURED:
                proto.ClearField("backend_config")
            elif self._parts is not None:
                proto.backend_config = tpu.decisive_config(op)
            if met:  # XLA:TPU gives what goes to and from the host other channels at last
                proto.channel_id, proto.backend_config = 1, met.encode()
            if may_repeat(op) and proto.channel_id:
                # XLA's rematerialization gives a repeated collective a new one. Whether there is
                # one decides who takes part; its value does not affect the result.
                proto.channel_id = 1
            if op.opcode.endswith("-start"):
                proto.opcode = op.opcode.removesuffix("-start")
                op.forget_shape()
            else:
                nowhere(proto.shape)
            if proto.HasField("precision_config"):
                _normalise(proto.precision_config)
            data = proto.SerializeToString(deterministic=True)
            digest = hashed(groups_listed(data) if may_repeat(op) else data)
            self._attributes[op] = digest
        return digest

    def is_free(self, op: Op, index: ShapeIndex) -> bool:
        """Whether a fusion's result at `index` has the same bits, whatever code is made of it."""
        (body,) = op.called
        if body not in self._exact:
            self._exact[body] = exact_results(body)
        exact = self._exact[body]
        return () in exact or index[:1] in exact

    def code(self, op: Op) -> bytes:
        """A hash of what decides a fusion's code, on which its rounding may depend.

        That is kind and configuration, also of nested fusions; its proto loses its shape. On a CPU
        it is also which of XLA's two code generators makes it (the tiled one takes elementwise
        operations, perhaps also others that it can tile, which are hashed), and whether it is part
        of a larger function, ends in a concatenation, or lacks an index (`rounding`).
        """
        digest = self._codes.get(op)
        if digest is None:
            op.forget_shape()  # adding or removing a result does not change the others
            digest = self.attributes(op)
            steps = [k for k in op.called[0].ops if k.opcode != "parameter"]
            if inner := [self.code(k) for k in steps if k.opcode == "fusion"]:
                digest = hashed(b"".join((digest, *inner)))
            if op in self._together:
                digest = hashed(_TOGETHER + digest)
            elif self.is_cpu and _ends_in_parts(op.called[0]):
                digest = hashed(_PARTS + digest)
            elif self.is_cpu and not any(k.opcode in _UNTILED for k in steps):
                others = [k for k in steps if not is_tiled(k)]
                moved = (named((number,)) + self.attributes(k) for number, k in enumerate(others))
                digest = hashed(b"".join((_GENERATOR, digest, *moved)))
            if self.is_cpu and lacks_index(op):
                digest = hashed(_ALL + digest)
            self._codes[op] = digest
        return digest

    def shape(self, shape: Shape) -> bytes:
        """A hash of a shape's element type, extents and layout, without its memory space."""
        digest = self._shapes.get(shape)
        if digest is None:
            parts = (shape.element_type, shape.dimensions, shape.minor_to_major, shape.element_bits)
            digest = self._shapes[shape] = hashed(repr(parts).encode())
        return digest

    def plain(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of an operation without a handler: hashes of it, operands and callees. A
        -done has its start's; what joins an array's parts on a TPU has the array's. Adds effects.
        """
        if op.opcode.endswith("-done") and op.operands[0].shape.is_tuple:
            return self.done(op, operands[0])
        read = [number for numbers in operands for number in numbers.values()]
        whole = [self.attributes(op), *map(self.computation, op.called), END, *read]
        if acts(op):
            if has_state(op):
                whole.append(named((len(effects),)))
            effect = self.term(EFFECT, *whole)
            if not may_repeat(op):
                effects.append(effect)
            elif (met := exchange(self.meeting(op, effect))) not in effects:
                effects.append(met)
        number = self.term(*whole)
        if op.proto.shape.element_type != TUPLE:
            if self._parts is not None:
                number = self._parts.of(op, read, number, self.cast)
            return {(): number}
        # Element 1 of a start's tuple is the result, numbered as the synchronous operation's.
        begun = op.opcode.endswith("-start")
        return {
            i: number if begun and i == (1,) else self.term(_PART, number, named(i[begun:]))
            for i, _ in leaves(op.shape)
        }

    @abc.abstractmethod
    def cast(self, number: bytes, old: Shape, new: Shape) -> bytes:
        """The value number of a bitcast from `old` to `new`; a bitcast and its inverse cancel."""

    def meeting(self, op: Op, effect: bytes) -> bytes:
        """The hash of a collective's side effect: `effect`; a subclass may hash less of it."""
        return effect

    def done(self, op: Op, start: Numbers) -> Numbers:
        """Value numbers of a -done instruction's result, given those of the start's tuple."""
        if op.opcode == "all-reduce-done":
            return start
        first = 0 if op.opcode in ("copy-done", "recv-done") else 1
        taken = {i[1:]: n for i, n in start.items() if i and i[0] == first}
        own = self.term(_DONE, self.attributes(op), *start.values())
        return {
            i: taken[i] if i in taken else self.term(own, named(i)) for i, _ in leaves(op.shape)
        }

    def same(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of an instruction that returns its first operand unchanged."""
        return operands[0]

    def pack(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a tuple instruction: its operands' numbers, under its indices."""
        return {(k, *i): n for k, numbers in enumerate(operands) for i, n in numbers.items()}

    def barrier(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of an optimization-barrier: those of its operands."""
        return operands[0] if len(operands) == 1 else self.pack(op, operands, effects)

    def element(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a get-tuple-element, by the tuple's; CheckError if it lacks an array."""
        k = op.proto.tuple_index
        if not op.shape.is_tuple:
            if (k,) not in operands[0]:
                raise CheckError(f"{op.name} takes element {k} of a tuple without such an element")
            return {(): operands[0][(k,)]}
        return {i[1:]: n for i, n in operands[0].items() if i[0] == k}

    def call(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a call: its computation's for these operands; appends to `effects`.
        XLA:CPU compiles some calls to one function; their fusions are noted, for `code`. Where its
        rounding may depend on any operation there, all of them are hashed into the results.
        """
        if not self.is_cpu or not is_one_function(op):
            return self.run(op.called[0], operands, effects)
        bodies = run_by(op)
        self._together.update(k for body in bodies for k in body.ops if k.opcode == "fusion")
        result = self.run(op.called[0], operands, effects)
        if is_settled(bodies):
            return result
        all_of_it = hashed(b"".join(sorted(self._contents(bodies))))
        return {i: self.term(_TOGETHER, all_of_it, n) for i, n in result.items()}

    def _contents(self, bodies: list[Body]) -> Iterator[bytes]:
        """Yields a hash of each operation that computes, in `bodies` and fusions in them."""
        for body in bodies:
            for op in body.ops:
                if op.opcode not in _SILENT:
                    yield self.attributes(op)
                    if op.opcode == "fusion":
                        yield from self._contents(list(op.called))

    def begin(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of an async-start: (operands, result, context); appends to `effects`."""
        numbers = {i: hashed(_CONTEXT + named(i)) for i, _ in leaves(op.shape)}
        numbers |= {(0, k, *i): n for k, given in enumerate(operands) for i, n in given.items()}
        result = self.run(op.called[0], operands, effects)
        return numbers | {(1, *i): n for i, n in result.items()}

    def copy_start(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a copy-start, whose result is (copy, operand, context)."""
        (number,) = operands[0].values()
        return {(0,): number, (1,): number, (2,): _CONTEXT}

    def choose(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a conditional; a result equal in all branches has their number. Appends
        one effect if a branch has any.
        """
        branches, seen, acts = [], [], False
        for body, given in zip(op.called, operands[1:], strict=True):
            inner: list[bytes] = []
            branches.append(self.run(body, [given], inner))
            seen.append(self.term(EFFECT, *ordered(inner)))
            acts |= bool(inner)
        (index,) = operands[0].values()
        if acts:
            effects.append(self.term(_CONDITIONAL, index, *seen))
        numbers = {}
        for i, _ in leaves(op.shape):
            given = [branch[i] for branch in branches]
            whole = _CONDITIONAL, index, *given, EFFECT, *seen
            numbers[i] = given[0] if len(set(given)) == 1 else self.term(*whole)
        return numbers

    def loop(self, op: Op, operands: list[Numbers], effects: list[bytes]) -> Numbers:
        """Value numbers of a while: hashes of body, condition and initial state as a whole; of an
        element that the body returns unchanged its initial one. Appends its effects as one.
        """
        (start,) = operands
        symbols = {i: hashed(PARAMETER + named((0, *i))) for i in start}
        inner: list[bytes] = []
        root = self.run(op.called[0], [symbols], inner)
        # It may hold the trip count, which XLA then uses instead of the condition.
        config = hashed(op.proto.backend_config)
        tested = self.computation(op.called[1])
        made = (config, tested, all_of(root), EFFECT, *ordered(inner), all_of(start))
        whole = hashed(b"".join((_WHILE, *made)))
        if inner:
            effects.append(hashed(EFFECT + whole))
        return {
            i: n if root[i] == symbols[i] else hashed(_PART + whole + named(i))
            for i, n in start.items()
        }


def is_one_function(call: Op) -> bool:
    """Whether XLA:CPU compiles a call, and all that it runs, into one function."""
    return call.proto.frontend_attributes.map.get("xla_cpu_small_call") == "true"


def run_by(call: Op) -> list[Body]:
    """The computations that a call runs, those of loops, branches and calls in it included."""
    bodies, waiting = [], list(call.called)
    while waiting:
        body = waiting.pop()
        bodies.append(body)
        waiting += [c for k in body.ops if k.opcode in CONTROL_FLOW for c in k.called]
    return bodies


def _ends_in_parts(body: Body) -> bool:
    """Whether a result is a concatenate, or made of one by operations that XLA:CPU can tile."""
    waiting, seen = [body.result], set()
    while waiting:
        op = waiting.pop()
        if op.opcode == "concatenate":
            return True
        if op not in seen and op.opcode not in _UNTILED:
            waiting += op.operands
        seen.add(op)
    return False


def _normalise(precision: xla_pb2.PrecisionConfig) -> None:
    """Clears precisions that are all default, in place: XLA lists a varying number of them."""
    if not any(precision.operand_precision):
        del precision.operand_precision[:]


HANDLERS: dict[str, Callable[..., Numbers]] = {
    "copy": Numbering.same,
    "domain": Numbering.same,
    "add-dependency": Numbering.same,
    "async-update": Numbering.same,
    "tuple": Numbering.pack,
    "get-tuple-element": Numbering.element,
    "opt-barrier": Numbering.barrier,
    "optimization-barrier": Numbering.barrier,
    "call": Numbering.call,
    "async-start": Numbering.begin,
    "copy-start": Numbering.copy_start,
    "conditional": Numbering.choose,
    "while": Numbering.loop,
}
"""Handlers that both numberings have."""
