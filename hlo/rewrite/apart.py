"""Adds copies where a change of a scheduled module made values of one buffer live together.

XLA inserts copies only before it schedules. A value that a change reads later than before may be
overwritten by then, by a loop or by an update in place; what overwrites it is given a copy instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence

from hlo import xla_pb2
from hlo.gc_pause import without_collection
from hlo.graph import MutableComputation, MutableModule
from hlo.inplace import can_share, in_place_pairs
from hlo.module import Computation, HloError, Instruction, Module, module_from_proto
from hlo.rewrite.placing import place_new
from hlo.shapes import TUPLE, ShapeIndex
from hlo.values import Dataflow, Use, Value, analyse

_ROUNDS = 4
"""A copy may be in the way of another one."""

_Instruction = xla_pb2.HloInstructionProto


@without_collection()
def keep_apart(before: xla_pb2.HloModuleProto, proto: xla_pb2.HloModuleProto, target: str) -> None:
    """Adds copies where a change of a module lets two values of one buffer live at the same time.

    Values that were live together before the change are left to XLA, which knows more of branches.
    Raises HloError if copies cannot keep the values apart.

    Args:
      before: the scheduled module without the change. proto: with it; copies are added in place.
      target: "cpu", "cuda" or "tpu", whose in-place rules count.
    """
    known: set[Hashable] | None = None
    for _ in range(_ROUNDS):
        sites = _conflicts(module_from_proto(proto), target)
        if sites and known is None:
            known = {_key(s) for s in _conflicts(module_from_proto(before), target)}
        sites = [s for s in sites if _key(s) not in (known or ())]
        if not sites:
            return
        _copy(proto, sites)
    raise HloError(f"copies of {sites[0].value.name} do not keep it from being overwritten")


def _conflicts(module: Module, target: str) -> list[CopySite]:
    return conflicts(analyse(module, target), target)


def _key(site: CopySite) -> Hashable:
    """Returns a key by which a CopySite is known again after a change of a loop's state."""
    user = "" if site.user is None else site.user.name
    return site.computation.name, user, _named(site.value), _named(site.other)


def _named(value: Value) -> tuple[Hashable, ...]:
    # A loop's state is numbered anew.
    i = value.instruction
    return (i.name,) if i.opcode in ("parameter", "while") else (i.name, value.index)


def _copy(proto: xla_pb2.HloModuleProto, sites: Iterable[CopySite]) -> None:
    module = MutableModule(proto)
    for site in sites:
        _copy_at(module.body(site.computation.id), site)
    for body in module.bodies():
        place_new(body)
        body.reorder()
    module.finish()


def _copy_at(body: MutableComputation, site: CopySite) -> None:
    """Adds a copy of the value at a CopySite, and makes the instruction or result there take it.
    Raises HloError for a tuple, and for an array in nested tuples.
    """
    if len(site.index) > 1:
        raise HloError(f"{site.value.name} is overwritten, and is in a tuple of tuples")
    user = None if site.user is None else body.named(site.user.name)
    taken = body.root if user is None else body.operands(user)[site.operand]
    if not site.index:
        _give(body, user, site.operand, _copied(body, taken))
        return
    (k,) = site.index
    own = _own_tuple(body, user, site.operand, taken)
    own.operand_ids[k] = _copied(body, body.operands(own)[k]).id


def _give(
    body: MutableComputation, user: _Instruction | None, operand: int, new: _Instruction
) -> None:
    """Replaces operand number `operand` of `user` by `new`, or the root if `user` is None."""
    if user is None:
        body.computation.root_id = new.id
    else:
        user.operand_ids[operand] = new.id


def _own_tuple(
    body: MutableComputation, user: _Instruction | None, operand: int, old: _Instruction
) -> _Instruction:
    """Returns a tuple like `old` that `user` (None: the root) alone reads: `old`, or a new one in
    its place.
    """
    if old.opcode != "tuple":
        elements = [body.tuple_element(old, k) for k in range(len(old.shape.tuple_shapes))]
        new = body.make("tuple", f"{old.name}.tuple", old.shape, *elements)
    elif sum(list(r.operand_ids).count(old.id) for r in body.readers(old)) == (user is not None):
        return old
    else:
        new = _Instruction()
        new.CopyFrom(old)
        new.name = body.names.new(old.name)
        body.add(new)
    _give(body, user, operand, new)
    return new


def _copied(body: MutableComputation, value: _Instruction) -> _Instruction:
    """Adds a copy of the array `value` and returns it. Raises HloError for a tuple."""
    if value.shape.element_type == TUPLE:
        raise HloError(f"{value.name} is a tuple, which is overwritten as a whole")
    return body.make("copy", f"{value.name}.apart", value.shape, value)


@dataclasses.dataclass(frozen=True)
class CopySite:
    """An operand or result where two values would share a buffer, so that one must be copied.

    Attributes:
      value: the value there. other: the value that has the buffer.
      computation: where it is. user: the instruction that takes `value` as operand `operand`, or
        None for the computation's result. index: shape index within that operand or result.
    """

    value: Value
    other: Value
    computation: Computation
    user: Instruction | None
    operand: int
    index: ShapeIndex


def conflicts(dataflow: Dataflow, target: str) -> list[CopySite]:
    """Finds where a copy is needed, since two values that must share a buffer are live together.

    Args:
      dataflow: of a module; instructions run as scheduled, else as listed.
      target: "cpu", "cuda" or "tpu", whose in-place rules count.
    """
    return _Joining(dataflow, target).conflicts()


def _in_order(computation: Computation) -> Sequence[Instruction]:
    return computation.schedule or computation.instructions


class _Joining:
    """Joins values that XLA puts into one buffer, as long as no two of it are live together."""

    def __init__(self, dataflow: Dataflow, target: str) -> None:
        self._flow = dataflow
        self._target = target
        self._module = dataflow.module
        self._times = _LogicalTimes(self._module)
        controlled = (i for c in self._module.control_computations for i in c.instructions)
        self._starts = {i.called[0]: i for i in controlled if i.opcode == "async-start"}
        self._start = [self._times.at[v.instruction] for v in dataflow.values]
        self._end = [self._last_seen(v) for v in dataflow.values]
        self._fixed = [self._is_fixed(v) for v in dataflow.values]
        self._members = [[v] for v in dataflow.values]
        """By value id, the values of its buffer; one list for each buffer."""

    def conflicts(self) -> list[CopySite]:
        """Joins the values of each CopySite into one buffer; returns the sites where they clash."""
        clashing = []
        for site in self._sites():
            if not self._join(site.value, site.other):
                clashing.append(site)
        return clashing

    def _sites(self) -> Iterator[CopySite]:
        """Yields all places where XLA's rules require two values to share a buffer, as CopySites.

        Of two that conflict the later one gets a copy, so those come first at which a copy would
        not help: a copy that is the result of a branch or of a loop's body only lives at its end,
        one of an operand right before its reader.
        """
        at, entry = self._flow.at, self._module.entry
        assert entry.root is not None
        instructions = [i for c in self._module.control_computations for i in _in_order(c)]
        loops = [(i, self._changing(i)) for i in instructions if i.opcode == "while"]
        branches = [
            site for i in instructions if i.opcode == "conditional" for site in self._branches(i)
        ]
        yield from sorted(branches, key=lambda s: s.value.instruction.computation != s.computation)
        for index, (number, inner) in self._module.aliases.items():
            value, other = at[entry.root, index], at[entry.parameters[number], inner]
            yield CopySite(value, other, entry, None, 0, index)
        for loop, changing in loops:
            body = loop.called[0]
            assert body.root is not None
            for index, state in changing:
                yield CopySite(at[body.root, index], state, body, None, 0, index)
            for index, state in changing:
                value = at[loop.operands[0], index]
                yield CopySite(value, state, loop.computation, loop, 0, index)
        for i in instructions:
            for operand, inner, index in in_place_pairs(i, self._target):
                value = at[i.operands[operand], inner]
                yield CopySite(value, at[i, index], i.computation, i, operand, inner)

    def _changing(self, loop: Instruction) -> list[tuple[ShapeIndex, Value]]:
        """Finds the elements of a loop's state that iterations change: (index, value in the body).
        Joins each with the same element of the condition's parameter and of the loop's result.
        """
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

    def _branches(self, i: Instruction) -> Iterator[CopySite]:
        at = self._flow.at
        for index, shape in i.shape.indices():
            result = at[i, index]
            if shape.is_tuple or result.instruction is not i:
                continue
            for branch in i.called:
                assert branch.root is not None
                yield CopySite(at[branch.root, index], result, branch, None, 0, index)

    def _join(self, a: Value, b: Value) -> bool:
        """Joins the buffers of two values; returns False, without change, if their values clash."""
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
        """Whether two values cannot have one buffer: both live at once, or one not writable."""
        if self._fixed[a.id] or self._fixed[b.id]:
            return True
        if self._start[a.id] > self._start[b.id]:
            a, b = b, a
        if self._end[a.id] != self._start[b.id] or self._start[a.id] == self._start[b.id]:
            return self._end[a.id] >= self._start[b.id]
        return not self._written_over(a, b.instruction, b.index)

    def _written_over(self, a: Value, i: Instruction, index: ShapeIndex) -> bool:
        """Whether the value that `i` defines at `index` may overwrite `a`, last read at that time.
        Loop state takes over what the loop starts from. An instruction may write its result over an
        operand; what a loop or a branch still reads is alive until it is over.
        """
        if i.opcode == "parameter":
            callers = [use for use in a.uses if use.instruction in self._times.entered]
            latest = [
                use for use in callers if self._times.of(use.instruction) == self._times.at[i]
            ]
            return bool(latest) and all(use.index == index for use in latest)
        pairs = in_place_pairs(i, self._target)
        reads = [use for use in a.uses if use.instruction is i]
        return bool(reads and not i.called_control) and all(
            (use.operand, use.index, index) in pairs
            or can_share(i.operands[use.operand], use.index, i, index, self._target, pairs)
            for use in reads
        )

    def _is_fixed(self, value: Value) -> bool:
        """Whether nothing may overwrite a value: constants, and arguments no output replaces."""
        i = value.instruction
        if i.opcode == "parameter" and i.computation is self._module.entry:
            return (i.parameter_number, value.index) not in self._module.donated
        return i.opcode == "constant"

    def _last_seen(self, value: Value) -> int:
        times, taken = self._times, self._written_in_flight(value)
        seen = [
            times.end[i.computation] if i.is_root else times.at[i]
            for i, index in value.positions
            if i not in taken or index[:1] != (0,)
        ]
        # What a loop or a branch only reads also has a position inside, and in a loop's result.
        uses = (u.instruction for u in value.uses if not _is_held(u, taken))
        return max([*seen, *map(times.of, uses)])

    def _written_in_flight(self, value: Value) -> set[Instruction]:
        """Finds asynchronous starts that write their result over `value`, one of their operands.
        Where a start only reads it, it is alive until the done.
        """
        starts = set()
        for use in value.uses:
            start = self._starts.get(use.instruction.computation)
            if start is not None:
                pairs = in_place_pairs(use.instruction, self._target)
                if any((use.operand, use.index) == pair[:2] for pair in pairs):
                    starts.add(start)
        return starts


def _is_held(use: Use, starts: set[Instruction]) -> bool:
    """Whether a use is by an update or done of one of `starts`, of an operand in its tuple."""
    i = use.instruction
    while i.opcode in ("async-update", "async-done"):
        (i,) = i.operands
    return i is not use.instruction and i in starts and use.index[:1] == (0,)


class _LogicalTimes:
    """Logical times of all instructions run one by one, those of callees before their callers.

    Attributes:
      at: by instruction, when it gives its result; parameters all at once. entered: by instruction
        that calls, when its first callee starts. end: by computation, after its last instruction.
    """

    def __init__(self, module: Module) -> None:
        self.at: dict[Instruction, int] = {}
        self.entered: dict[Instruction, int] = {}
        self.end: dict[Computation, int] = {}
        self._walk(module.entry, 0)

    def of(self, user: Instruction) -> int:
        """Returns when an instruction takes its operands: a caller when its first callee starts."""
        return self.entered.get(user, self.at[user])

    def _walk(self, computation: Computation, now: int) -> int:
        start = now
        for i in _in_order(computation):
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
