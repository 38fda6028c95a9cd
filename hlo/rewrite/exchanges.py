"""Collectives that run once more in another computation, each on a channel of its own.

XLA's rematerialization does so too (`HloRematerialization`, `hlo_query::NextChannelId`). An
asynchronous one stays a pair of a start and its done, and the start wraps a computation of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hlo import xla_pb2
from hlo.exchange import REPEATABLE
from hlo.graph import MutableComputation
from hlo.instructions import copied
from hlo.module import HloError
from hlo.rewrite.loop_module import LoopModule

_Instruction = xla_pb2.HloInstructionProto


class Exchanges:
    """Copies collectives of a forward loop into the backward loop, each with a new channel id.

    Args:
      module: that has both.
    """

    def __init__(self, module: LoopModule) -> None:
        self._module = module
        self._body = module.backward
        used = (i.channel_id for c in module.proto.computations for i in c.instructions)
        self._channels = itertools.count(max(used, default=0) + 1)

    def is_one(self, i: _Instruction) -> bool:
        """Whether an instruction is a collective (or its async-start) that may run once more."""
        if i.opcode == "async-start":
            return any(k.opcode in REPEATABLE for k in self._module.called(i).instructions())
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
        copy = copied(original, name, operands)
        if original.opcode != "async-start":
            self._renumber(copy)
            return self._body.add(copy)
        dones = [i for i in self._module.forward.readers(original) if i.opcode == "async-done"]
        if len(dones) != 1:
            raise HloError(f"{original.name} has {len(dones)} async-done, not one; plan it again")
        copy.name = self._module.names.new(f"{name}.start")
        copy.called_computation_ids[:] = [self._wrapper(original).computation.id]
        self._body.add(copy)
        return self._body.add(copied(dones[0], name, [copy]))

    def _renumber(self, i: _Instruction) -> None:
        """Gives a copy another channel; without one it goes by its groups alone."""
        if i.channel_id:
            i.channel_id = next(self._channels)

    def _wrapper(self, start: _Instruction) -> MutableComputation:
        """A copy of a start's computation, scheduled like it."""
        wrapper = self._module.called(start)
        copy = self._module.new_fused(wrapper.computation.name)
        copy.computation.is_fusion_computation = False
        copy.computation.execution_thread = wrapper.computation.execution_thread
        copy.copy_from(wrapper, self._module.names.new)
        for i in copy.instructions():
            del i.control_predecessor_ids[:]
            self._renumber(i)
        return copy
