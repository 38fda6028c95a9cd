"""A module as the referee reads it, straight from XLA's proto: operations in execution order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from hlo import xla_pb2
from hlo.module import HloError, parse_module_proto
from hlo.shapes import Shape, ShapeIndex, shape_from_proto
from olla_xla.errors import CheckError

_COLLECTIVES = frozenset(
    "all-reduce all-gather all-to-all collective-permute collective-broadcast reduce-scatter "
    "ragged-all-to-all".split()
)
_EFFECTS = _COLLECTIVES | set("infeed outfeed send recv rng rng-get-and-update-state".split())
_STATEFUL = frozenset("infeed rng rng-get-and-update-state recv".split())

CONTROL_FLOW = frozenset({"while", "conditional", "call", "async-start"})
"""Opcodes that run the computations they call step by step, in the caller's memory."""

_LOCAL = (1 << 32) - 1


class Op:
    """One HLO instruction, as the referee reads it.

    Attributes:
      name, opcode: as XLA spells them.
      operands: instructions whose results it reads, in order.
      after: instructions that must run before it: operands and control predecessors.
      called: computations it names, in XLA's order (while: body, condition).
      proto: XLA's HloInstructionProto, with all the rest.
      left_out: how many operands of the proto stand before `operands`.
    """

    __slots__ = ("_shape", "after", "called", "left_out", "name", "opcode", "operands", "proto")

    def __init__(
        self, proto: xla_pb2.HloInstructionProto, operands: tuple[Op, ...], called: tuple[Body, ...]
    ) -> None:
        self.name: str = proto.name
        self.opcode: str = proto.opcode
        self.proto = proto
        self.operands = operands
        self.after = operands
        self.called = called
        self.left_out = 0
        self._shape: Shape | None = None

    def __repr__(self) -> str:
        return f"{self.opcode}({self.name})"

    @property
    def shape(self) -> Shape:
        """Shape of the instruction's result."""
        if self._shape is None:
            self._shape = shape_from_proto(self.proto.shape)
        return self._shape

    def behind(self, *opcodes: str) -> Op:
        """Follows first operands from this instruction to one with none of these opcodes."""
        op = self
        while op.opcode in opcodes:
            op = op.operands[0]
        return op

    def forget_shape(self) -> None:
        """Clears the shape in `proto`; the property `shape` still has it."""
        if self.proto.HasField("shape"):
            self._shape = self.shape
            self.proto.ClearField("shape")

    @property
    def bound(self) -> list[tuple[ShapeIndex, int, ShapeIndex]]:
        """Results that overwrite operands: (output index, operand number, operand index) each."""
        return [
            (
                tuple(b.output_shape_index),
                b.operand_index - self.left_out,
                tuple(b.operand_shape_index),
            )
            for b in self.proto.output_operand_aliasing
            if b.operand_index >= self.left_out
        ]


@dataclasses.dataclass(eq=False, slots=True)
class Body:
    """One HLO computation, as the referee reads it.

    Attributes:
      ops: in execution order where it has a schedule, else as listed (operands first).
      parameters: by number.
      root: whose value is the result.
      scheduled: whether `ops` is XLA's schedule.
    """

    name: str
    ops: list[Op] = dataclasses.field(default_factory=list)
    parameters: list[Op] = dataclasses.field(default_factory=list)
    root: Op | None = None
    scheduled: bool = False
    _users: dict[Op, list[tuple[Op, int]]] | None = None

    @property
    def users(self) -> dict[Op, list[tuple[Op, int]]]:
        """Operation -> [(operation that reads it, operand number)]."""
        if self._users is None:
            self._users = {}
            for op in self.ops:
                for k, operand in enumerate(op.operands):
                    self._users.setdefault(operand, []).append((op, k))
        return self._users

    @property
    def result(self) -> Op:
        """The root instruction, whose value is the result."""
        assert self.root is not None
        return self.root


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """An HLO module, as the referee reads it.

    Attributes:
      name: of the module.
      entry: the entry computation.
      aliases: output index -> (parameter number, parameter index) whose memory it takes over.
      donors: (parameter number, parameter index) that may be overwritten without being an output.
      names: instruction id -> name.
    """

    name: str
    entry: Body
    aliases: dict[ShapeIndex, tuple[int, ShapeIndex]]
    donors: frozenset[tuple[int, ShapeIndex]]
    names: dict[int, str]

    def run_ops(self) -> Iterator[Op]:
        """The instructions that run one by one, each once, those of loops and branches included."""
        return _run_ops(self.entry, set())


_CALLS = "TODO(b/522284627)"
"""Target of XLA:TPU's custom calls that run a computation, on a SparseCore."""

_LEAVES: dict[Shape, tuple[tuple[ShapeIndex, Shape], ...]] = {}


def _run_ops(body: Body, seen: set[Body]) -> Iterator[Op]:
    if body in seen:
        return
    seen.add(body)
    for op in body.ops:
        yield op
        if op.opcode in CONTROL_FLOW:
            for inner in op.called:
                yield from _run_ops(inner, seen)


def acts(op: Op) -> bool:
    """Whether an operation has side effects, such as of rng, collectives, infeed or callbacks."""
    return _kind(op) in _EFFECTS or op.proto.custom_call_has_side_effect


def allocates(op: Op) -> bool:
    """Whether an operation gives uninitialised memory (AllocateBuffer, CreateBuffer)."""
    return op.proto.custom_call_target in ("AllocateBuffer", "CreateBuffer")


def is_effect(proto: xla_pb2.HloInstructionProto) -> bool:
    """Whether an instruction, given as a proto, has side effects (see `acts`)."""
    return _half(proto.opcode) in _EFFECTS or proto.custom_call_has_side_effect


@functools.cache
def may_be_effect(opcode: str) -> bool:
    """Whether an instruction with this opcode may have side effects (`is_effect`)."""
    return _half(opcode) in _EFFECTS or opcode.startswith("custom-call")


def has_state(op: Op) -> bool:
    """Whether an operation's result may depend on how often it ran before, as of rng or infeed."""
    changes = _kind(op) in _STATEFUL or op.proto.custom_call_has_side_effect
    return changes and bool(leaves(op.shape))


def may_repeat(op: Op) -> bool:
    """Whether an operation is a collective, which may run once more without changing any result.

    XLA's rematerialization runs collectives again where a step does not fit the device.
    """
    return _kind(op) in _COLLECTIVES


def _kind(op: Op) -> str:
    return _half(op.opcode)


def _half(opcode: str) -> str:
    """An opcode without the suffix -start or -done."""
    return opcode.removesuffix("-start").removesuffix("-done")


def leaves(shape: Shape) -> tuple[tuple[ShapeIndex, Shape], ...]:
    """(shape index, shape) of every part of a shape that is no tuple, in order."""
    parts = _LEAVES.get(shape)
    if parts is None:
        parts = tuple((index, part) for index, part in shape.indices() if not part.is_tuple)
        _LEAVES[shape] = parts
    return parts


def nowhere(shape: xla_pb2.ShapeProto) -> None:
    """Clears the memory space of all layouts in a shape proto, in place."""
    if shape.layout.memory_space:
        shape.layout.memory_space = 0
    for part in shape.tuple_shapes:
        nowhere(part)


def read_program(module: bytes) -> Program:
    """Reads a serialized HloModuleProto.

    Raises CheckError if it is no module, an id in it is unknown, a schedule is not valid, or
    arguments or outputs are donated or aliased that it does not have.
    """
    try:
        proto = parse_module_proto(module)
    except HloError as error:
        raise CheckError(str(error)) from error
    bodies = {c.id: Body(c.name) for c in proto.computations}
    names: dict[int, str] = {}
    try:
        for computation in proto.computations:
            ids = _read(computation, bodies[computation.id], bodies)
            names |= {number: op.name for number, op in ids.items()}
            if computation.id in proto.schedule.sequences:
                sequence = proto.schedule.sequences[computation.id].instruction_ids
                _order(bodies[computation.id], sequence, ids, computation.id)
        entry = bodies[proto.entry_computation_id]
    except KeyError as error:
        raise CheckError(f"module {proto.name} refers to the unknown id {error}") from error
    program = Program(
        name=proto.name,
        entry=entry,
        aliases={
            tuple(e.output_shape_index): (e.parameter_number, tuple(e.parameter_shape_index))
            for e in proto.input_output_alias.entries
        },
        donors=frozenset(
            (e.parameter_number, tuple(e.parameter_shape_index)) for e in proto.buffer_donor.entries
        ),
        names=names,
    )
    have = dict(enumerate(entry.parameters))
    named = [
        (have.get(number), part) for number, part in (*program.aliases.values(), *program.donors)
    ]
    named += [(entry.result, index) for index in program.aliases]
    if not all(op is not None and op.shape.has(index) for op, index in named):
        raise CheckError(f"module {proto.name} donates what it does not have")
    return program


def _read(
    computation: xla_pb2.HloComputationProto, body: Body, bodies: dict[int, Body]
) -> dict[int, Op]:
    """Fills `body` from its proto; returns id -> Op. `bodies` must have its callees, filled."""
    ops: dict[int, Op] = {}
    controlled = []
    for proto in computation.instructions:
        called = proto.called_computation_ids
        op = ops[proto.id] = Op(
            proto,
            tuple([ops[k] for k in proto.operand_ids]),
            tuple([bodies[k] for k in called]) if called else (),
        )
        if control := proto.control_predecessor_ids:
            controlled.append((op, control))
    for op, control in controlled:
        op.after = (*op.operands, *[ops[k] for k in control])
    for op in ops.values():
        _plain_form(op)
    body.ops = list(ops.values())
    parameters = [op for op in body.ops if op.opcode == "parameter"]
    body.parameters = sorted(parameters, key=lambda op: op.proto.parameter_number)
    body.root = ops[computation.root_id]
    return ops


def _plain_form(op: Op) -> None:
    """Brings XLA:TPU's instructions for its SparseCore into HLO's usual form, in place.

    An async-start without the operands of what it wraps only makes a context; the async-update that
    has them becomes the start; CheckError if it begins otherwise. A custom call that runs a
    computation there becomes a call.
    """
    if op.opcode == "async-update" and len(op.operands) > 1:
        start, *operands = op.operands
        if start.opcode != "async-start" or start.operands or len(start.called) != 1:
            raise CheckError(f"{op.name} passes operands to {start.name}, which cannot be checked")
        op.opcode, op.operands, op.called = "async-start", tuple(operands), start.called
        op.left_out = 1
        start.opcode, start.called = "async-context", ()
    elif op.proto.custom_call_target == _CALLS and len(op.called) == 1:
        op.opcode = "call"


def _order(body: Body, sequence, ids: dict[int, Op], computation_id: int) -> None:
    """Puts a body's operations into the order of its schedule.

    Raises CheckError unless the schedule has each once, after its operands and predecessors.
    """
    high = computation_id << 32
    ops = [ids[k] if k in ids else ids[high | (k & _LOCAL)] for k in sequence]
    done: set[Op] = set()
    for op in ops:
        if op in done:
            raise CheckError(f"{op.name} is in the schedule of computation {body.name} twice")
        for before in op.after:
            if before not in done:
                raise CheckError(f"{op.name} runs before {before.name}, whose result it needs")
        done.add(op)
    if len(done) != len(ids):
        missing = next(op for op in body.ops if op not in done)
        raise CheckError(f"{missing.name} is not in the schedule of computation {body.name}")
    body.ops = ops
    body.scheduled = True
