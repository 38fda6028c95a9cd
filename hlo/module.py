"""A read-only view of an HLO module: instructions, schedule, donation, source locations."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hlo import xla_pb2
from hlo.gc_pause import without_collection
from hlo.shapes import Shape, ShapeIndex, shape_from_proto
from hlo.stack_frames import SourceFrame, StackFrames


class HloError(ValueError):
    """Raised when HLO cannot be read or changed as asked; the message says what to do."""


@dataclasses.dataclass(eq=False, slots=True)
class Instruction:
    """One HLO instruction; identity is object identity.

    Attributes:
      id: unique in the module.
      name, opcode: as XLA spells them.
      shape: result shape.
      operands, control_predecessors, users: neighbours in the same computation.
      called: computations it calls, in XLA's order (while: body, condition).
      computation: the computation it stands in.
      parameter_number, tuple_index, fusion_kind, custom_call_target, channel_id: opcode's own.
      aliasing: custom-call and fusion output_to_operand_aliasing entries
        (output index, operand number, operand index).
      side_effect: a custom call that must not be dropped or reordered.
      backend_config: raw bytes.
      contracting: of a dot, the dimensions of its left operand that are summed over.
      kernel_features: of a convolution, the kernel's dimensions of input and output features.
      feature_groups: of a convolution, its number of feature groups.
      proto: as it was read; only `hlo` looks into it.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    computation: Computation
    operands: tuple[Instruction, ...] = ()
    control_predecessors: tuple[Instruction, ...] = ()
    users: list[Instruction] = dataclasses.field(default_factory=list)
    called: tuple[Computation, ...] = ()
    dimensions: tuple[int, ...] = ()
    parameter_number: int = -1
    tuple_index: int = -1
    fusion_kind: str = ""
    custom_call_target: str = ""
    channel_id: int = 0
    aliasing: tuple[tuple[ShapeIndex, int, ShapeIndex], ...] = ()
    side_effect: bool = False
    backend_config: bytes = b""
    contracting: tuple[int, ...] = ()
    kernel_features: tuple[int, int] = (0, 0)
    feature_groups: int = 1
    proto: xla_pb2.HloInstructionProto | None = None

    def __repr__(self) -> str:
        return f"{self.opcode}({self.name})"

    @property
    def attributes(self) -> bytes:
        """Serialized fields on which its result depends, but for operands and what it calls."""
        assert self.proto is not None
        copy = xla_pb2.HloInstructionProto()
        copy.CopyFrom(self.proto)
        for field in _NOT_OF_THE_RESULT:
            copy.ClearField(field)
        return copy.SerializeToString(deterministic=True)

    def behind(self, *opcodes: str) -> Instruction:
        """Returns the first of itself, its first operand, and so on that has none of `opcodes`."""
        i = self
        while i.opcode in opcodes:
            i = i.operands[0]
        return i

    @property
    def op_name(self) -> str:
        """JAX's name of the operation that it was lowered from (metadata `op_name`), or ""."""
        return "" if self.proto is None else self.proto.metadata.op_name

    @property
    def location(self) -> str:
        """The innermost Python call under which it was traced, "file:line"; "" if unknown."""
        proto, frames = self.proto, self.computation.frames
        if proto is None or frames is None or not proto.HasField("metadata"):
            return ""
        return frames.location(proto.metadata)

    @property
    def stack(self) -> tuple[SourceFrame, ...]:
        """The Python calls under which it was traced, the innermost first; () if unknown."""
        proto, frames = self.proto, self.computation.frames
        if proto is None or frames is None or not proto.HasField("metadata"):
            return ()
        return frames.stack(proto.metadata)

    @property
    def direction(self) -> str:
        """The direction of a comparison, such as "LT"; "" for other opcodes."""
        return "" if self.proto is None else self.proto.comparison_direction

    @property
    def integer(self) -> int | None:
        """The value of a scalar constant of type s32 or s64; None for anything else."""
        if self.opcode != "constant" or self.shape.dimensions or self.proto is None:
            return None
        literal = xla_pb2.LiteralProto.FromString(self.proto.literal)
        values = [*literal.s32s, *literal.s64s] if self.shape.element_type in (4, 5) else []
        return values[0] if len(values) == 1 else None

    @property
    def called_control(self) -> tuple[Computation, ...]:
        """The computations that a while, conditional, call or async-start runs; else ()."""
        return self.called if self.opcode in _CONTROL_FLOW else ()

    @property
    def is_root(self) -> bool:
        """Whether its value is the result of its computation."""
        return self.computation.root is self


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Computation:
    """One HLO computation.

    Attributes:
      instructions: in the proto's order, operands before users (XLA's post-order).
      root: the instruction whose value is the result.
      schedule: the execution order, or None when the computation has none.
      frames: the module's, which find where in the source an instruction comes from.
      elementwise_down, reached: caches of `hlo.inplace`'s analyses of this computation.
    """

    id: int
    name: str
    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    root: Instruction | None = None
    schedule: tuple[Instruction, ...] | None = None
    frames: StackFrames | None = None
    elementwise_down: frozenset[Instruction] | None = None
    reached: dict[tuple[Instruction, Instruction | None], set[Instruction] | None] = (
        dataclasses.field(default_factory=dict)
    )
    _parameters: list[Instruction] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        return f"Computation({self.name})"

    @property
    def parameters(self) -> list[Instruction]:
        """Parameter instructions by number; cached, so read it when the computation is complete."""
        if not self._parameters:
            unsorted = [i for i in self.instructions if i.opcode == "parameter"]
            self._parameters = sorted(unsorted, key=lambda i: i.parameter_number)
        return self._parameters


@dataclasses.dataclass(eq=False)
class Module:
    """An HLO module.

    Attributes:
      computations: callees before callers.
      entry: the entry computation.
      aliases: donation, output index -> (parameter number, parameter index).
      donors: donated parameters without a fixed output (parameter number, index).
      frames: resolves call stacks; see `Instruction.stack`.
      proto: as it was read; only `hlo` looks into it.
      facts: cache of `olla_xla.memory.module_state` for what it finds out about the module.
    """

    name: str
    computations: list[Computation]
    entry: Computation
    aliases: dict[ShapeIndex, tuple[int, ShapeIndex]]
    donors: frozenset[tuple[int, ShapeIndex]]
    is_scheduled: bool
    frames: StackFrames
    proto: xla_pb2.HloModuleProto = dataclasses.field(repr=False)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @functools.cached_property
    def data(self) -> bytes:
        """The module as a serialized HloModuleProto."""
        return self.proto.SerializeToString(deterministic=True)

    @functools.cached_property
    def donated(self) -> frozenset[tuple[int, ShapeIndex]]:
        """(parameter number, index) of each donated argument that has an output in `aliases`."""
        return frozenset(self.aliases.values())

    @property
    def order(self) -> dict[str, tuple[str, ...]]:
        """Name of each scheduled one of `control_computations` -> its instructions' names."""
        return {
            c.name: tuple(i.name for i in c.schedule)
            for c in self.control_computations
            if c.schedule is not None
        }

    @property
    def may_spare(self) -> bool:
        """Whether rewriting loops or concatenates may save memory, by a quick look.
        It has a while, or a concatenate as large as a donated array.
        """
        given = {self.entry.parameters[k].shape.at(index).bytes for k, index in self.donated}
        every = (i for c in self.computations for i in c.instructions)
        makes = ("while", "concatenate")
        return any(i.opcode in makes and (i.called or i.shape.bytes in given) for i in every)

    @functools.cached_property
    def control_computations(self) -> list[Computation]:
        """The entry, and computations that a while, conditional, call or async-start runs.
        Callees first, the entry last. Bodies of fusions, reductions and the like are not listed.
        """
        seen: dict[Computation, None] = {}

        def visit(computation: Computation) -> None:
            if computation in seen:
                return
            for instruction in computation.instructions:
                for callee in instruction.called_control:
                    visit(callee)
            seen[computation] = None

        visit(self.entry)
        return list(seen)

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, opcodes, shapes, operands, callees, control edges, donation only."""
        digest = hashlib.sha256()
        for computation in self.computations:
            parts = [f"{computation.name}{{".encode()]
            for i in sorted(computation.instructions, key=operator.attrgetter("name")):
                operands = ",".join([o.name for o in i.operands])
                control = ",".join([c.name for c in i.control_predecessors])
                called = ",".join([c.name for c in i.called])
                parts.append(f"{i.name}={i.opcode}({operands}|{control}|{called})".encode())
                parts.append(i.shape.key)
            digest.update(b"".join(parts))
        digest.update(repr((sorted(self.aliases.items()), sorted(self.donors))).encode())
        return digest.hexdigest()


_NOT_OF_THE_RESULT = (
    "name id operand_ids control_predecessor_ids called_computation_ids metadata "
    "frontend_attributes output_operand_aliasing sharding statistics_viz"
).split()

_CONTROL_FLOW = frozenset({"while", "conditional", "call", "async-start"})

_PLAIN = frozenset(
    "abs add and bitcast broadcast clamp compare concatenate constant convert copy cosine divide "
    "dynamic-slice dynamic-update-slice exponential iota log maximum minimum multiply negate not "
    "or pad power reshape rsqrt select sine slice sqrt subtract tanh transpose tuple".split()
)
"""Opcodes that have none of `_read_particulars`."""


_views: weakref.WeakValueDictionary[bytes, Module] = weakref.WeakValueDictionary()


def module_from_bytes(data: bytes) -> Module:
    """Reads a serialized HloModuleProto or HloProto. Raises HloError when `data` is no valid one.
    The result must not be changed: equal bytes give the same object as long as one of them is held.
    """
    view = _views.get(data)
    if view is None:
        with without_collection():
            view = _views[data] = module_from_proto(parse_module_proto(data))
    return view


def parse_module_proto(data: bytes) -> xla_pb2.HloModuleProto:
    """Parses a serialized HloModuleProto or HloProto, without empty schedules. Raises HloError."""
    for message in (xla_pb2.HloModuleProto(), xla_pb2.HloProto()):
        try:
            message.ParseFromString(data)
        except Exception:  # noqa: S112 - protobuf runtimes raise different types
            continue
        module = message.hlo_module if isinstance(message, xla_pb2.HloProto) else message
        if module.computations and module.entry_computation_name:
            sequences = module.schedule.sequences  # XLA:TPU has empty ones for fusions
            for number in [k for k, s in sequences.items() if not s.instruction_ids]:
                del sequences[number]
            return module
    raise HloError("not an HLO module proto, or truncated; dump it with xla_dump_hlo_as_proto")


def module_from_proto(
    proto: xla_pb2.HloModuleProto, before: Module | None = None, changed: Collection[int] = ()
) -> Module:
    """Makes a Module, which is a view of a parsed proto.

    Args:
      proto: of a module. before: a view of it before it was changed, whose computations that
        control flow does not run are reused instead of read again; None: all are read.
      changed: ids of such computations that were changed, so they are read again.

    Raises:
      HloError: the proto refers to unknown ids or arguments, or a while, call or fusion is wrong.
    """
    frames = StackFrames(proto.stack_frame_index) if before is None else before.frames
    computations = {c.id: Computation(c.id, c.name, frames=frames) for c in proto.computations}
    same = {} if before is None else _same(before, changed)
    computations |= {k: c for k, c in same.items() if k in computations}
    try:
        for c in proto.computations:
            if c.id not in same:
                _read_computation(c, computations)
        for key, sequence in proto.schedule.sequences.items():
            computation = computations[key]
            by_id = {i.id: i for i in computation.instructions}
            computation.schedule = tuple(
                by_id[_local(i, by_id, key)] for i in sequence.instruction_ids
            )
        entry = computations[proto.entry_computation_id]
    except KeyError as error:
        raise HloError(f"the HLO module refers to unknown id {error}; dump it again") from error
    aliases = {
        tuple(e.output_shape_index): (e.parameter_number, tuple(e.parameter_shape_index))
        for e in proto.input_output_alias.entries
    }
    donors = frozenset(
        (e.parameter_number, tuple(e.parameter_shape_index)) for e in proto.buffer_donor.entries
    )
    _check_donation(entry, aliases, donors)
    return Module(
        name=proto.name,
        computations=list(computations.values()),
        entry=entry,
        aliases=aliases,
        donors=donors,
        is_scheduled=entry.schedule is not None,
        frames=frames,
        proto=proto,
    )


def _same(before: Module, changed: Collection[int]) -> dict[int, Computation]:
    """Maps ids to computations of `before` that control flow never runs, unchanged in all parts."""
    read = {c.id for c in before.control_computations} | set(changed)
    unchanged: dict[int, Computation] = {}
    for c in before.computations:  # callees come first
        if c.id not in read and all(k.id in unchanged for i in c.instructions for k in i.called):
            unchanged[c.id] = c
    return unchanged


def _check_donation(
    entry: Computation,
    aliases: Mapping[ShapeIndex, tuple[int, ShapeIndex]],
    donors: Iterable[tuple[int, ShapeIndex]],
) -> None:
    """Raises HloError if a donation names a parameter or result that `entry` does not have."""
    shapes = [p.shape for p in entry.parameters]
    given = [*aliases.values(), *donors]
    parts = [(shapes[number], i) for number, i in given if 0 <= number < len(shapes)]
    if entry.root is not None:
        parts += [(entry.root.shape, i) for i in aliases]
    if len(parts) != len(given) + len(aliases) or not all(s.has(i) for s, i in parts):
        raise HloError("the HLO module donates arguments that it does not have; dump it again")


def _local(instruction_id: int, by_id: dict[int, Instruction], computation_id: int) -> int:
    """Returns an instruction's id in the module, of which a schedule may have only the low half."""
    if instruction_id in by_id:
        return instruction_id
    return (computation_id << 32) | instruction_id


def _read_computation(
    proto: xla_pb2.HloComputationProto, computations: dict[int, Computation]
) -> None:
    computation = computations[proto.id]
    by_id: dict[int, Instruction] = {}
    controlled = []
    for p in proto.instructions:
        number, opcode = p.id, p.opcode
        operands = tuple([by_id[o] for o in p.operand_ids])
        instruction = Instruction(
            number, p.name, opcode, shape_from_proto(p.shape), computation, operands, proto=p
        )
        if opcode == "parameter":
            instruction.parameter_number = p.parameter_number
        elif opcode not in _PLAIN:
            _read_particulars(p, instruction, computations)
        if config := p.backend_config:
            instruction.backend_config = config
        if dimensions := p.dimensions:
            instruction.dimensions = tuple(dimensions)
        by_id[number] = instruction
        computation.instructions.append(instruction)
        for operand in operands if len(operands) < 2 else dict.fromkeys(operands):
            operand.users.append(instruction)
        if control := p.control_predecessor_ids:
            controlled.append((instruction, control))
    for instruction, control in controlled:
        instruction.control_predecessors = tuple(by_id[c] for c in control)
    computation.root = by_id[proto.root_id]


_CALLED = {"while": 2, "call": 1, "fusion": 1}
"""How many computations an operation calls, where that is always the same."""


def _read_particulars(
    p: xla_pb2.HloInstructionProto, i: Instruction, computations: dict[int, Computation]
) -> None:
    """Sets fields of `i` that few opcodes have. HloError for a wrong number of callees or, of a
    while, of operands.
    """
    i.called = tuple(computations[c] for c in p.called_computation_ids)
    if len(i.called) != _CALLED.get(i.opcode, len(i.called)):
        calls = f"{i.opcode} {i.name} calls {len(i.called)} computations"
        raise HloError(f"{calls}, not {_CALLED[i.opcode]}; dump the module again")
    if i.opcode == "while" and len(i.operands) != 1:
        raise HloError(f"while {i.name} has {len(i.operands)} operands; dump the module again")
    i.tuple_index = p.tuple_index
    i.fusion_kind = p.fusion_kind
    i.custom_call_target = p.custom_call_target
    i.channel_id = p.channel_id
    i.aliasing = tuple(
        (tuple(a.output_shape_index), a.operand_index, tuple(a.operand_shape_index))
        for a in p.output_operand_aliasing
    )
    i.side_effect = p.custom_call_has_side_effect
    if p.HasField("dot_dimension_numbers"):
        i.contracting = tuple(p.dot_dimension_numbers.lhs_contracting_dimensions)
    if p.HasField("convolution_dimension_numbers"):
        i.feature_groups = max(p.feature_group_count, 1)
        i.kernel_features = (
            p.convolution_dimension_numbers.kernel_input_feature_dimension,
            p.convolution_dimension_numbers.kernel_output_feature_dimension,
        )
