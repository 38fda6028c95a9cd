"""A module while loops of it are changed: where they stand, their bodies, new computations."""

from __future__ import annotations

import dataclasses
import itertools

from hlo import xla_pb2
from hlo.backend import platform
from hlo.module import HloError
from hlo.rewrite.bodies import MutableComputation, Names, list_computations, tuple_element
from hlo.rewrite.exchanges import Exchanges
from hlo.rewrite.fused_body import FusedBody
from hlo.shapes import ShapeIndex

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


@dataclasses.dataclass(frozen=True)
class LoopSite:
    """A while loop that is being edited, with the computation that uses its result.

    Attributes:
      parent: the computation that uses the loop's result. i: the instruction there that gives it:
        the while, or a call of `called`, which only runs it. loop: the while.
    """

    parent: MutableComputation
    i: _Instruction
    loop: _Instruction
    called: MutableComputation | None = None

    def start(self) -> _Instruction:
        """The tuple of the state's initial values."""
        (start,) = self.parent.operands(self.i)
        return start

    def whole(self) -> list[_Instruction]:
        """The instructions outside body and condition shaped like the state, except `start`."""
        if self.called is None:
            return [self.loop]
        self.called.computation.ClearField("program_shape")
        return [self.i, self.called.parameter(), self.loop]


class LoopModule:
    """A module whose while loops are being edited; `finish` completes it.

    Attributes:
      computations: by id, as the module was. names: those in use.
      thread: the execution thread of new computations.
    """

    def __init__(self, proto: xla_pb2.HloModuleProto) -> None:
        self._proto = proto
        self.computations = {c.id: c for c in proto.computations}
        self._homes = {i.name: c for c in proto.computations for i in c.instructions}
        self.names = Names(proto)
        self._ids = itertools.count(max(self.computations) + 1)
        self._fused: list[_Computation] = []
        self._bodies: dict[int, MutableComputation] = {}
        self.thread = ""

    def site(self, name: str) -> LoopSite:
        """The while loop of this name. Raises HloError if there is none, or nothing calls it."""
        home = self.body(self._home(name))
        loop = home.named(name)
        (start,) = home.operands(loop)
        if start.opcode != "parameter":
            return LoopSite(home, loop, loop)
        called = home.computation.id
        for computation in self._proto.computations:
            for i in computation.instructions:
                if i.opcode == "call" and called in i.called_computation_ids:
                    parent = self.body(computation)
                    return LoopSite(parent, parent.named(i.name), loop, home)
        raise HloError(f"nothing calls {home.computation.name}")

    def _home(self, name: str) -> _Computation:
        if name not in self._homes:
            raise HloError(f"the module has no {name}; plan it again")
        return self._homes[name]

    def body(self, computation: _Computation) -> MutableComputation:
        """The editor of a scheduled computation: always the same one."""
        if computation.id not in self._bodies:
            self._bodies[computation.id] = MutableComputation(self._proto, computation, self.names)
        return self._bodies[computation.id]

    def new_computation(self, name: str) -> _Computation:
        """Makes an empty fused computation with a new id, and this name if it is free."""
        made = _Computation(
            name=self.names.new(name),
            id=next(self._ids),
            is_fusion_computation=True,
            execution_thread=self.thread,
        )
        self._fused.append(made)
        return made

    def exchanges(self, source: MutableComputation, body: MutableComputation) -> Exchanges:
        """An object that copies collectives from `source` into `body`."""
        return Exchanges(
            self._proto, source, body, self.computations, self.new_computation, self.names
        )

    def fused_body(self, name: str) -> FusedBody:
        """A builder of a new fused computation, for a fusion of this name."""
        return FusedBody(self.new_computation(f"{name}.computation"), self.names)

    def unwritten(
        self, body: MutableComputation, name: str, shape: _Shape, target: str
    ) -> _Instruction:
        """Adds an array that is overwritten before it is read: allocated on TPUs, else zeros.

        Args:
          body: where it is added. name: for it. shape: its own. target: such as "cpu".
        """
        if allocating := platform(target).allocating_call:
            made = _Instruction(
                name=self.names.new(name),
                opcode="custom-call",
                custom_call_target=allocating,
                feature_group_count=1,
                batch_group_count=1,
                precision_config=xla_pb2.PrecisionConfig(),
            )
            made.shape.CopyFrom(shape)
            return body.add(made)
        zeros = self.fused_body(name)
        return body.add(
            zeros.fusion(self.names.new(name), zeros.zeros(shape), "kLoop", _Instruction())
        )

    def leaf(
        self, body: MutableComputation, whole: _Instruction, index: ShapeIndex
    ) -> _Instruction:
        """The leaf of a result at a shape index, by get-tuple-elements that are added to `body`."""
        for k in index:
            whole = body.add(tuple_element(whole, k, self.names))
        return whole

    def trim(self) -> None:
        """Drops outputs of new fusions that nothing reads."""
        computations = self.computations | {c.id: c for c in self._fused}
        for changed in self._bodies.values():
            changed.trim_new(computations)

    def finish(self) -> None:
        """Schedules what is new, and writes all edited and new computations into the module."""
        for changed in self._bodies.values():
            changed.place_new()
            changed.finish()
        list_computations(self._proto, self._fused)
