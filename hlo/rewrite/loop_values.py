"""Adds instructions to the body of a backward loop: copies of the forward loop's, and slices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.exchange import REPEATABLE
from hlo.graph import MutableComputation
from hlo.instructions import copied, instruction
from hlo.module import HloError
from hlo.rewrite.fused_body import FusedBody, slice_shape
from hlo.rewrite.loop_edit import NewInstruction, ValueRef
from hlo.rewrite.loop_module import LoopModule
from hlo.rewrite.slots import put_into_slots
from hlo.rewrite.trim import without_transfer
from hlo.shapes import TUPLE, ShapeIndex, cut_dimensions

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


class Maker:
    """Adds instructions, each described by a NewInstruction, to the backward loop's body."""

    def __init__(self, module: LoopModule) -> None:
        self._module = module
        self._edit = module.edit
        self._body, self._source = module.backward, module.forward
        self._parent = module.parent
        self._made: dict[str, _Instruction] = {}
        self._leaves: dict[tuple[str, ShapeIndex], _Instruction] = {}
        self._copies: dict[tuple[int, int], _Instruction] = {}
        self._exchanges = Exchanges(module)

    def know(self, made: Mapping[str, _Instruction]) -> None:
        """Registers instructions that other code added, so that `value` finds them by name."""
        self._made.update(made)

    def made(self, name: str) -> _Instruction:
        """Returns the instruction that was added, or registered with `know`, under this name."""
        return self._made[name]

    def value(self, given: ValueRef) -> _Instruction:
        """Returns the instruction that `given` describes; adds one that is missing, such as a copy.
        HloError if `given` is a slice or a part.
        """
        if given.copy:
            return self._copy(self.value(dataclasses.replace(given, copy=0)), given.copy)
        if given.iteration:
            return self._iteration()
        if given.whole or given.part is not None:
            raise HloError("a slice is read before it is made")
        if given.element >= 0:
            return self._body.element(given.element)
        if given.own:
            return self._body.named(given.own)
        made = self._made[given.made]
        if not given.index:
            return made
        key = given.made, given.index
        if key not in self._leaves:
            self._leaves[key] = self._module.leaf(self._body, made, given.index)
        return self._leaves[key]

    def make(self, made: NewInstruction) -> None:
        """Adds a described instruction to the backward body; `value` finds it by its name.
        HloError if that is in use, or the original cannot be copied.
        """
        self._module.names.claim(made.name)
        if made.restores:
            self._made[made.name] = self._restored(made)
            return
        if not made.original:
            self._made[made.name] = self._single(made)
            return
        if made.slice_axes:
            self._made[made.name] = self._slice_moved(made)
            return
        if made.beside:
            self._made[made.name] = self._copied_from_beside(made)
            return
        original = self._source.named(made.original)
        if original.opcode in ("conditional", "while"):
            self._made[made.name] = self._branched(original, made)
            return
        shapes = [i.shape for i in self._source.operands(original)]
        numbers = list(range(len(shapes)))
        if self._exchanges.is_one(original):
            given = dict(made.operands)
            operands = [self._body.cast(self.value(given[k]), shapes[k]) for k in numbers]
            self._made[made.name] = self._exchanges.again(made.name, original, operands)
            return
        if original.opcode == "async-start":
            original, numbers = self._module.unwrapped(original)
        copy = copied(original, made.name)
        del copy.output_operand_aliasing[:]
        if made.root:
            self._rebuild_fusion(copy, made)
        else:
            operands = {
                int(k): self._body.cast(self.value(value), shapes[int(k)]).id
                for k, value in made.operands
            }
            if copy.opcode == "fusion":
                inner = self._own(copy)
                for slot in made.slots:
                    operands[slot[0]] = self._with_slots(copy, slot).id
                if made.results:
                    numbers = without_transfer(copy, inner, made.results)
            copy.operand_ids[:] = [operands[k] for k in numbers]
        self._made[made.name] = self._body.add(copy)

    def _with_slots(self, copy: _Instruction, slot: tuple[int, int, int]) -> _Instruction:
        """Makes a copied fusion write a result into an array of few slices; adds it and returns it.

        Args:
          slot: number of the operand that is now a scan residual (an array with a slice for each
            iteration), its dimension that counts slices, and how many it is to have.
        """
        parameter = put_into_slots(self._module, copy, *slot)
        return self._module.unwritten(self._body, f"{copy.name}.begin", parameter.shape)

    def _branched(self, original: _Instruction, made: NewInstruction) -> _Instruction:
        """Adds a copy of a conditional or while, with its own copies of what it runs."""
        given = (self.value(value) for _, value in sorted(made.operands, key=lambda o: o[0]))

        def packed(shape: _Shape) -> _Instruction:
            if shape.element_type != TUPLE:
                return self._body.cast(next(given), shape)
            elements = [packed(s) for s in shape.tuple_shapes]
            return self._body.make("tuple", f"{made.name}.operand", shape, *elements)

        operands = [packed(o.shape) for o in self._source.operands(original)]
        copy = copied(original, made.name, operands)
        self._own(copy, made)
        return self._body.add(copy)

    def _copied_from_beside(self, made: NewInstruction) -> _Instruction:
        """Copies an instruction outside of the loops into the backward body, with its constants."""
        original = self._parent.named(made.original)
        operands = [
            self._body.add(copied(operand, self._module.names.new(operand.name)))
            for operand in self._parent.operands(original)
        ]
        copy = copied(original, made.name, operands)
        if copy.opcode == "fusion":
            self._own(copy)
        return self._body.add(copy)

    def _slice_moved(self, made: NewInstruction) -> _Instruction:
        """Copies what reorders an array outside the loops; in the body it reorders one slice."""
        original = self._parent.named(made.original)
        ((_, given),) = made.operands
        (operand,) = self._parent.operands(original)
        before, after, *inside = made.slice_axes
        one = self._body.cast(self.value(given), slice_shape(operand.shape, before))
        copy = copied(original, made.name, [one])
        copy.shape.CopyFrom(slice_shape(copy.shape, after))
        if copy.opcode == "fusion":
            for i, axis in zip(self._own(copy).instructions(), inside, strict=True):
                i.shape.CopyFrom(slice_shape(i.shape, axis))
        return self._body.add(copy)

    def _own(self, i: _Instruction, made: NewInstruction | None = None) -> MutableComputation:
        """Gives a fusion, conditional, while or async-start copies of what it runs; returns one.
        XLA lets no two fusions call one computation, and schedules a branch for one caller. The
        first copy is returned. `made` names the copies' instructions; None: any names.
        """
        names = self._module.names

        def rename(name: str) -> str:
            return names.new(f"{name}.loop") if made is None else names.claim(made.inside(name))

        for k, number in enumerate(i.called_computation_ids):
            body = self._module.body(number)
            own = self._module.new_fused(f"{body.computation.name}.loop")
            own.computation.is_fusion_computation = body.computation.is_fusion_computation
            own.computation.execution_thread = body.computation.execution_thread
            own.copy_from(body, rename)
            for inner in own.instructions():
                if inner.opcode in ("fusion", "conditional", "while", "async-start"):
                    self._own(inner, None if inner.opcode == "fusion" else made)
            i.called_computation_ids[k] = own.computation.id
        return self._module.called(i)

    def _copy(self, value: _Instruction, number: int) -> _Instruction:
        """Returns copy `number`, from 1, of a value, an array of its own; adds it at first."""
        key = value.id, number
        if key not in self._copies:
            self._copies[key] = self._body.make("copy", f"{value.name}.copy", value.shape, value)
        return self._copies[key]

    def _given(self, inner: FusedBody, given: ValueRef) -> _Instruction:
        """Makes a described value known inside the fusion `inner`; returns its instruction."""
        if given.part is not None:
            whole = self._given(inner, dataclasses.replace(given, part=None))
            return inner.part(whole, given.part)
        if given.iteration:
            return self._index(inner, self._edit.iteration)
        if not given.whole:
            return inner.parameter(self.value(given))
        if given.made:
            array = self.value(ValueRef(made=given.made, index=given.index))
            whole = array.shape
        else:
            array, whole = self._body.element(given.element), _Shape.FromString(given.whole)
        inner.parameter(array)  # before the index, as XLA:TPU has them
        return inner.sliced(array, whole, self._index(inner, self._edit.place), given.axis)

    def in_slots(self, value: _Instruction, shape: _Shape, axis: int) -> _Instruction:
        """Adds an array of `shape` with few slices along `axis`: all of them are `value`, or, where
        memory can be left uninitialised, the one that is read: at the iteration's index, which XLA
        clamps to the array. Returns the fusion that makes it.
        """
        name = self._module.names.new(f"{value.name}.slots")
        inner = self._module.fused_body(name)
        if self._module.platform.allocating_call:
            slots = self._module.unwritten(self._body, f"{name}.begin", shape)
            inner.parameter(slots)
            # outside of the fusion, in which XLA:TPU has not every bitcast between tiles
            value = self._body.cast(value, slice_shape(shape, axis))
            root = inner.update(slots, value, self._index(inner, self._edit.place), axis)
        else:
            root = inner.spread(inner.parameter(value), shape, axis)
        return self._body.add(inner.fusion(name, root, "kLoop", _Instruction()))

    def _index(self, inner: FusedBody, form: tuple[int, int]) -> _Instruction:
        """Adds factor * iteration + offset for fusion `inner`; `form` is (factor 1 or -1, offset).
        The iteration is that of the backward loop. See `LoopModule.index`.
        """
        counter = self._body.named(self._edit.counter)
        return self._module.index(inner, self._body, counter, form)

    def _iteration(self) -> _Instruction:
        """Returns the number of the forward iteration whose slices the backward body reads; adds it
        at first.
        """
        if not self._module.platform.emits_any_fusion:
            counter = self._body.named(self._edit.counter)
            return self._module.turned(self._body, counter, self._edit.iteration)
        if "turn" not in self._made:
            name = self._module.names.new("loop_turn")
            self._made["turn"] = self._single(
                NewInstruction(name, "", "", ((0, ValueRef(iteration=True)),))
            )
        return self._made["turn"]

    def _single(self, made: NewInstruction) -> _Instruction:
        """Adds a fusion that gives a slice, a part of it or the iteration, maybe converted. Or, if
        `made.layout` is set, a copy in that layout.
        """
        ((_, given),) = made.operands
        if made.layout:
            shape = _Shape.FromString(made.layout)
            return self._body.add(instruction("copy", made.name, shape, [self.value(given)]))
        inner = self._module.fused_body(made.name)
        root = self._given(inner, given)
        if made.element_type:
            root = inner.converted(root, made.element_type)
        return self._body.add(inner.fusion(made.name, root, "kLoop", _Instruction()))

    def _restored(self, made: NewInstruction) -> _Instruction:
        """Adds a fusion that undoes what a forward iteration overwrote in an array of the state.
        Makes the array that results the element's value in the next backward iteration.
        """
        (_, whole), (_, part), *moving = made.operands
        array = self._body.element(whole.element)
        inner = self._module.fused_body(made.name)
        inner.parameter(array)
        given = self._given(inner, part)
        one = slice_shape(array.shape)
        one.dimensions[:] = given.shape.dimensions[1:]
        cut = cut_dimensions(one.dimensions, array.shape.dimensions)
        at = {
            k: inner.scalar(self._given(inner, value))
            for k, (_, value) in zip(cut, moving, strict=True)
        }
        zero = inner.zero(at[cut[0]].shape)
        indices = [at.get(k, zero) for k in range(len(one.dimensions))]
        root = inner.put_at(array, inner.cast(given, one), indices)
        added = self._body.add(inner.fusion(made.name, root, "kLoop", _Instruction()))
        self._body.root.operand_ids[whole.element] = added.id
        return added

    def _rebuild_fusion(self, copy: _Instruction, made: NewInstruction) -> None:
        """Reduces a copied fusion's computation to what its instruction `made.root` needs.
        Instructions in it that are named in `made.operands` become the values described there.
        """
        body = self._module.called(copy)
        by_id = {i.id: i for i in body.instructions()}
        given = {body.named(str(where)).id: value for where, value in made.operands}
        root = body.named(made.root)
        inner = self._module.fused_body(made.name)
        numbers: dict[int, int] = {}
        done: dict[int, _Instruction] = {}
        stack = [root.id]
        while stack:
            k = stack[-1]
            if k in done:
                stack.pop()
                continue
            if k in given:
                here = self._given(inner, given[k])
                done[k] = inner.cast(here, by_id[k].shape)
                source = by_id[k]
                while source.opcode == "bitcast":
                    source = by_id[source.operand_ids[0]]
                if here.opcode == source.opcode == "parameter":
                    numbers.setdefault(inner.value_of(here), source.parameter_number)
                continue
            missing = [o for o in by_id[k].operand_ids if o not in done]
            if missing:
                stack += reversed(missing)
                continue
            done[k] = inner.copied(by_id[k], [done[o] for o in by_id[k].operand_ids])
        end = done[root.id]
        inner.arrange(numbers)  # its kernel is to have the memory of the original's, by number
        made_fusion = inner.fusion(made.name, end, copy.fusion_kind, copy)
        copy.CopyFrom(made_fusion)


class Exchanges:
    """Copies collectives of a module's forward loop into its backward loop, with new channels.

    XLA's rematerialization does so too (`HloRematerialization`, `hlo_query::NextChannelId`).
    """

    def __init__(self, module: LoopModule) -> None:
        self._module = module
        self._body = module.backward
        used = (i.channel_id for c in module.proto.computations for i in c.instructions)
        self._channels = itertools.count(max(used, default=0) + 1)

    def is_one(self, i: _Instruction) -> bool:
        """Whether `i` is a collective that may run again (`REPEATABLE`), or async-starts one."""
        if i.opcode == "async-start":
            return any(k.opcode in REPEATABLE for k in self._module.called(i).instructions())
        return i.opcode in REPEATABLE

    def again(
        self, name: str, original: _Instruction, operands: Sequence[_Instruction]
    ) -> _Instruction:
        """Adds a copy of a forward collective, and of its async-done, to the backward loop's body.
        Raises HloError if the async-start has no async-done, or several.

        Args:
          name: of the result's instruction. original: the collective or async-start.
          operands: of the copy.

        Returns:
          The added instruction that gives the result: the collective, or the async-done.
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
        """Gives a copied collective a channel of its own, if the original has a channel."""
        if i.channel_id:
            i.channel_id = next(self._channels)

    def _wrapper(self, start: _Instruction) -> MutableComputation:
        """Copies the computation that an async-start runs, and its schedule; with new channels and
        names, without control edges.
        """
        wrapper = self._module.called(start)
        copy = self._module.new_fused(wrapper.computation.name)
        copy.computation.is_fusion_computation = False
        copy.computation.execution_thread = wrapper.computation.execution_thread
        copy.copy_from(wrapper, self._module.names.new)
        for i in copy.instructions():
            del i.control_predecessor_ids[:]
            self._renumber(i)
        return copy
