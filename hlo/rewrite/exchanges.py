"""Collectives that run once more in another computation, each on a channel of its own.

XLA's rematerialization does so too (`HloRematerialization`, `hlo_query::NextChannelId`). An
asynchronous one stays a pair of a start and its done, and the start wraps a computation of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from hlo import xla_pb2
from hlo.exchange import REPEATABLE
from hlo.module import HloError
from hlo.rewrite.bodies import MutableComputation, Names

_LOCAL = (1 << 32) - 1

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto


class Exchanges:
    """Copies collectives from one computation into another, each with a new channel id.

    Args:
      proto: the module. source: where the collectives are. body: where the copies are added.
      computations: of the module, by id. new: makes a computation of this name in it.
      names: of the module.
    """

    def __init__(
        self,
        proto: xla_pb2.HloModuleProto,
        source: MutableComputation,
        body: MutableComputation,
        computations: Mapping[int, _Computation],
        new: Callable[[str], _Computation],
        names: Names,
    ) -> None:
        self._proto = proto
        self._source = source
        self._body = body
        self._computations = computations
        self._new = new
        self._names = names
        used = (i.channel_id for c in proto.computations for i in c.instructions)
        self._channels = itertools.count(max(used, default=0) + 1)

    def is_one(self, i: _Instruction) -> bool:
        """Whether an instruction is a collective that can be repeated, or its async-start."""
        if i.opcode == "async-start":
            wrapper = self._computations[i.called_computation_ids[0]]
            return any(k.opcode in REPEATABLE for k in wrapper.instructions)
        return i.opcode in REPEATABLE

    def again(
        self, name: str, original: _Instruction, operands: Sequence[_Instruction]
    ) -> _Instruction:
        """Adds a copy of a collective, and of its async-done if it is asynchronous.

        Args:
          name: of the instruction that gives the result. original: the collective or async-start.
          operands: of the copy.

        Returns:
          The added instruction that gives the result: the collective, or the async-done.

        Raises:
          HloError: the async-start has no async-done, or several.
        """
        copy = self._copied(original, name)
        copy.operand_ids[:] = [o.id for o in operands]
        if original.opcode != "async-start":
            self._renumber(copy)
            return self._body.add(copy)
        dones = [i for i in self._source.readers(original.id) if i.opcode == "async-done"]
        if len(dones) != 1:
            raise HloError(f"{original.name} has {len(dones)} async-done, not one; plan it again")
        copy.name = self._names.new(f"{name}.start")
        copy.called_computation_ids[:] = [self._wrapper(original.called_computation_ids[0]).id]
        self._body.add(copy)
        done = self._copied(dones[0], name)
        done.operand_ids[:] = [copy.id]
        return self._body.add(done)

    @staticmethod
    def _copied(i: _Instruction, name: str) -> _Instruction:
        copy = _Instruction()
        copy.CopyFrom(i)
        copy.name = name
        del copy.control_predecessor_ids[:]
        return copy

    def _renumber(self, i: _Instruction) -> None:
        """Gives a copy another channel; without one it goes by its groups alone."""
        if i.channel_id:
            i.channel_id = next(self._channels)

    def _wrapper(self, number: int) -> _Computation:
        """A copy of a start's computation, scheduled like it."""
        wrapper = self._computations[number]
        copy = self._new(wrapper.name)
        copy.is_fusion_computation = False
        copy.execution_thread = wrapper.execution_thread
        renamed = {i.id: copy.id << 32 | (i.id & _LOCAL) for i in wrapper.instructions}
        for i in wrapper.instructions:
            made = copy.instructions.add()
            made.CopyFrom(self._copied(i, self._names.new(i.name)))
            made.id = renamed[i.id]
            made.operand_ids[:] = [renamed[k] for k in i.operand_ids]
            self._renumber(made)
        copy.root_id = renamed[wrapper.root_id]
        if number in self._proto.schedule.sequences:
            order = self._proto.schedule.sequences[number].instruction_ids
            scheduled = self._proto.schedule.sequences[copy.id].instruction_ids
            scheduled[:] = [renamed.get(k, k) for k in order]
        return copy
