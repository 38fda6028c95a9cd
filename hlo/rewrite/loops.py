"""Removes scan residuals from a pair of loops; the slices that were read are computed again.

A scan residual is an element of a loop's state of which each iteration writes one slice; a later
loop reads the slices. Without it both states are an element shorter. The backward loop's body gets
copies of the forward loop's instructions that give a slice, or a slice of another scan residual.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import instruction
from hlo.module import HloError
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.checkpoints import RerunEdit
from hlo.rewrite.loop_edit import LoopEdit, OperandReplacement, ValueRef
from hlo.rewrite.loop_module import LoopModule
from hlo.rewrite.loop_states import States
from hlo.rewrite.loop_values import Maker
from hlo.rewrite.slots import casts_of, shorten_reads
from hlo.rewrite.trim import trim_branches


def change_loops(proto: xla_pb2.HloModuleProto, edits: Sequence[LoopEdit]) -> None:
    """Changes pairs of loops, to remove scan residuals: arrays that one loop writes slice by slice
    for a later one, which computes the slices again or reads other arrays. Adds copies of what
    would be overwritten too early then. Raises HloError if a name is unknown or taken, or the loops
    are not as the edit has them.

    Args:
      proto: a scheduled module, changed in place. edits: made one after the other.
    """
    if not edits:
        return
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    for edit in edits:
        _change(proto, edit)
    keep_apart(before, proto, edits[0].target)
    module = MutableModule(proto)
    for computation in proto.computations:
        if computation.id in proto.schedule.sequences:
            module.body(computation.id).reorder()
    module.finish()


def _change(proto: xla_pb2.HloModuleProto, edit: LoopEdit) -> None:
    """Makes one LoopEdit in a module, in place; `change_loops` adds the copies it needs."""
    module = LoopModule(proto, edit)
    states = States(module)
    writer, reader = module.writer, module.reader
    if reader.parent is not module.parent:
        raise HloError(f"{edit.writer} and {edit.reader} are in different computations")
    module.thread = module.backward.computation.execution_thread
    for new in edit.added:
        states.grow(reader, states.added(new))
    maker = Maker(module)
    readers = Readers(module, maker)
    rerun = None
    if edit.checkpoints is not None:
        rerun = RerunEdit(module, edit.checkpoints, states.checkpoints(edit.checkpoints))
        maker.know(rerun.begin())
    for made in edit.made:
        maker.make(made)
    for taken in edit.taken:
        readers.take(taken)
    if rerun is not None:
        rerun.end(maker.value)
    states.shrink(reader, [r for _, r in edit.dropped])
    states.forget(writer, [w for w, _ in edit.dropped])
    trims = module.platform.trims_results
    for made in edit.made:
        for body, name in ((module.backward, made.name), (module.forward, made.original)):
            if name in body and body.named(name).opcode == "conditional":
                trim_branches(module, body, body.named(name), whole=trims)
    if trims:  # it would do so itself, after it was planned
        module.trim()
    module.write()


_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


class Readers:
    """Makes instructions of the backward loop read recomputed values instead of scan residuals.

    Fusions keep their form: a dynamic-slice of a scan residual, an array with a slice for each
    iteration, becomes one of an array with few slices, to which XLA clamps its index.
    """

    def __init__(self, module: LoopModule, maker: Maker) -> None:
        self._module = module
        self._body = module.backward
        self._maker = maker
        self._stacks: dict[tuple[int, int, int, bytes], _Instruction] = {}

    def take(self, taken: OperandReplacement) -> None:
        """Replaces an operand of a reader, or the reader itself, as `taken` describes.
        Raises HloError if the reader of a new operand is no fusion.
        """
        reader = self._body.named(taken.reader)
        if taken.replaced:
            result = reader
            if reader.opcode == "async-start":
                result = self._body.readers(reader)[0]
            value = self._maker.value(taken.given)
            self._body.replace(result, self._body.cast(value, result.shape))
            self._body.sweep([result])
            return
        if reader.opcode != "fusion":
            raise HloError(f"{reader.name} cannot read anything but the scan residual")
        body = self._module.called(reader)
        parameter = body.parameter(taken.operand)
        given, axis = taken.given, taken.axis
        if given.whole and not given.made:
            other = self._body.element(given.element)
            self._retype(body, parameter, other.shape)
        elif axis < 0:
            other = self._retype_slice(body, parameter, given)
        else:
            shorten_reads(self._module, body, parameter, axis, taken.slices)
            if given.whole:
                made = self._maker.value(ValueRef(made=given.made, index=given.index))
                other = self._body.cast(made, parameter.shape)
            else:
                other = self._spread(given, parameter.shape, axis)
        old = self._body.operands(reader)[taken.operand]
        reader.operand_ids[taken.operand] = other.id
        body.computation.ClearField("program_shape")
        self._body.sweep([old])

    def _retype_slice(
        self, body: MutableComputation, parameter: _Instruction, given: ValueRef
    ) -> _Instruction:
        """Changes a fusion's parameter from an array to the one slice that is read of it.
        Returns the instruction of the value `given` in the parameter's new shape.
        """
        behind = casts_of(body, parameter)
        slices = [i for i in body.instructions() if i.opcode == "dynamic-slice"]
        part = next(i.shape for i in slices if i.operand_ids[0] in behind)
        parameter.shape.CopyFrom(part)
        for i in body.instructions():
            if i.opcode == "bitcast" and i.id in behind:
                after = [k for k in slices if i.id in k.operand_ids]
                i.shape.CopyFrom(after[0].shape if after else part)
        return self._body.cast(self._maker.value(given), part)

    def _retype(self, body: MutableComputation, parameter: _Instruction, shape: _Shape) -> None:
        """Changes a parameter's shape, and adds a bitcast to the old shape for its readers."""
        if shape == parameter.shape:
            return
        name = self._module.names.new(f"{parameter.name}.as")
        cast = body.add(instruction("bitcast", name, parameter.shape, [parameter]), after=parameter)
        body.replace(parameter, cast, but=cast)
        parameter.shape.CopyFrom(shape)

    def _spread(self, given: ValueRef, shape: _Shape, axis: int) -> _Instruction:
        """Returns an array of `shape` whose slice to read, along `axis`, is `given`; adds it once.
        With a single slice it is that, bitcast.
        """
        if shape.dimensions[axis] == 1:
            return self._body.cast(self._maker.value(given), shape)
        value = self._maker.value(dataclasses.replace(given, copy=0))
        key = value.id, given.copy, axis, shape.SerializeToString(deterministic=True)
        if key not in self._stacks:
            self._stacks[key] = self._maker.in_slots(value, shape, axis)
        return self._stacks[key]
