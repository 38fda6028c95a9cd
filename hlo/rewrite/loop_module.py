"""A module in which a pair of loops is changed: the loops, their bodies and new computations."""

import dataclasses
import functools

from hlo import xla_pb2
from hlo.backend import platform
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import scalar_constant
from hlo.module import HloError
from hlo.rewrite.fused_body import FusedBody
from hlo.rewrite.loop_edit import LoopEdit
from hlo.rewrite.placing import place_new
from hlo.rewrite.trim import drop_unread
from hlo.shapes import ShapeIndex

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


@dataclasses.dataclass(frozen=True)
class LoopSite:
    """A while loop that is being edited, and the instruction and computation that use its result.

    Attributes:
      parent: the computation that uses the loop's result. i: the instruction there that gives it:
        the while, or a call of `called`, which only runs it. loop: the while.
    """

    parent: MutableComputation
    i: _Instruction
    loop: _Instruction
    called: MutableComputation | None = None

    def start(self) -> _Instruction:
        """Returns the tuple with the initial values of the loop's state, in `parent`."""
        (start,) = self.parent.operands(self.i)
        return start

    def whole(self) -> list[_Instruction]:
        """Lists the instructions of the state's shape that give or hand on the loop's whole state.
        That is the while, or the call, its computation's parameter and the while. Also drops the
        `program_shape` of `called`, as that is to change.
        """
        if self.called is None:
            return [self.loop]
        self.called.computation.ClearField("program_shape")
        return [self.i, self.called.parameter(), self.loop]


class LoopModule(MutableModule):
    """A module in which a forward and a backward while loop are edited together.

    Attributes:
      edit: what is changed. platform: that it is for. thread: execution thread of new computations.
    """

    def __init__(self, proto: xla_pb2.HloModuleProto, edit: LoopEdit) -> None:
        super().__init__(proto)
        self.edit = edit
        self.platform = platform(edit.target)
        self.thread = ""
        self._turned: dict[tuple[int, int, int], _Instruction] = {}

    @functools.cached_property
    def writer(self) -> LoopSite:
        """The forward while loop, which writes scan residuals, and where it is used."""
        return self.site(self.edit.writer)

    @functools.cached_property
    def reader(self) -> LoopSite:
        """The backward while loop, which reads scan residuals, and where it is used."""
        return self.site(self.edit.reader)

    @property
    def parent(self) -> MutableComputation:
        """The computation that uses the results of both loops."""
        return self.writer.parent

    @property
    def forward(self) -> MutableComputation:
        """The body computation of the forward loop."""
        return self.called(self.writer.loop)

    @property
    def backward(self) -> MutableComputation:
        """The body computation of the backward loop."""
        return self.called(self.reader.loop)

    def site(self, name: str) -> LoopSite:
        """Finds the while of this name, and where it is used. HloError if there is none, or if its
        computation only runs it and nothing calls that.
        """
        ((home, loop),) = self.find([name])
        (start,) = home.operands(loop)
        if start.opcode != "parameter":
            return LoopSite(home, loop, loop)
        called = home.computation.id
        for computation in self.proto.computations:
            for i in computation.instructions:
                if i.opcode == "call" and called in i.called_computation_ids:
                    parent = self.body(computation.id)
                    return LoopSite(parent, parent.named(i.name), loop, home)
        raise HloError(f"nothing calls {home.computation.name}")

    def loop_bodies(self, site: LoopSite) -> list[MutableComputation]:
        """Returns the computations that a while loop calls: its body, then its condition."""
        return [self.body(k) for k in site.loop.called_computation_ids]

    def new_fused(self, name: str) -> MutableComputation:
        """Adds an empty fused computation, with a number after this name if that is in use."""
        return self.new_computation(
            xla_pb2.HloComputationProto(
                name=self.names.new(name),
                is_fusion_computation=True,
                execution_thread=self.thread,
            )
        )

    def fused_body(self, name: str) -> FusedBody:
        """Makes a FusedBody for a new, empty fused computation of a fusion of this name."""
        return FusedBody(self.new_fused(f"{name}.computation"))

    def turned(
        self, body: MutableComputation, counter: _Instruction, form: tuple[int, int]
    ) -> _Instruction:
        """Returns factor * counter + offset in a loop's body, added once for each counter and form.
        `form` is (factor, offset), with a factor of 1 or -1; (1, 0) gives the counter.
        """
        if form == (1, 0):
            return counter
        factor, offset = form
        if (key := (counter.id, factor, offset)) not in self._turned:
            name = self.names.new("loop_turn_constant")
            constant = body.add(scalar_constant(name, offset, counter.shape))
            opcode = "add" if factor == 1 else "subtract"
            self._turned[key] = body.make(opcode, "loop_turn", counter.shape, constant, counter)
        return self._turned[key]

    def index(
        self,
        inner: FusedBody,
        body: MutableComputation,
        counter: _Instruction,
        form: tuple[int, int],
    ) -> _Instruction:
        """Adds factor * counter + offset for a fusion, inside of it or on a TPU outside.

        Args:
          inner: the fusion's computation. body: the loop's, in which it is computed on a TPU; the
            fusion has it as an operand then. form: (factor, offset), with a factor of 1 or -1.
        """
        if self.platform.emits_any_fusion:
            return inner.index(counter, form)
        return inner.parameter(self.turned(body, counter, form))

    def unwritten(self, body: MutableComputation, name: str, shape: _Shape) -> _Instruction:
        """Adds an array whose content nothing reads: uninitialised memory, or on a CPU zeros."""
        if allocating := self.platform.allocating_call:
            return body.make(
                "custom-call",
                name,
                shape,
                custom_call_target=allocating,
                feature_group_count=1,
                batch_group_count=1,
                precision_config=xla_pb2.PrecisionConfig(),
            )
        zeros = self.fused_body(name)
        return body.add(
            zeros.fusion(self.names.new(name), zeros.zeros(shape), "kLoop", _Instruction())
        )

    def unwrapped(self, start: _Instruction) -> tuple[_Instruction, list[int]]:
        """Returns the fusion that an async-start runs, and its operands as numbers of the start's.
        Raises HloError if it runs more than one fusion.
        """
        wrapper = self.called(start)
        operands = wrapper.operands(wrapper.root)
        if any(o.opcode != "parameter" for o in operands):
            raise HloError(f"{start.name} runs more than one fusion")
        return wrapper.root, [o.parameter_number for o in operands]

    @staticmethod
    def leaf(body: MutableComputation, whole: _Instruction, index: ShapeIndex) -> _Instruction:
        """Returns the part of `whole` at a shape index, by get-tuple-elements that it adds."""
        for k in index:
            whole = body.tuple_element(whole, k)
        return whole

    def trim(self) -> None:
        """Removes added fusions and custom calls, and their results, that nothing reads."""
        for changed in self.bodies():
            if changed.is_scheduled:
                made = [i for i in changed.added() if i.opcode in ("fusion", "custom-call")]
                drop_unread(self, changed, made)

    def write(self) -> None:
        """Schedules what was added (`place_new`), and writes all changes into the proto."""
        for changed in self.bodies():
            if changed.is_scheduled:
                place_new(changed)
                changed.reorder()
        self.finish(prune=True)
