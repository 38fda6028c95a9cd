"""Lets loops slice an array as it was before it was moved for them.

An array that is transposed or converted before a loop, so that each iteration finds its slice as it
needs it, is in memory twice while the loop runs. The slice can be made from one of the original;
about as many bytes are moved.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo import xla_pb2
from hlo.module import HloError, Instruction, module_from_proto
from hlo.rewrite.aliases import make_bitcast
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.bodies import Names, list_computations
from hlo.rewrite.sinkable import Sink, Taken, parts, sinks
from hlo.rewrite.walk import put_in_post_order

_LOCAL = (1 << 32) - 1

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


def sink_moves(proto: xla_pb2.HloModuleProto, names: Sequence[str], target: str) -> None:
    """Removes transposes and conversions made for loops, which then slice the original array.

    Args:
      proto: a scheduled module, changed in place. names: of instructions that `sinks` finds.
      target: "cpu" or "cuda", whose in-place rules say what must be copied all the same.

    Raises:
      HloError: `sinks` does not find a name, or others call the computation that slices.
    """
    if not names:
        return
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    known = {s.move.name: s for s in sinks(module_from_proto(proto), target)}
    if lost := [name for name in names if name not in known]:
        raise HloError(f"{lost[0]} does not move an array that loops read; plan it again")
    chosen = [known[name] for name in names]
    calls = [
        k for c in proto.computations for i in c.instructions for k in i.called_computation_ids
    ]
    writer = _Writer(proto)
    for sink in chosen:
        if any(calls.count(t.slice.computation.id) != 1 for t in sink.slices):
            raise HloError(f"other instructions call the computation that slices {sink.move.name}")
        writer.write(sink)
    writer.finish()
    keep_apart(before, proto, target)


class _Writer:
    """Removes the moves, and makes the slices from the sources."""

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self._proto = proto
        self._names = Names(proto)
        self._computations = {c.id: c for c in proto.computations}
        self._at = {i.name: i for c in proto.computations for i in c.instructions}
        self._gone: set[int] = set()
        self._starts: dict[str, Instruction] = {}
        self._touched: dict[int, _Computation] = {}

    def write(self, sink: Sink) -> None:
        """Removes one move."""
        shape = self._at[sink.source.name].shape
        for loop, k in sink.loops:
            start = self._at[loop.operands[0].name]
            if loop.operands[0].operands[k] is sink.move:
                start.operand_ids[k] = self._at[sink.source.name].id
            body, condition = loop.called
            changed = [start, self._at[loop.name]]
            for computation in (body, condition):
                (state,) = computation.parameters
                changed.append(self._at[state.name])
                self._computations[computation.id].ClearField("program_shape")
                for part in parts(computation, k):
                    self._at[part.name].shape.CopyFrom(shape)
                    self._widen(part, shape)
                    self._starts |= {u.name: u for u in part.users if u.opcode == "async-start"}
            assert body.root is not None
            changed.append(self._at[body.root.name])
            for i in changed:
                i.shape.tuple_shapes[k].CopyFrom(shape)
        for taken in sink.slices:
            self._take(sink, taken)
            if sink.code:
                self._at[taken.fusion.name].fusion_kind = sink.code
        self._gone |= {self._at[i.name].id for i in sink.gone}
        self._touched[sink.move.computation.id] = self._computations[sink.move.computation.id]

    def _widen(self, part: Instruction, shape: _Shape) -> None:
        """Gives the fusions that read an element its new shape."""
        for reader in part.users:
            for number, operand in enumerate(reader.operands if reader.called else ()):
                if operand is not part:
                    continue
                body = reader.called[0]
                inner = body.parameters[number]
                self._at[inner.name].shape.CopyFrom(shape)
                self._computations[body.id].ClearField("program_shape")
                if reader.opcode == "async-start":
                    self._widen(inner, shape)

    def _take(self, sink: Sink, taken: Taken) -> None:
        """Slices the source, and makes the old slice from that."""
        i = taken.slice
        body, old = self._computations[i.computation.id], self._at[i.name]
        given = i.operands[0]
        while given.opcode == "bitcast":
            (given,) = given.operands
        source = self._at[sink.source.name].shape
        at = old.operand_ids[1 + taken.cut]
        others = [o for o in i.operands[1:] if o.integer == 0]
        zero = (
            self._at[others[0].name].id
            if others
            else self._zero(body, self._at[i.operands[1 + taken.cut].name])
        )
        part = _Shape()
        part.CopyFrom(source)
        part.dimensions[taken.axis] = 1
        kind = source.element_type if sink.kinds else old.shape.element_type
        made = self._as_moved(body, old, taken, kind)
        made += self._converted(made[-1], old, sink.kinds)
        for user in body.instructions:
            user.operand_ids[:] = [made[-1].id if k == old.id else k for k in user.operand_ids]
        if body.root_id == old.id:
            body.root_id = made[-1].id
        made[0].operand_ids[:] = [old.id]
        rank = range(len(source.dimensions))
        old.operand_ids[:] = [
            self._at[given.name].id,
            *(at if k == taken.axis else zero for k in rank),
        ]
        old.shape.CopyFrom(part)
        old.dynamic_slice_sizes[:] = old.shape.dimensions
        old.ClearField("backend_config")  # where in memory XLA:GPU found the slices before
        body.instructions.extend(made)
        _drop_unread(body)
        put_in_post_order(body)
        self._at |= {k.name: k for k in body.instructions}

    def _as_moved(
        self, body: _Computation, old: _Instruction, taken: Taken, kind: int
    ) -> list[_Instruction]:
        """The instructions, in order, that make the slice as it was of a slice of the source.

        Args:
          kind: element type of that, where it is yet to be converted.
        """
        last = make_bitcast(body, self._names.new(f"{old.name}.as_moved"), old.shape)
        last.shape.element_type = kind
        if not taken.extents:
            return [last]
        extents = [taken.extents[k] for k in taken.dimensions]
        flat = _row_major(last.shape, taken.extents)
        first = make_bitcast(body, self._names.new(f"{old.name}.as_it_lies"), flat)
        turned = _Instruction(
            name=self._names.new(f"{old.name}.turned"),
            opcode="transpose",
            dimensions=taken.dimensions,
            id=first.id + 1,
            operand_ids=[first.id],
        )
        turned.shape.CopyFrom(_row_major(last.shape, extents))
        last.id = first.id + 2
        last.operand_ids.append(turned.id)
        return [first, turned, last]

    def _converted(
        self, i: _Instruction, old: _Instruction, kinds: Sequence[int]
    ) -> list[_Instruction]:
        """The instructions, in order, that convert a result to what another instruction had.

        Args:
          i: the instruction. old: the other one. kinds: element types, the last one that of `old`.
        """
        made: list[_Instruction] = []
        for kind in kinds:
            one = _Instruction(
                name=self._names.new(f"{old.name}.converted"),
                opcode="convert",
                id=i.id + 1,
                operand_ids=[i.id],
            )
            one.shape.CopyFrom(old.shape)
            one.shape.element_type = kind
            made.append(one)
            i = one
        return made

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

    def _run_at_once(self, start: Instruction) -> None:
        """Makes a plain fusion of one that runs asynchronously, where its result is waited for."""
        begun, (done,) = self._at[start.name], start.users
        assert start.called[0].root is not None
        fusion, ended = _Instruction(), self._at[done.name]
        fusion.CopyFrom(self._at[start.called[0].root.name])
        fusion.id, fusion.name = ended.id, self._names.new(fusion.name)
        fusion.operand_ids[:] = begun.operand_ids
        before = dict.fromkeys((*ended.control_predecessor_ids, *begun.control_predecessor_ids))
        fusion.control_predecessor_ids[:] = [k for k in before if k != begun.id]
        ended.CopyFrom(fusion)
        computation = self._computations[start.computation.id]
        for i in computation.instructions:
            if begun.id in i.control_predecessor_ids:
                others = [k for k in i.control_predecessor_ids if k != begun.id]
                kept = dict.fromkeys((*others, *begun.control_predecessor_ids))
                i.control_predecessor_ids[:] = list(kept)
        self._gone.add(begun.id)
        self._touched[computation.id] = computation

    def finish(self) -> None:
        """Takes what nothing reads now out of the schedule."""
        for start in self._starts.values():
            self._run_at_once(start)
        for computation in self._touched.values():
            lost = {i.id & _LOCAL for i in computation.instructions if i.id in self._gone}
            kept = [i for i in computation.instructions if i.id not in self._gone]
            listed = _Computation(instructions=kept)
            del computation.instructions[:]
            computation.instructions.extend(listed.instructions)
            put_in_post_order(computation)
            ids = self._proto.schedule.sequences[computation.id].instruction_ids
            ids[:] = [k for k in ids if k & _LOCAL not in lost]
        if self._starts:
            list_computations(self._proto, ())


def _row_major(like: _Shape, extents: Sequence[int]) -> _Shape:
    """A shape of the element type of another one, its first dimension the outermost in memory."""
    shape = _Shape(element_type=like.element_type, dimensions=extents)
    shape.layout.minor_to_major[:] = range(len(extents) - 1, -1, -1)
    return shape


def _next_id(body: _Computation) -> int:
    return max(i.id for i in body.instructions) + 1


def _drop_unread(body: _Computation) -> None:
    """Removes instructions that nothing reads, but for parameters, until all that is left is
    read.
    """
    while True:
        read = {k for i in body.instructions for k in i.operand_ids} | {body.root_id}
        kept = [i for i in body.instructions if i.opcode == "parameter" or i.id in read]
        if len(kept) == len(body.instructions):
            return
        listed = _Computation(instructions=kept)
        del body.instructions[:]
        body.instructions.extend(listed.instructions)
