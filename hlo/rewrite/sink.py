"""Lets loops take slices from where an array was before it was moved for them.

An array that is transposed before a loop, so that each turn finds its slice in one piece, is held
twice as long as the loop runs. The same slice can be taken from the array itself: it is the same
bytes in the same order, and about as many are moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from hlo import xla_pb2
from hlo.module import Computation, HloError, Instruction, Module, module_from_proto
from hlo.rewrite.aliases import make_bitcast
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.bodies import Names
from hlo.rewrite.walk import put_in_post_order
from hlo.shapes import Shape
from hlo.strides import joined, moved, sliced_outermost

__all__ = ["Sink", "sink_moves", "sinks"]

_LOCAL = (1 << 32) - 1

_RUN = 64
"""Bytes of a slice that must lie in one piece where it is taken now: less is slow to read."""

_FREE = frozenset("parameter constant bitcast copy transpose convert dynamic-slice".split())
_INDEX = frozenset("add subtract compare select clamp multiply minimum maximum and or not".split())
"""Opcodes of a fusion that gives the same bits by whatever code; the second, on integers."""

_INTEGERS = frozenset(range(1, 10))

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


@dataclasses.dataclass(frozen=True, eq=False)
class Sink:
    """Something that moves an array for loops alone, and could go.

    Attributes:
      move: the instruction; with it go those that only it reads (`gone`), and that move as well.
      source: what is moved. axis: dimension of it that counts slices.
      loops: each while, and the element of its state that it begins.
      slices: the dynamic-slices inside fusions of their bodies.
    """

    move: Instruction
    gone: tuple[Instruction, ...]
    source: Instruction
    axis: int
    loops: tuple[tuple[Instruction, int], ...]
    slices: tuple[Instruction, ...]


def sinks(module: Module) -> list[Sink]:
    """All that could go, in the order of the module."""
    found = []
    for computation in module.control_computations:
        for i in computation.instructions:
            sink = _sink(i)
            if sink is not None:
                found.append(sink)
    return found


def _sink(move: Instruction) -> Sink | None:
    if not _moves(move) or not move.users or any(_moves(u) for u in move.users):
        return None
    gone: list[Instruction] = []
    found = None
    i = move
    while _moves(i) and (i is move or len(i.users) == 1):
        gone.append(i)
        (i,) = i.operands
        if (axis := _axis(move, i)) is not None:
            found = tuple(gone), i, axis
    if found is None:
        return None
    gone_with, source, axis = found
    loops: list[tuple[Instruction, int]] = []
    slices: list[Instruction] = []
    for start in move.users:
        places = [k for k, o in enumerate(start.operands) if o is move]
        if start.opcode != "tuple" or len(start.users) != 1 or len(places) != 1:
            return None
        (loop,) = start.users
        found = _taken(loop, places[0], source.shape.dimensions[axis])
        if found is None:
            return None
        loops.append((loop, places[0]))
        slices += found
    return Sink(move, gone_with, source, axis, tuple(loops), tuple(slices))


def _moves(i: Instruction) -> bool:
    """Whether it may give the elements of its one operand in another order, and no more."""
    if i.opcode not in ("fusion", "transpose", "copy", "bitcast") or len(i.operands) != 1:
        return False
    return not (i.shape.is_tuple or i.is_root or i.control_predecessors)


def _axis(move: Instruction, source: Instruction) -> int | None:
    """The dimension of a source whose slices an instruction puts one after the other, if it does.

    But for that it leaves elements in their order.
    """
    if not source.shape.is_array or source.shape.element_bits < 8 or source.shape.memory_space:
        return None
    steps = moved(move, source)
    if steps is None or len(steps) < 2:
        return None
    distance = 1
    for axis in source.shape.minor_to_major:
        count = source.shape.dimensions[axis]
        if count > 1 and steps[0] == (count, distance):
            within = _without(source.shape, axis)
            run = within[-1][0] if within and within[-1][1] == 1 else 1
            is_long = run * source.shape.element_bits >= 8 * _RUN
            return axis if joined([steps[0], *within]) == steps and is_long else None
        distance *= count
    return None


def _without(shape: Shape, axis: int) -> list[tuple[int, int]]:
    """The steps over an array but for one of its dimensions."""
    distance, found = 1, []
    for k in shape.minor_to_major:
        if k != axis:
            found.append((shape.dimensions[k], distance))
        distance *= shape.dimensions[k]
    return list(joined(reversed(found)))


def _taken(loop: Instruction, k: int, count: int) -> list[Instruction] | None:
    """The slices that a loop takes of an element that no turn changes; None if it does more."""
    if loop.opcode != "while" or loop.operands[0].users != [loop] or loop.is_root:
        return None
    body, condition = loop.called
    if any(u.opcode != "get-tuple-element" or u.tuple_index == k for u in loop.users):
        return None
    root = body.root
    if root is None or root.opcode != "tuple" or root.control_predecessors:
        return None
    parts = list(_parts(body, k))
    if _parts_are_read(condition, k) or root.operands[k] not in parts:
        return None
    found: list[Instruction] = []
    for part in parts:
        for user in part.users:
            if user is root:
                if [n for n, o in enumerate(root.operands) if o is part] != [k]:
                    return None
                continue
            inner = _slices(user, part, count)
            if inner is None:
                return None
            found += inner
    return found


def _parts(computation: Computation, k: int) -> Iterator[Instruction]:
    """What takes an element out of a loop's state."""
    (state,) = computation.parameters
    return (u for u in state.users if u.opcode == "get-tuple-element" and u.tuple_index == k)


def _parts_are_read(condition: Computation, k: int) -> bool:
    (state,) = condition.parameters
    plain = all(u.opcode == "get-tuple-element" for u in state.users)
    return not plain or any(p.users or p.is_root for p in _parts(condition, k))


def _slices(fusion: Instruction, part: Instruction, count: int) -> list[Instruction] | None:
    """The dynamic-slices in a fusion that take one of `count` slices of an operand, if it is free.

    It is if its code does not matter to any bit of its result.
    """
    if fusion.opcode != "fusion" or fusion.fusion_kind == "kCustom":
        return None
    if b'"kind"' in fusion.backend_config:
        return None  # XLA has code of its own for it, such as a copy of bytes that lie in one piece
    body = fusion.called[0]
    if not all(_is_free(i) for i in body.instructions):
        return None
    found: list[Instruction] = []
    for number, operand in enumerate(fusion.operands):
        waiting = [body.parameters[number]] if operand is part else []
        while waiting:
            i = waiting.pop()
            if i.is_root:
                return None
            for user in i.users:
                if user.opcode == "bitcast":
                    waiting.append(user)
                elif _is_slice(user, i, count):
                    found.append(user)
                else:
                    return None
    return found


def _is_free(i: Instruction) -> bool:
    if i.opcode in _INDEX:
        return all(o.shape.element_type in _INTEGERS for o in (i, *i.operands))
    return i.opcode in _FREE


def _is_slice(i: Instruction, whole: Instruction, count: int) -> bool:
    """Whether it takes one of so many slices of an array, each in one piece."""
    if i.opcode != "dynamic-slice" or i.operands[0] is not whole:
        return False
    axis = sliced_outermost(i.shape, whole.shape)
    return axis is not None and whole.shape.dimensions[axis] == count


def sink_moves(proto: xla_pb2.HloModuleProto, names: Sequence[str], target: str) -> None:
    """Takes what moves arrays for loops out of a module.

    Args:
      proto: a scheduled module, changed in place. names: of instructions that `sinks` finds.
      target: "cpu" or "cuda", whose in-place rules say what must be copied all the same.

    Raises:
      HloError: one is none of these.
    """
    if not names:
        return
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    known = {s.move.name: s for s in sinks(module_from_proto(proto))}
    if lost := [name for name in names if name not in known]:
        raise HloError(f"{lost[0]} is not something that moves an array for loops; plan it again")
    chosen = [known[name] for name in names]
    calls = [
        k for c in proto.computations for i in c.instructions for k in i.called_computation_ids
    ]
    writer = _Writer(proto)
    for sink in chosen:
        if any(calls.count(i.computation.id) != 1 for i in sink.slices):
            raise HloError(f"what takes slices of {sink.move.name} has code that others have too")
        writer.write(sink)
    writer.finish()
    keep_apart(before, proto, target)


class _Writer:
    """Writes what goes, and what is taken from elsewhere."""

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self._proto = proto
        self._names = Names(proto)
        self._computations = {c.id: c for c in proto.computations}
        self._at = {i.name: i for c in proto.computations for i in c.instructions}
        self._gone: set[int] = set()
        self._touched: dict[int, _Computation] = {}

    def write(self, sink: Sink) -> None:
        """Takes one out."""
        shape = self._at[sink.source.name].shape
        for loop, k in sink.loops:
            start = self._at[loop.operands[0].name]
            start.operand_ids[k] = self._at[sink.source.name].id
            body, condition = loop.called
            changed = [start, self._at[loop.name]]
            for computation in (body, condition):
                (state,) = computation.parameters
                changed.append(self._at[state.name])
                self._computations[computation.id].ClearField("program_shape")
                for part in _parts(computation, k):
                    self._at[part.name].shape.CopyFrom(shape)
                    self._widen(part, shape)
            assert body.root is not None
            changed.append(self._at[body.root.name])
            for i in changed:
                i.shape.tuple_shapes[k].CopyFrom(shape)
        for i in dict.fromkeys(sink.slices):
            self._take(sink, i)
        self._gone |= {self._at[i.name].id for i in sink.gone}
        self._touched[sink.move.computation.id] = self._computations[sink.move.computation.id]

    def _widen(self, part: Instruction, shape: _Shape) -> None:
        """Gives the fusions that read an element its new shape."""
        for fusion in part.users:
            for number, operand in enumerate(fusion.operands if fusion.called else ()):
                if operand is part:
                    body = fusion.called[0]
                    self._at[body.parameters[number].name].shape.CopyFrom(shape)
                    self._computations[body.id].ClearField("program_shape")

    def _take(self, sink: Sink, i: Instruction) -> None:
        """Takes a slice of the source: a bitcast of that is what was taken before."""
        body, old = self._computations[i.computation.id], self._at[i.name]
        given = i.operands[0]
        while given.opcode == "bitcast":
            (given,) = given.operands
        cut = sliced_outermost(i.shape, i.operands[0].shape)
        assert cut is not None
        source = self._at[sink.source.name].shape
        at = old.operand_ids[1 + cut]
        others = [o for o in i.operands[1:] if o.integer == 0]
        zero = (
            self._at[others[0].name].id
            if others
            else self._zero(body, self._at[i.operands[1 + cut].name])
        )
        cast = make_bitcast(body, self._names.new(f"{i.name}.as_moved"), old.shape)
        cast.operand_ids.append(old.id)
        for user in body.instructions:
            user.operand_ids[:] = [cast.id if k == old.id else k for k in user.operand_ids]
        if body.root_id == old.id:
            body.root_id = cast.id
        rank = range(len(source.dimensions))
        old.operand_ids[:] = [
            self._at[given.name].id,
            *(at if k == sink.axis else zero for k in rank),
        ]
        old.shape.CopyFrom(source)
        old.shape.dimensions[sink.axis] = 1
        old.dynamic_slice_sizes[:] = old.shape.dimensions
        old.ClearField("backend_config")  # where in memory XLA:GPU found the slices before
        body.instructions.add().CopyFrom(cast)
        _drop_unread(body)
        put_in_post_order(body)
        self._at |= {k.name: k for k in body.instructions}

    def _zero(self, body: _Computation, like: _Instruction) -> int:
        """A zero of the type of an index."""
        made = body.instructions.add()
        made.name, made.opcode = self._names.new("zero.moved"), "constant"
        made.shape.CopyFrom(like.shape)
        literal = xla_pb2.LiteralProto(shape=like.shape)
        (literal.s64s if like.shape.element_type == 5 else literal.s32s).append(0)
        made.literal = literal.SerializeToString()
        made.id = _next_id(body)
        return made.id

    def finish(self) -> None:
        """Takes what nothing reads now out of the schedule."""
        for computation in self._touched.values():
            kept = [i for i in computation.instructions if i.id not in self._gone]
            listed = _Computation(instructions=kept)
            del computation.instructions[:]
            computation.instructions.extend(listed.instructions)
            put_in_post_order(computation)
            ids = self._proto.schedule.sequences[computation.id].instruction_ids
            lost = {k & _LOCAL for k in self._gone}
            ids[:] = [k for k in ids if k & _LOCAL not in lost]


def _next_id(body: _Computation) -> int:
    return max(i.id for i in body.instructions) + 1


def _drop_unread(body: _Computation) -> None:
    """Leaves bitcasts and constants out that nothing reads any more."""
    while True:
        read = {k for i in body.instructions for k in i.operand_ids} | {body.root_id}
        kept = [i for i in body.instructions if i.opcode == "parameter" or i.id in read]
        if len(kept) == len(body.instructions):
            return
        listed = _Computation(instructions=kept)
        del body.instructions[:]
        body.instructions.extend(listed.instructions)
