"""Inserts copies where values that must have one buffer are alive together.

A loop overwrites the state that it starts from, an output its donated argument, an update in place
its operand. Before XLA's copy insertion one value may be all of these and be read later as well.
XLA copies wherever that might be and then removes what it can; here values join one buffer by one,
and where two of them would be alive at once in program order, one is copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from hlo import xla_pb2
from hlo.inplace import can_share, in_place_pairs
from hlo.module import Computation, HloError, Instruction, Module, module_from_proto
from hlo.shapes import TUPLE, ShapeIndex
from hlo.values import Dataflow, Value, analyse

__all__ = ["insert_copies"]

_ROUNDS = 16
"""Copies can be in each other's way at first (two loop states that change places)."""

_TARGET = "cpu"
"""Whose in-place rules count; they differ in fusions only, and XLA fuses later."""


@dataclasses.dataclass(frozen=True)
class _Site:
    """Where a value enters the buffer of another, and may be copied before.

    Attributes:
      value: the value there. other: one that has the buffer.
      computation: where it stands. user: the instruction that takes it as operand number `operand`,
        or None for the computation's result. index: within that operand or result.
    """

    value: Value
    other: Value
    computation: Computation
    user: Instruction | None
    operand: int
    index: ShapeIndex


def insert_copies(proto: xla_pb2.HloModuleProto) -> None:
    """Adds the copies that a module needs whose instructions are listed in program order.

    Each computation run step by step must be called from one place (hlo.flatten).

    Raises:
      HloError: the copies do not come to an end.
    """
    for _ in range(_ROUNDS):
        module = module_from_proto(proto)
        dataflow = analyse(module, _TARGET)
        found = [*_doubtful_outputs(dataflow)] or _Joining(dataflow).conflicts()
        if not found:
            return
        computations = {c.id: c for c in proto.computations}
        names = {i.name for c in proto.computations for i in c.instructions}
        wanted: dict[int, dict[tuple[int, int], list[ShapeIndex]]] = {}
        for site in found:
            where = (-1 if site.user is None else site.user.id, site.operand)
            wanted.setdefault(site.computation.id, {}).setdefault(where, []).append(site.index)
        for number, places in wanted.items():
            _Writer(computations[number], names).write(places)
    raise HloError("which values share a buffer stays open; pass the compiled module instead")


def _doubtful_outputs(dataflow: Dataflow) -> Iterator[_Site]:
    """Outputs that are arguments, constants or other outputs too; each must have its own buffer."""
    module = dataflow.module
    root = module.entry.root
    assert root is not None
    seen: set[Value] = set()
    for index, shape in root.shape.indices():
        value = dataflow.at[root, index]
        if shape.is_tuple:
            continue
        i = value.instruction
        own = module.aliases.get(index) == (i.parameter_number, value.index)
        argument = i.opcode == "parameter" and i.computation is module.entry
        if value in seen or i.opcode == "constant" or (argument and not own):
            yield _Site(value, value, module.entry, None, 0, index)
        seen.add(value)


class _Joining:
    """Joins values into buffers as long as no two of one buffer are alive together."""

    def __init__(self, dataflow: Dataflow) -> None:
        self._flow = dataflow
        self._module = dataflow.module
        self._times = _Times(self._module)
        self._start = [self._defined(v) for v in dataflow.values]
        self._end = [self._last_seen(v) for v in dataflow.values]
        self._fixed = [self._is_fixed(v) for v in dataflow.values]
        self._members = [[v] for v in dataflow.values]
        """By value id, the values of its buffer; one list for each buffer."""

    def conflicts(self) -> list[_Site]:
        """The sites at which a copy is needed."""
        found = []
        for site in self._sites():
            if not self._join(site.value, site.other):
                found.append(site)
        return found

    def _sites(self) -> Iterator[_Site]:
        """All places where values must join.

        Each comes after those at which a copy would not help: a copy that is the result of a branch
        or of a loop's body only lives at its end, one of an operand right before its reader.
        """
        at, entry = self._flow.at, self._module.entry
        assert entry.root is not None
        instructions = [i for c in self._module.control_computations for i in c.instructions]
        loops = [(i, self._changing(i)) for i in instructions if i.opcode == "while"]
        branches = [
            site for i in instructions if i.opcode == "conditional" for site in self._branches(i)
        ]
        yield from sorted(branches, key=lambda s: s.value.instruction.computation != s.computation)
        for index, (number, inner) in self._module.aliases.items():
            value, other = at[entry.root, index], at[entry.parameters[number], inner]
            yield _Site(value, other, entry, None, 0, index)
        for loop, changing in loops:
            body = loop.called[0]
            assert body.root is not None
            for index, state in changing:
                yield _Site(at[body.root, index], state, body, None, 0, index)
            for index, state in changing:
                value = at[loop.operands[0], index]
                yield _Site(value, state, loop.computation, loop, 0, index)
        for i in instructions:
            for operand, inner, index in in_place_pairs(i, _TARGET):
                value = at[i.operands[operand], inner]
                yield _Site(value, at[i, index], i.computation, i, operand, inner)

    def _changing(self, loop: Instruction) -> list[tuple[ShapeIndex, Value]]:
        """The state that a loop overwrites; what is the same buffer in any case joins at once."""
        at = self._flow.at
        body, condition = loop.called
        changing = []
        for index, shape in loop.shape.indices():
            state = at[body.parameters[0], index]
            if not shape.is_tuple and state.instruction is body.parameters[0]:
                changing.append((index, state))
                for other in (at[condition.parameters[0], index], at[loop, index]):
                    self._unite(state, other)
        return changing

    def _branches(self, i: Instruction) -> Iterator[_Site]:
        at = self._flow.at
        for index, shape in i.shape.indices():
            result = at[i, index]
            if shape.is_tuple or result.instruction is not i:
                continue
            for branch in i.called:
                assert branch.root is not None
                yield _Site(at[branch.root, index], result, branch, None, 0, index)

    # Buffers.

    def _join(self, a: Value, b: Value) -> bool:
        """Puts two values and all that share with them into one buffer, if that can be."""
        mine, theirs = self._members[a.id], self._members[b.id]
        if mine is theirs:
            return True
        if any(self._clash(v, w) for v in mine for w in theirs):
            return False
        self._unite(a, b)
        return True

    def _unite(self, a: Value, b: Value) -> None:
        mine, theirs = self._members[a.id], self._members[b.id]
        if mine is not theirs:
            mine += theirs
            for value in theirs:
                self._members[value.id] = mine

    def _clash(self, a: Value, b: Value) -> bool:
        """Whether two values cannot have one buffer."""
        if self._fixed[a.id] or self._fixed[b.id]:
            return True
        if self._start[a.id] > self._start[b.id]:
            a, b = b, a
        if self._end[a.id] != self._start[b.id] or self._start[a.id] == self._start[b.id]:
            return self._end[a.id] >= self._start[b.id]
        return not self._written_over(a, b.instruction, b.index)

    def _written_over(self, a: Value, i: Instruction, index: ShapeIndex) -> bool:
        """Whether a value may have the buffer of another, defined when it is last read.

        Loop state takes over what the loop starts from. An instruction may write its result over an
        operand; what a loop or a branch still reads is alive until it is over.
        """
        if i.opcode == "parameter":
            callers = [use for use in a.uses if use.instruction in self._times.entered]
            latest = [
                use for use in callers if self._times.of(use.instruction) == self._times.at[i]
            ]
            return bool(latest) and all(use.index == index for use in latest)
        pairs = in_place_pairs(i, _TARGET)
        reads = [use for use in a.uses if use.instruction is i]
        return bool(reads and not i.called_control) and all(
            (use.operand, use.index, index) in pairs
            or can_share(i.operands[use.operand], use.index, i, index, _TARGET, pairs)
            for use in reads
        )

    # Lifetimes, in the times of `_Times`.

    def _is_fixed(self, value: Value) -> bool:
        """Whether nothing may overwrite it: constants, and arguments that no output replaces."""
        i = value.instruction
        if i.opcode == "parameter" and i.computation is self._module.entry:
            return (i.parameter_number, value.index) not in self._module.donated
        return i.opcode == "constant"

    def _defined(self, value: Value) -> int:
        return self._times.at[value.instruction]

    def _last_seen(self, value: Value) -> int:
        times = self._times
        seen = [times.end[i.computation] if i.is_root else times.at[i] for i, _ in value.positions]
        # What a loop or a branch only reads also has a position inside, and in a loop's result.
        return max([*seen, *(times.of(use.instruction) for use in value.uses)])


class _Times:
    """Logical times of all instructions run one by one, those of callees before their callers.

    Attributes:
      at: by instruction; parameters all at once. entered: by instruction that calls, when the
        first of its callees starts. end: by computation, after its last instruction.
    """

    def __init__(self, module: Module) -> None:
        self.at: dict[Instruction, int] = {}
        self.entered: dict[Instruction, int] = {}
        self.end: dict[Computation, int] = {}
        self._walk(module.entry, 0)

    def of(self, user: Instruction) -> int:
        """When an instruction takes its operands."""
        return self.entered.get(user, self.at[user])

    def _walk(self, computation: Computation, now: int) -> int:
        start = now
        for i in computation.instructions:
            if i.opcode == "parameter":
                self.at[i] = start
                continue
            if i.called_control:
                self.entered[i] = now + 1
                for callee in i.called_control:
                    now = self._walk(callee, now + 1)
            now += 1
            self.at[i] = now
        self.end[computation] = now + 1
        return now + 1


class _Writer:
    """Adds copies to one computation."""

    def __init__(self, computation: xla_pb2.HloComputationProto, names: set[str]) -> None:
        self._computation = computation
        self._names = names
        self._by_id = {i.id: i for i in computation.instructions}
        self._next = max(self._by_id) + 1
        self._listed: list[xla_pb2.HloInstructionProto] = []

    def write(self, places: dict[tuple[int, int], list[ShapeIndex]]) -> None:
        """Copies parts of operands: (user's id, operand number) -> indices; user -1 is the root."""
        computation = self._computation
        for i in list(self._by_id.values()):
            for number, operand in enumerate(i.operand_ids):
                if (i.id, number) in places:
                    i.operand_ids[number] = self._copied(operand, places[i.id, number])
            self._listed.append(i)
        if (-1, 0) in places:
            computation.root_id = self._copied(computation.root_id, places[-1, 0])
        listed = self._numbered(self._without_unread())
        copies = xla_pb2.HloComputationProto(instructions=listed).instructions
        del computation.instructions[:]
        computation.instructions.extend(copies)

    def _copied(self, number: int, indices: Sequence[ShapeIndex]) -> int:
        """A value with parts of it copied; the rest is handed on."""
        old = self._by_id[number]
        if old.shape.element_type != TUPLE:
            return self._add("copy", old.shape, [number], old)
        elements = []
        for k, shape in enumerate(old.shape.tuple_shapes):
            inner = [index[1:] for index in indices if index[0] == k]
            element = old.operand_ids[k] if old.opcode == "tuple" else None
            if element is None:
                element = self._add("get-tuple-element", shape, [number], old, k)
            elements.append(self._copied(element, inner) if inner else element)
        return self._add("tuple", old.shape, elements, old)

    def _add(
        self,
        opcode: str,
        shape: xla_pb2.ShapeProto,
        operands: Sequence[int],
        origin: xla_pb2.HloInstructionProto,
        element: int = 0,
    ) -> int:
        stem = origin.name if origin.opcode == opcode else f"{opcode}.{origin.name}"
        name, k = stem, 0
        while name in self._names:
            name, k = f"{stem}.{k + 1}", k + 1
        self._names.add(name)
        new = xla_pb2.HloInstructionProto(
            name=name, opcode=opcode, shape=shape, id=self._next, operand_ids=operands
        )
        new.metadata.CopyFrom(origin.metadata)
        new.tuple_index = element
        self._next += 1
        self._by_id[new.id] = new
        self._listed.append(new)
        return new.id

    def _without_unread(self) -> list[xla_pb2.HloInstructionProto]:
        """Less the tuples and their elements that nothing needs any more."""
        read = {self._computation.root_id}
        kept = []
        for i in reversed(self._listed):
            if i.id in read or i.opcode not in ("tuple", "get-tuple-element"):
                read.update((*i.operand_ids, *i.control_predecessor_ids))
                kept.append(i)
        return kept[::-1]

    def _numbered(
        self, listed: Sequence[xla_pb2.HloInstructionProto]
    ) -> Sequence[xla_pb2.HloInstructionProto]:
        """The same with ids in the order in which they are listed."""
        computation = self._computation
        new = {i.id: computation.id << 32 | k for k, i in enumerate(listed)}
        for i in listed:
            i.id = new[i.id]
            i.operand_ids[:] = [new[k] for k in i.operand_ids]
            i.control_predecessor_ids[:] = [new[k] for k in i.control_predecessor_ids]
        computation.root_id = new[computation.root_id]
        return listed
