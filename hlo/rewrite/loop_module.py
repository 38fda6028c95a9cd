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
    """A loop where it stands.

    Attributes:
      parent: the computation. i: what gives the loop's result there: the while, or the call of
        `called`, which only runs it. loop: the while.
    """

    parent: MutableComputation
    i: _Instruction
    loop: _Instruction
    called: MutableComputation | None = None

    def start(self) -> _Instruction:
        """The tuple that its state begins as."""
        (start,) = self.parent.operands(self.i)
        return start

    def whole(self) -> list[_Instruction]:
        """What has all of its state outside the body and the condition, its start excepted."""
        if self.called is None:
            return [self.loop]
        self.called.computation.ClearField("program_shape")
        return [self.i, self.called.parameter(), self.loop]


class LoopModule:
    """A module while loops of it are changed.

    Attributes:
      computations: by id, as the module was. names: those that it has.
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
        """A while, by name, where other loops stand beside it; HloError if there is none."""
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
        """A computation with a schedule, open to changes."""
        if computation.id not in self._bodies:
            self._bodies[computation.id] = MutableComputation(self._proto, computation, self.names)
        return self._bodies[computation.id]

    def new_computation(self, name: str) -> _Computation:
        """A new fused computation."""
        made = _Computation(
            name=self.names.new(name),
            id=next(self._ids),
            is_fusion_computation=True,
            execution_thread=self.thread,
        )
        self._fused.append(made)
        return made

    def exchanges(self, source: MutableComputation, body: MutableComputation) -> Exchanges:
        """What copies collectives of one body into another."""
        return Exchanges(
            self._proto, source, body, self.computations, self.new_computation, self.names
        )

    def fused_body(self, name: str) -> FusedBody:
        """A new fused computation, for the fusion of this name."""
        return FusedBody(self.new_computation(f"{name}.computation"), self.names)

    def unwritten(
        self, body: MutableComputation, name: str, shape: _Shape, target: str
    ) -> _Instruction:
        """An array that is written before it is read; zeros where the target must initialise it.

        Args:
          body: where it stands. name: for it. shape: its own. target: such as "cpu".
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
        """What an instruction gives, or an element of it, which may be one of a tuple inside it."""
        for k in index:
            whole = body.add(tuple_element(whole, k, self.names))
        return whole

    def trim(self) -> None:
        """Drops outputs of new fusions that nothing reads."""
        computations = self.computations | {c.id: c for c in self._fused}
        for changed in self._bodies.values():
            changed.trim_new(computations)

    def finish(self) -> None:
        """Puts what is new in its place in each computation, and lists new ones."""
        for changed in self._bodies.values():
            changed.place_new()
            changed.finish()
        list_computations(self._proto, self._fused)
