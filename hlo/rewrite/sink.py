"""Lets loops slice an original array instead of one transposed or converted from it before.

An array that is transposed or converted before a loop, so that each iteration finds its slice as it
needs it, is in memory twice while the loop runs. The slice can be made from one of the original;
about as many bytes are moved.
"""

from collections.abc import Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import scalar_constant
from hlo.module import Computation, HloError, Instruction, module_from_proto
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.sinkable import Sink, Taken, parts, sinks

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


def sink_moves(proto: xla_pb2.HloModuleProto, names: Sequence[str], target: str) -> None:
    """Removes transposes and converts before loops; the loops slice the original array instead.
    Raises HloError if `sinks` does not find a name, or others call the computation that slices.

    Args:
      proto: a scheduled module, changed in place. names: of instructions that `sinks` finds.
      target: "cpu" or "cuda", whose in-place rules say what must be copied all the same.
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
    sinker = _Sinker(proto)
    for sink in chosen:
        if any(calls.count(t.slice.computation.id) != 1 for t in sink.slices):
            raise HloError(f"other instructions call the computation that slices {sink.move.name}")
        sinker.write(sink)
    sinker.finish()
    keep_apart(before, proto, target)


class _Sinker:
    """Removes transposes and converts before loops: `write` for each Sink, then `finish`."""

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self._module = MutableModule(proto)
        self._gone: dict[int, set[int]] = {}
        """By computation, the ids of what nothing reads any more."""
        self._starts: dict[str, Instruction] = {}

    def _body(self, computation: Computation) -> MutableComputation:
        return self._module.body(computation.id)

    def _at(self, i: Instruction) -> _Instruction:
        return self._body(i.computation).named(i.name)

    def write(self, sink: Sink) -> None:
        """Makes loops slice the original of a transposed or converted array, as `sink` tells."""
        shape = self._at(sink.source).shape
        for loop, k in sink.loops:
            start = self._at(loop.operands[0])
            if loop.operands[0].operands[k] is sink.move:
                start.operand_ids[k] = self._at(sink.source).id
            body, condition = loop.called
            changed = [start, self._at(loop)]
            for computation in (body, condition):
                (state,) = computation.parameters
                changed.append(self._at(state))
                self._body(computation).computation.ClearField("program_shape")
                for part in parts(computation, k):
                    self._at(part).shape.CopyFrom(shape)
                    self._widen(part, shape)
                    self._starts |= {u.name: u for u in part.users if u.opcode == "async-start"}
            assert body.root is not None
            changed.append(self._at(body.root))
            for i in changed:
                i.shape.tuple_shapes[k].CopyFrom(shape)
        for taken in sink.slices:
            self._take(sink, taken)
            if sink.code:
                self._at(taken.fusion).fusion_kind = sink.code
        gone = self._gone.setdefault(sink.move.computation.id, set())
        gone |= {i.id for i in sink.gone}

    def _widen(self, part: Instruction, shape: _Shape) -> None:
        """Gives `shape` to the parameters for `part` in fusions and async-starts that read it."""
        for reader in part.users:
            for number, operand in enumerate(reader.operands if reader.called else ()):
                if operand is not part:
                    continue
                body = reader.called[0]
                inner = body.parameters[number]
                self._at(inner).shape.CopyFrom(shape)
                self._body(body).computation.ClearField("program_shape")
                if reader.opcode == "async-start":
                    self._widen(inner, shape)

    def _take(self, sink: Sink, taken: Taken) -> None:
        """Makes a dynamic-slice read the array as it is before the transpose or convert of a Sink.
        Adds what transposes and converts that slice as the whole array was, for its readers.
        """
        i = taken.slice
        body, old = self._body(i.computation), self._at(i)
        given = i.operands[0].behind("bitcast")
        source = self._at(sink.source).shape
        at = body.operands(old)[1 + taken.cut]
        others = [self._at(o) for o in i.operands[1:] if o.integer == 0]
        zero = others[0] if others else self._zero(body, at)
        kind = source.element_type if sink.kinds else old.shape.element_type
        first, made = self._as_moved(body, old, taken, kind)
        for kind in sink.kinds:
            made = body.make("convert", f"{old.name}.converted", old.shape, made)
            made.shape.element_type = kind
        body.replace(old, made, but=first)
        rank = range(len(source.dimensions))
        indices = [at if k == taken.axis else zero for k in rank]
        old.operand_ids[:] = [o.id for o in (self._at(given), *indices)]
        old.shape.CopyFrom(source)
        old.shape.dimensions[taken.axis] = 1
        old.dynamic_slice_sizes[:] = old.shape.dimensions
        old.ClearField("backend_config")  # where in memory XLA:GPU found the slices before
        body.sweep(body.instructions())
        body.reorder()

    def _as_moved(
        self, body: MutableComputation, old: _Instruction, taken: Taken, kind: int
    ) -> tuple[_Instruction, _Instruction]:
        """Adds what makes the moved array's slice out of `old`, a slice of the original: a bitcast,
        or a transpose between two. Returns its first and last instruction, of element type `kind`.
        """
        shape, dimensions = _Shape(), taken.dimensions
        shape.CopyFrom(old.shape)
        shape.element_type = kind
        moved = f"{old.name}.as_moved"
        if not taken.extents:
            made = body.make("bitcast", moved, shape, old)
            return made, made
        flat = _row_major(shape, taken.extents)
        turned = _row_major(shape, [taken.extents[k] for k in dimensions])
        first = body.make("bitcast", f"{old.name}.as_it_lies", flat, old)
        made = body.make("transpose", f"{old.name}.turned", turned, first, dimensions=dimensions)
        return first, body.make("bitcast", moved, shape, made)

    def _zero(self, body: MutableComputation, like: _Instruction) -> _Instruction:
        """Adds a constant 0 of the integer type of the index `like`."""
        return body.add(scalar_constant(self._module.names.new("zero.moved"), 0, like.shape))

    def _run_at_once(self, start: Instruction) -> None:
        """Replaces a fusion's async-start and -done by the fusion, where the -done was."""
        begun, (done,) = self._at(start), start.users
        assert start.called[0].root is not None
        fusion, ended = _Instruction(), self._at(done)
        fusion.CopyFrom(self._at(start.called[0].root))
        fusion.id, fusion.name = ended.id, self._module.names.new(fusion.name)
        fusion.operand_ids[:] = begun.operand_ids
        before = dict.fromkeys((*ended.control_predecessor_ids, *begun.control_predecessor_ids))
        fusion.control_predecessor_ids[:] = [k for k in before if k != begun.id]
        ended.CopyFrom(fusion)
        for i in self._body(start.computation).instructions():
            if begun.id in i.control_predecessor_ids:
                others = [k for k in i.control_predecessor_ids if k != begun.id]
                kept = dict.fromkeys((*others, *begun.control_predecessor_ids))
                i.control_predecessor_ids[:] = list(kept)
        self._gone.setdefault(start.computation.id, set()).add(begun.id)

    def finish(self) -> None:
        """Makes async fusions synchronous, removes transposes and converts, writes the proto."""
        for start in self._starts.values():
            self._run_at_once(start)
        for number, gone in self._gone.items():
            self._module.body(number).remove(gone)
            self._module.body(number).reorder()
        self._module.finish(prune=bool(self._starts))


def _row_major(like: _Shape, extents: Sequence[int]) -> _Shape:
    """Makes a row-major shape with these extents and the element type of `like`."""
    shape = _Shape(element_type=like.element_type, dimensions=extents)
    shape.layout.minor_to_major[:] = range(len(extents) - 1, -1, -1)
    return shape
