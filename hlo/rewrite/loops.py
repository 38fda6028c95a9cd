"""Takes stacks out of a pair of loops: what was read of them is computed again where it is read.

A stack is an element of a loop's state of which each turn writes one slice; a later loop reads the
slices. Without it both states are an element shorter. In the reading loop's body a slice is then
made by copies of the writing loop's instructions, or it is a slice of another stack.

Fused computations of the reading loop keep their form: what took a slice of a stack now takes the
whole of one slice, by the same dynamic-slice, whose index XLA clamps to the only place there is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hlo import xla_pb2
from hlo.module import HloError
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.bodies import Body, Names, list_computations
from hlo.rewrite.checkpoints import Places, Rerun, Ring, Segments, kept_in
from hlo.rewrite.exchanges import Exchanges
from hlo.rewrite.fused_body import FusedBody, slice_shape, stack_shape
from hlo.rewrite.loop_edit import SLOTS, Checkpoints, Given, LoopEdit, Made, Taken
from hlo.rewrite.walk import put_in_post_order
from hlo.shapes import ShapeIndex

__all__ = ["change_loops"]

_LOCAL = (1 << 32) - 1

_Instruction = xla_pb2.HloInstructionProto
_Computation = xla_pb2.HloComputationProto
_Shape = xla_pb2.ShapeProto


def change_loops(proto: xla_pb2.HloModuleProto, edits: Sequence[LoopEdit]) -> None:
    """Changes loops of a module; new instructions stand right before their first reader.

    Args:
      proto: a scheduled module; it is changed.

    Raises:
      HloError: a name is unknown or taken, or the loops are not as the edit has them.
    """
    if not edits:
        return
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    for edit in edits:
        _Change(proto, edit).run()
    keep_apart(before, proto, edits[0].target)
    for computation in proto.computations:
        if computation.id in proto.schedule.sequences:
            put_in_post_order(computation)


@dataclasses.dataclass(frozen=True)
class _Site:
    """A loop where it stands.

    Attributes:
      parent: the computation. i: what gives the loop's result there: the while, or the call of
        `called`, which only runs it. loop: the while.
    """

    parent: Body
    i: _Instruction
    loop: _Instruction
    called: Body | None = None

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


class _Change:
    """One change of a pair of loops."""

    def __init__(self, proto: xla_pb2.HloModuleProto, edit: LoopEdit) -> None:
        self._proto = proto
        self.edit = edit
        self._computations = {c.id: c for c in proto.computations}
        self._homes = {i.name: c for c in proto.computations for i in c.instructions}
        self.names = Names(proto)
        self._ids = itertools.count(max(self._computations) + 1)
        self._fused: list[_Computation] = []
        self._bodies: dict[int, Body] = {}
        self._thread = ""

    def run(self) -> None:
        """Makes the change."""
        edit = self.edit
        writer, reader = self._site(edit.writer), self._site(edit.reader)
        parent = writer.parent
        if reader.parent is not parent:
            raise HloError(f"{edit.writer} and {edit.reader} are not of one computation")
        made_from = self._body(self._computations[writer.loop.called_computation_ids[0]])
        body = self._body(self._computations[reader.loop.called_computation_ids[0]])
        self._thread = body.computation.execution_thread
        for new in edit.added:
            value = self._stacked(writer, made_from, new) if isinstance(new, int) else None
            self._grow(reader, value or parent.named(str(new)))
        maker = _Maker(self, edit, body, made_from, parent)
        rerun = None
        if edit.checkpoints is not None:
            places = self._checkpoints(edit.checkpoints, writer, reader, made_from)
            rerun = Rerun(self, edit, body, places)
            maker.know(rerun.begin())
        for made in edit.made:
            maker.make(made)
        for taken in edit.taken:
            maker.take(taken)
        if rerun is not None:
            rerun.end(maker.value)
        self._shrink(reader, [r for _, r in edit.dropped])
        self._shrink(writer, [w for w, _ in edit.dropped])
        for changed in self._bodies.values():
            changed.place_new()
            changed.finish()
        list_computations(self._proto, self._fused)

    def _home(self, name: str) -> _Computation:
        if name not in self._homes:
            raise HloError(f"the module has no {name}; plan it again")
        return self._homes[name]

    def _site(self, name: str) -> _Site:
        """A while where other loops stand beside it."""
        home = self._body(self._home(name))
        loop = home.named(name)
        (start,) = home.operands(loop)
        if start.opcode != "parameter":
            return _Site(home, loop, loop)
        called = home.computation.id
        for computation in self._proto.computations:
            for i in computation.instructions:
                if i.opcode == "call" and called in i.called_computation_ids:
                    parent = self._body(computation)
                    return _Site(parent, parent.named(i.name), loop, home)
        raise HloError(f"nothing calls {home.computation.name}")

    def _body(self, computation: _Computation) -> Body:
        if computation.id not in self._bodies:
            self._bodies[computation.id] = Body(self._proto, computation, self.names)
        return self._bodies[computation.id]

    def computation(self, number: int) -> _Computation:
        """A computation by id."""
        return self._computations[number]

    def new_computation(self, name: str) -> _Computation:
        """A new fused computation."""
        made = _Computation(
            name=self.names.new(name),
            id=next(self._ids),
            is_fusion_computation=True,
            execution_thread=self._thread,
        )
        self._fused.append(made)
        return made

    def exchanges(self, source: Body, body: Body) -> Exchanges:
        """What copies collectives of one body into another."""
        return Exchanges(
            self._proto, source, body, self._computations, self.new_computation, self.names
        )

    def fused_body(self, name: str) -> FusedBody:
        """A new fused computation, for the fusion of this name."""
        return FusedBody(self.new_computation(f"{name}.computation"), self.names)

    # The states.

    def _stacked(self, writer: _Site, body: Body, element: int) -> _Instruction:
        """Gives the writing loop a new stack of an element of its state; what that ends as."""

        def own(put: FusedBody, counter: _Instruction) -> _Instruction:
            return put.index(counter, self.edit.written)

        return self._kept(writer, body, body.element(element), Ring("stack", self.edit.turns, own))

    def _kept(self, writer: _Site, body: Body, value: _Instruction, ring: Ring) -> _Instruction:
        """Gives the writing loop a new array of slices of a value; what that ends as."""
        parent = writer.parent
        counter = body.element(0)
        whole = _Shape.FromString(stack_shape(value.shape.SerializeToString(), ring.slices))
        name = f"{value.name}.{ring.name}"
        zeros = self.fused_body(f"{name}.begin")
        begun = zeros.fusion(
            self.names.new(f"{name}.begin"), zeros.zeros(whole), "kLoop", _Instruction()
        )
        self._grow(writer, parent.add(begun))
        number = len(writer.i.shape.tuple_shapes) - 1
        put = self.fused_body(f"{name}.put")
        update = put.update(body.element(number), value, ring.at(put, counter))
        made = put.fusion(self.names.new(f"{name}.put"), update, "kLoop", _Instruction())
        # Before the next turn's value can be written over this one's.
        body.root().operand_ids[number] = body.add(made, early=True).id
        end = _Instruction(
            name=self.names.new(f"{name}.end"),
            opcode="get-tuple-element",
            operand_ids=[writer.i.id],
            tuple_index=number,
        )
        end.shape.CopyFrom(whole)
        return parent.add(end)

    def _checkpoints(
        self, checkpoints: Checkpoints, writer: _Site, reader: _Site, source: Body
    ) -> Places:
        """Lets the writing loop keep slices at few turns; where the reading loop has them."""
        few, since = kept_in(Segments(self.edit.turns, checkpoints.every))

        def place(value: _Instruction, ring: Ring) -> int:
            self._grow(reader, self._kept(writer, source, value, ring))
            return len(reader.i.shape.tuple_shapes) - 1

        elements = [source.element(kept.element) for kept in checkpoints.kept]
        values = [self.leaf(source, source.named(r.value), r.index) for r in checkpoints.residuals]
        return Places(
            [place(value, few) for value in elements],
            [
                place(value, since) if kept.held else -1
                for value, kept in zip(elements, checkpoints.kept, strict=True)
            ],
            [place(value, since) for value in values],
        )

    def leaf(self, body: Body, whole: _Instruction, index: ShapeIndex) -> _Instruction:
        """What an instruction gives, or an element of it."""
        if not index:
            return whole
        (k,) = index
        leaf = _Instruction(
            name=self.names.new(f"{whole.name}.element"),
            opcode="get-tuple-element",
            operand_ids=[whole.id],
            tuple_index=k,
        )
        leaf.shape.CopyFrom(whole.shape.tuple_shapes[k])
        return body.add(leaf)

    def _grow(self, site: _Site, value: _Instruction) -> None:
        """Adds an element to a loop's state, which no turn changes."""
        start, loop = site.start(), site.loop
        for i in (start, *site.whole()):
            i.shape.tuple_shapes.append(value.shape)
        start.operand_ids.append(value.id)
        for number in loop.called_computation_ids:
            inner = self._body(self._computations[number])
            parameter = inner.parameter()
            parameter.shape.tuple_shapes.append(value.shape)
            inner.computation.ClearField("program_shape")
        body = self._body(self._computations[loop.called_computation_ids[0]])
        element = body.element(len(start.operand_ids) - 1)
        root = body.root()
        root.operand_ids.append(element.id)
        root.shape.tuple_shapes.append(value.shape)

    def _shrink(self, site: _Site, gone: list[int]) -> None:
        """Takes elements out of a loop's state."""
        parent, start, loop = site.parent, site.start(), site.loop
        begun = [start.operand_ids[k] for k in gone]
        _drop(start.operand_ids, gone)
        for i in (start, *site.whole()):
            _drop_shapes(i.shape, gone)
        parent.sweep([*begun, *_renumbered(parent.readers(site.i.id), gone)])
        parent.trim(begun, self._computations)
        for k, number in enumerate(loop.called_computation_ids):
            inner = self._body(self._computations[number])
            parameter = inner.parameter()
            _drop_shapes(parameter.shape, gone)
            inner.computation.ClearField("program_shape")
            lost = _renumbered(inner.readers(parameter.id), gone)
            ends: list[int] = []
            if k == 0:
                root = inner.root()
                ends = [root.operand_ids[g] for g in gone]
                _drop(root.operand_ids, gone)
                _drop_shapes(root.shape, gone)
            inner.sweep([*ends, *lost])
            if still := inner.alive(lost):
                raise HloError(f"{still} is read although its loop's state has it no more")


def _drop(numbers: Any, gone: Iterable[int]) -> None:
    """Takes entries out of a repeated field of numbers."""
    numbers[:] = [n for k, n in enumerate(numbers) if k not in set(gone)]


def _drop_shapes(shape: _Shape, gone: Iterable[int]) -> None:
    for k in sorted(gone, reverse=True):
        del shape.tuple_shapes[k]


def _renumbered(elements: Iterable[_Instruction], gone: Sequence[int]) -> list[int]:
    """Renumbers readers of a tuple that loses elements; gives the ids of those of lost ones."""
    lost = []
    for element in elements:
        if element.opcode != "get-tuple-element":
            raise HloError(f"{element.name} reads a loop's state as a whole")
        if element.tuple_index in gone:
            lost.append(element.id)
        else:
            element.tuple_index -= sum(k < element.tuple_index for k in gone)
    return lost


class _Maker:
    """Makes the new instructions of the reading loop's body."""

    def __init__(
        self, change: _Change, edit: LoopEdit, body: Body, source: Body, parent: Body
    ) -> None:
        self.body = body
        self._parent = parent
        self._change = change
        self._edit = edit
        self._source = source
        self._made: dict[str, _Instruction] = {}
        self._leaves: dict[tuple[str, ShapeIndex], _Instruction] = {}
        self._copies: dict[tuple[int, int], _Instruction] = {}
        self._exchanges = change.exchanges(source, body)
        self._stacks: dict[tuple[int, int, int, bytes], _Instruction] = {}

    def know(self, made: Mapping[str, _Instruction]) -> None:
        """Takes instructions that were made otherwise, by name."""
        self._made.update(made)

    def value(self, given: Given) -> _Instruction:
        """A value in the body."""
        return self._value(given)

    def make(self, made: Made) -> None:
        """Makes one instruction."""
        if self._change.names.new(made.name) != made.name:
            raise HloError(f"the module has {made.name} already; plan it again")
        if not made.original:
            self._made[made.name] = self._single(made)
            return
        if made.of_slice:
            self._made[made.name] = self._slice_moved(made)
            return
        original = self._source.named(made.original)
        shapes = [i.shape for i in self._source.operands(original)]
        numbers = list(range(len(shapes)))
        if self._exchanges.is_one(original):
            given = dict(made.operands)
            operands = [self.body.cast(self._value(given[k]), shapes[k]) for k in numbers]
            self._made[made.name] = self._exchanges.again(made.name, original, operands)
            return
        if original.opcode == "async-start":
            original, numbers = self._unwrapped(original)
        copy = _Instruction()
        copy.CopyFrom(original)
        copy.name = made.name
        del copy.control_predecessor_ids[:]
        del copy.output_operand_aliasing[:]
        if made.root:
            self._refuse(copy, made)
        else:
            given = dict(made.operands)
            updated = made.slots[0] if made.slots else -1
            operands = {
                k: self.body.cast(self._value(given[k]), shapes[k]).id
                for k in numbers
                if k != updated
            }
            if copy.opcode == "fusion":
                inner = self._own(copy.called_computation_ids[0])
                copy.called_computation_ids[0] = inner.id
                if made.slots:
                    operands[updated] = self._with_slots(copy, inner, *made.slots).id
            copy.operand_ids[:] = [operands[k] for k in numbers]
        self._made[made.name] = self.body.add(copy)

    def _with_slots(
        self, copy: _Instruction, body: _Computation, operand: int, axis: int
    ) -> _Instruction:
        """Lets a fusion put its result into a stack of few slices; gives that stack."""
        root = next(i for i in body.instructions if i.id == body.root_id)
        parameter = next(
            i
            for i in body.instructions
            if i.opcode == "parameter" and i.parameter_number == operand
        )
        if root.opcode != "dynamic-update-slice" or root.operand_ids[0] != parameter.id:
            raise HloError(f"{copy.name} does not put its result into a stack")
        for i in (copy, root, parameter):
            i.shape.dimensions[axis] = self._slots(i.shape.dimensions[axis])
        body.ClearField("program_shape")
        zeros = self._change.fused_body(f"{copy.name}.begin")
        name = self._change.names.new(f"{copy.name}.begin")
        return self.body.add(zeros.fusion(name, zeros.zeros(copy.shape), "kLoop", _Instruction()))

    @staticmethod
    def _slots(slices: int) -> int:
        return min(slices, SLOTS)

    def _slice_moved(self, made: Made) -> _Instruction:
        """What an instruction beside the loops does to each slice, done to one."""
        original = self._parent.named(made.original)
        ((_, given),) = made.operands
        (operand,) = self._parent.operands(original)
        copy = _Instruction()
        copy.CopyFrom(original)
        copy.name = made.name
        del copy.control_predecessor_ids[:]
        copy.operand_ids[:] = [self.body.cast(self._value(given), slice_shape(operand.shape)).id]
        copy.shape.CopyFrom(slice_shape(copy.shape))
        if copy.opcode == "fusion":
            inner = self._own(copy.called_computation_ids[0])
            copy.called_computation_ids[0] = inner.id
            for i in inner.instructions:
                i.shape.CopyFrom(slice_shape(i.shape))
        return self.body.add(copy)

    def _unwrapped(self, start: _Instruction) -> tuple[_Instruction, list[int]]:
        """The fusion that an asynchronous call runs, and which operands it has."""
        wrapper = self._change.computation(start.called_computation_ids[0])
        by_id = {i.id: i for i in wrapper.instructions}
        inner = by_id[wrapper.root_id]
        if any(by_id[k].opcode != "parameter" for k in inner.operand_ids):
            raise HloError(f"{start.name} runs more than one fusion")
        return inner, [by_id[k].parameter_number for k in inner.operand_ids]

    def _own(self, number: int) -> _Computation:
        """A copy of a fused computation for a copy of the fusion; reducers are shared."""
        body = self._change.computation(number)
        copy = self._change.new_computation(f"{body.name}.loop")
        renamed = {i.id: copy.id << 32 | (i.id & _LOCAL) for i in body.instructions}
        for i in body.instructions:
            made = copy.instructions.add()
            made.CopyFrom(i)
            made.id, made.name = renamed[i.id], self._change.names.new(f"{i.name}.loop")
            made.operand_ids[:] = [renamed[k] for k in i.operand_ids]
        copy.root_id = renamed[body.root_id]
        return copy

    def _value(self, given: Given) -> _Instruction:
        """A value in the body."""
        if given.copy:
            return self._copy(self._value(dataclasses.replace(given, copy=0)), given.copy)
        if given.turn:
            return self._turn()
        if given.whole or given.part is not None:
            raise HloError("a slice is to be made before it is read")
        if given.element >= 0:
            return self.body.element(given.element)
        if given.own:
            return self.body.named(given.own)
        made = self._made[given.made]
        if not given.index:
            return made
        key = given.made, given.index
        if key not in self._leaves:
            self._leaves[key] = self._change.leaf(self.body, made, given.index)
        return self._leaves[key]

    def _copy(self, value: _Instruction, number: int) -> _Instruction:
        """Another array that holds the same."""
        key = value.id, number
        if key not in self._copies:
            copy = _Instruction(
                name=self._change.names.new(f"{value.name}.copy"),
                opcode="copy",
                operand_ids=[value.id],
            )
            copy.shape.CopyFrom(value.shape)
            self._copies[key] = self.body.add(copy)
        return self._copies[key]

    def _given(self, inner: FusedBody, given: Given) -> _Instruction:
        """A value inside a fused computation."""
        if given.part is not None:
            whole = self._given(inner, dataclasses.replace(given, part=None))
            return inner.part(whole, given.part)
        counter = self.body.named(self._edit.counter)
        if given.turn:
            return inner.index(counter, self._edit.turn)
        if not given.whole:
            return inner.parameter(self._value(given))
        at = inner.index(counter, self._edit.place)
        whole = _Shape.FromString(given.whole)
        if given.made:
            return inner.sliced(
                self._made[given.made], self._made[given.made].shape, at, given.axis
            )
        return inner.sliced(self.body.element(given.element), whole, at, given.axis)

    def _turn(self) -> _Instruction:
        """The writer's turn as an instruction."""
        if "turn" not in self._made:
            name = self._change.names.new("loop_turn")
            self._made["turn"] = self._single(Made(name, "", "", ((0, Given(turn=True)),)))
        return self._made["turn"]

    def _single(self, made: Made) -> _Instruction:
        """A fusion that only hands on a slice of a stack, converted maybe, or the turn."""
        ((_, given),) = made.operands
        inner = self._change.fused_body(made.name)
        root = self._given(inner, given)
        if made.element_type:
            root = inner.converted(root, made.element_type)
        return self.body.add(inner.fusion(made.name, root, "kLoop", _Instruction()))

    def _refuse(self, copy: _Instruction, made: Made) -> None:
        """Gives a copy of a fusion a computation that ends earlier, or begins later."""
        body = self._change.computation(copy.called_computation_ids[0])
        by_id = {i.id: i for i in body.instructions}
        by_name = {i.name: i for i in body.instructions}
        given = {by_name[str(where)].id: value for where, value in made.operands}
        root = by_name[made.root]
        inner = self._change.fused_body(made.name)
        done: dict[int, _Instruction] = {}
        stack = [root.id]
        while stack:
            k = stack[-1]
            if k in done:
                stack.pop()
                continue
            if k in given:
                done[k] = inner.cast(self._given(inner, given[k]), by_id[k].shape)
                continue
            missing = [o for o in by_id[k].operand_ids if o not in done]
            if missing:
                stack += reversed(missing)
                continue
            done[k] = inner.copied(by_id[k], [done[o] for o in by_id[k].operand_ids])
        end = done[root.id]
        made_fusion = inner.fusion(made.name, end, copy.fusion_kind, copy)
        copy.CopyFrom(made_fusion)

    def take(self, taken: Taken) -> None:
        """Lets an instruction of the body do without a stack."""
        reader = self.body.named(taken.reader)
        if taken.replaced:
            result = reader
            if reader.opcode == "async-start":
                result = self.body.readers(reader.id)[0]
            value = self._value(taken.given)
            self.body.replace(result, self.body.cast(value, result.shape))
            self.body.sweep([result.id])
            return
        if reader.opcode != "fusion":
            raise HloError(f"{reader.name} cannot read anything but the stack")
        body = self._change.computation(reader.called_computation_ids[0])
        parameter = next(
            i
            for i in body.instructions
            if i.opcode == "parameter" and i.parameter_number == taken.operand
        )
        given, axis = taken.given, taken.axis
        if given.whole and not given.made:
            other = self.body.element(given.element)
            self._retype(body, parameter, other.shape, None)
        elif axis < 0:
            other = self._retype_slice(body, parameter, given)
        else:
            for i in body.instructions:
                if i.id in _casts_of(body, parameter):
                    i.shape.dimensions[axis] = self._slots(i.shape.dimensions[axis])
            if given.whole:
                other = self.body.cast(self._made[given.made], parameter.shape)
            else:
                other = self._spread(given, parameter.shape, axis)
        old = reader.operand_ids[taken.operand]
        reader.operand_ids[taken.operand] = other.id
        body.ClearField("program_shape")
        self.body.sweep([old])

    def _retype_slice(
        self, body: _Computation, parameter: _Instruction, given: Given
    ) -> _Instruction:
        """Gives a fused computation one slice for a stack; the value it is given, so cast."""
        slices = [i for i in body.instructions if i.opcode == "dynamic-slice"]
        behind = _casts_of(body, parameter)
        part = next(i.shape for i in slices if i.operand_ids[0] in behind)
        self._retype(body, parameter, part, part)
        return self.body.cast(self._value(given), part)

    def _retype(
        self, body: _Computation, parameter: _Instruction, shape: _Shape, part: _Shape | None
    ) -> None:
        """Changes a parameter's shape; casts of it are made of the new one."""
        behind = _casts_of(body, parameter)
        old = _Shape()
        old.CopyFrom(parameter.shape)
        parameter.shape.CopyFrom(shape)
        if part is None:
            if shape != old:  # the same bytes: it is cast to what its readers knew
                cast = _Instruction(
                    name=self._change.names.new(f"{parameter.name}.as"),
                    opcode="bitcast",
                    operand_ids=[parameter.id],
                )
                cast.shape.CopyFrom(old)
                cast.id = max(i.id for i in body.instructions) + 1
                kept = []
                for i in body.instructions:
                    copy = _Instruction()
                    copy.CopyFrom(i)
                    copy.operand_ids[:] = [
                        cast.id if k == parameter.id else k for k in copy.operand_ids
                    ]
                    kept.append(copy)
                    if i.id == parameter.id:
                        kept.append(cast)
                del body.instructions[:]
                body.instructions.extend(kept)
            return
        for i in body.instructions:
            if i.opcode == "bitcast" and i.id in behind:
                readers = [k for k in body.instructions if i.id in k.operand_ids]
                slices = [k for k in readers if k.opcode == "dynamic-slice"]
                i.shape.CopyFrom(slices[0].shape if slices else part)

    def _spread(self, given: Given, shape: _Shape, axis: int) -> _Instruction:
        """A stack each slice of which is a value."""
        value = self._value(dataclasses.replace(given, copy=0))
        key = value.id, given.copy, axis, shape.SerializeToString(deterministic=True)
        if key not in self._stacks:
            name = self._change.names.new(f"{value.name}.slots")
            inner = self._change.fused_body(name)
            root = inner.spread(inner.parameter(value), shape, axis)
            self._stacks[key] = self.body.add(inner.fusion(name, root, "kLoop", _Instruction()))
        return self._stacks[key]


def _casts_of(body: _Computation, parameter: _Instruction) -> set[int]:
    """A parameter and bitcasts of it."""
    found = {parameter.id}
    for i in body.instructions:
        if i.opcode == "bitcast" and i.operand_ids[0] in found:
            found.add(i.id)
    return found
