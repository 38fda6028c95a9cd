"""Adds elements to the states of loops and removes some; adds arrays that iterations write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hlo import xla_pb2
from hlo.graph import MutableComputation
from hlo.module import HloError
from hlo.rewrite.checkpoints import Places, Ring, Segments, kept_in
from hlo.rewrite.fused_body import FusedBody, stack_shape
from hlo.rewrite.loop_edit import Added, Checkpoints, FinalElement, Overwritten
from hlo.rewrite.loop_module import LoopModule, LoopSite
from hlo.rewrite.slots import counts_slices, put_into_slots, update_of
from hlo.rewrite.trim import drop_unread

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


class States:
    """Adds elements to the states (tuples) of a forward and a backward while, or removes some."""

    def __init__(self, module: LoopModule) -> None:
        self._module = module

    def added(self, new: Added) -> _Instruction:
        """Returns the initial value of a new element of the backward loop's state, for `grow`.
        It is there already, or is what the forward loop leaves in an element. For a scan residual
        that is a new array, added here, in which each iteration stores a value as its slice.
        """
        parent, writer = self._module.parent, self._module.writer
        if isinstance(new, str):
            return parent.named(new)
        if isinstance(new, FinalElement):
            return parent.tuple_element(writer.i, new.element)

        body, form = self._module.forward, self._module.edit.written

        def own(put: FusedBody, counter: _Instruction) -> _Instruction:
            return self._module.index(put, body, counter, form)

        ring = Ring("stack", self._module.edit.iterations, own)
        if isinstance(new, Overwritten):
            part = _OverwrittenValue(self._module, body, new)
            return self._kept(f"{new.update}.part", part.shape, part.add, ring)
        if isinstance(new, int):
            value = body.element(new)
        else:
            value = self._module.leaf(body, body.named(new.value), new.index)
        return self._kept(value.name, value.shape, lambda put: put.parameter(value), ring)

    def checkpoints(self, checkpoints: Checkpoints) -> Places:
        """Adds arrays of checkpoints to the state of the forward loop, and to the backward loop's.
        The latter starts with their final values. Returns their numbers in its state.
        """
        few, since = kept_in(Segments(self._module.edit.iterations, checkpoints.every))
        reader, source = self._module.reader, self._module.forward

        def place(value: _Instruction, ring: Ring) -> int:
            kept = self._kept(value.name, value.shape, lambda put: put.parameter(value), ring)
            self.grow(reader, kept)
            return len(reader.i.shape.tuple_shapes) - 1

        elements = [source.element(kept.element) for kept in checkpoints.kept]
        # Last, as what gives these values may write over the elements.
        values = (
            self._module.leaf(source, source.named(r.value), r.index) for r in checkpoints.residuals
        )
        return Places(
            [place(value, few) for value in elements],
            [
                place(value, since) if kept.held else -1
                for value, kept in zip(elements, checkpoints.kept, strict=True)
            ],
            [place(value, since) for value in values],
        )

    def _kept(
        self, name: str, shape: _Shape, value: Callable[[FusedBody], _Instruction], ring: Ring
    ) -> _Instruction:
        """Adds an array to the forward loop's state, of which each iteration writes a slice.

        Args:
          name: for its instructions. shape: of a slice.
          value: adds a slice's value to the computation of the fusion that writes it; returns that.
          ring: the array's number of slices, and which of them an iteration writes.

        Returns:
          The array after the loop.

        Raises:
          HloError: where fusions need an index from outside, the slice is not the iteration's own.
        """
        writer, parent, body = self._module.writer, self._module.parent, self._module.forward
        counter = body.element(0)
        whole = _Shape.FromString(stack_shape(shape.SerializeToString(), ring.slices))
        name = f"{name}.{ring.name}"
        begun = self._module.unwritten(parent, f"{name}.begin", whole)
        self.grow(writer, begun)
        number = len(writer.i.shape.tuple_shapes) - 1
        put = self._module.fused_body(f"{name}.put")
        put.parameter(body.element(number))  # before the index, as XLA:TPU has them
        at = ring.at(put, counter)
        if at.opcode != "parameter" and not self._module.platform.emits_any_fusion:
            raise HloError(f"{name} is not written at the index of the iteration")
        update = put.put(body.element(number), value(put), at)
        made = put.fusion(self._module.names.new(f"{name}.put"), update, "kLoop", _Instruction())
        # Before the next iteration's value can be written over this one's.
        body.root.operand_ids[number] = body.add(made, early=True).id
        kind = "get-tuple-element"
        return parent.make(kind, f"{name}.end", whole, writer.i, tuple_index=number)

    def grow(self, site: LoopSite, value: _Instruction) -> None:
        """Adds an element to a loop's state, initially `value`, which iterations do not change."""
        start = site.start()
        for i in (start, *site.whole()):
            i.shape.tuple_shapes.append(value.shape)
        start.operand_ids.append(value.id)
        bodies = self._module.loop_bodies(site)
        for inner in bodies:
            inner.parameter().shape.tuple_shapes.append(value.shape)
            inner.computation.ClearField("program_shape")
        element = bodies[0].element(len(start.operand_ids) - 1)
        root = bodies[0].root
        root.operand_ids.append(element.id)
        root.shape.tuple_shapes.append(value.shape)

    def forget(self, site: LoopSite, gone: list[int]) -> None:
        """Removes elements, by number, from a loop's state; nothing may read their final values.

        One that a fusion computes beside results that stay cannot be removed: its array is cut to
        `SLOTS` (2) slices, which the fusion goes on writing. Raises HloError if something reads
        one, or nothing reads anything else of the loop.
        """
        if site.i.name not in site.parent:
            raise HloError(f"nothing reads {site.loop.name} without these elements")
        body = self._module.called(site.loop)
        held = _held(body, gone)
        for k in held:
            self._shorten(site, body, k)
        self.shrink(site, [k for k in gone if k not in held])

    def _shorten(self, site: LoopSite, body: MutableComputation, k: int) -> None:
        """Cuts array `k` of a loop's state to `SLOTS` slices. HloError if it has several uses."""
        end = body.operands(body.root)[k]
        (fusion,) = body.operands(end)
        element = body.element(k)
        computation = self._module.called(fusion)
        operand = list(fusion.operand_ids).index(element.id)
        if [i.id for i in body.readers(element)] != [fusion.id]:
            raise HloError(f"{element.name} is read by more than {fusion.name}")
        axis = counts_slices(computation, update_of(fusion, computation, operand))
        whole = put_into_slots(self._module, fusion, operand, axis).shape
        for shape in (element.shape, end.shape, body.root.shape.tuple_shapes[k]):
            shape.CopyFrom(whole)
        start = site.start()
        for i in (start, *site.whole()):
            i.shape.tuple_shapes[k].CopyFrom(whole)
        for inner in self._module.loop_bodies(site):
            inner.parameter().shape.tuple_shapes[k].CopyFrom(whole)
            inner.computation.ClearField("program_shape")
        for i in site.parent.readers(site.i):
            if i.opcode == "get-tuple-element" and i.tuple_index == k:
                raise HloError(f"{i.name} reads an array most of whose slices were removed")
        begun, name = site.parent.operands(start)[k], f"{element.name}.slots"
        few = self._module.unwritten(site.parent, name, whole)
        start.operand_ids[k] = few.id
        self._drop(site.parent, [begun])

    def shrink(self, site: LoopSite, gone: list[int]) -> None:
        """Removes unread elements, by number, from a loop's state. HloError if one is read."""
        parent, start = site.parent, site.start()
        begun = [parent.operands(start)[k] for k in gone]
        _drop(start.operand_ids, gone)
        for i in (start, *site.whole()):
            _drop_shapes(i.shape, gone)
        self._drop(parent, begun, _renumbered(parent.readers(site.i), gone))
        for k, inner in enumerate(self._module.loop_bodies(site)):
            _drop_shapes(inner.parameter().shape, gone)
            inner.computation.ClearField("program_shape")
            lost = _renumbered(inner.readers(inner.parameter()), gone)
            ends: list[_Instruction] = []
            if k == 0:
                root = inner.root
                ends = [inner.operands(root)[g] for g in gone]
                _drop(root.operand_ids, gone)
                _drop_shapes(root.shape, gone)
            inner.sweep([*ends, *lost])
            if still := [i.name for i in lost if i.name in inner]:
                raise HloError(f"{still[0]} is read, but was removed from its loop's state")

    def _drop(
        self,
        parent: MutableComputation,
        begun: Sequence[_Instruction],
        lost: Sequence[_Instruction] = (),
    ) -> None:
        """Removes those of `begun` and `lost` that nothing reads, what only they needed, and the
        outputs of fusions that only `begun` read, as XLA does.
        """
        parent.sweep([*begun, *lost])
        left = {i.id: i for i in parent.instructions()}
        read = (left.get(k) for i in begun if i.id not in left for k in i.operand_ids)
        drop_unread(self._module, parent, [i for i in read if i and i.opcode == "fusion"])


def _held(body: MutableComputation, gone: Iterable[int]) -> list[int]:
    """Finds which elements `gone` of a loop's state a fusion computes beside results still read."""
    ends = {k: body.operands(body.root)[k] for k in gone}
    lost = {i.id for i in ends.values()}
    held = []
    for k, end in ends.items():
        if end.opcode == "get-tuple-element":
            (whole,) = body.operands(end)
            if any(i.id not in lost for i in body.readers(whole)):
                held.append(k)
    return held


def _drop(numbers: Any, gone: Iterable[int]) -> None:
    """Removes the entries at the positions `gone` from a repeated field, in place."""
    numbers[:] = [n for k, n in enumerate(numbers) if k not in set(gone)]


def _drop_shapes(shape: _Shape, gone: Iterable[int]) -> None:
    for k in sorted(gone, reverse=True):
        del shape.tuple_shapes[k]


def _renumbered(elements: Iterable[_Instruction], gone: Sequence[int]) -> list[_Instruction]:
    """Renumbers a tuple's get-tuple-elements as it loses elements `gone`; returns the lost ones.
    Raises HloError for an instruction that is none.
    """
    lost = []
    for element in elements:
        if element.opcode != "get-tuple-element":
            raise HloError(f"{element.name} reads a loop's state as a whole")
        if element.tuple_index in gone:
            lost.append(element)
        else:
            element.tuple_index -= sum(k < element.tuple_index for k in gone)
    return lost


class _OverwrittenValue:
    """Recomputes what a dynamic-update-slice of a loop's body overwrites, or one of its indices.

    XLA clamps the indices of a dynamic-slice as those of a dynamic-update-slice. Raises HloError if
    a name in `what`, which says which of these, is unknown. `shape` is that of the value.
    """

    def __init__(self, module: LoopModule, body: MutableComputation, what: Overwritten) -> None:
        owner, self._body, self._index = body.named(what.owner), body, what.index
        self._operands = body.operands(owner)
        if owner.opcode == "async-start":
            owner, numbers = module.unwrapped(owner)
            self._operands = [self._operands[k] for k in numbers]
        is_inside = what.owner != what.update
        self._inside = module.called(owner) if is_inside else body
        self._array = body.element(what.element)
        _, part, *self._indices = self._inside.operands(self._inside.named(what.update))
        self.shape = part.shape if what.index is None else self._indices[what.index].shape

    def add(self, inner: FusedBody) -> _Instruction:
        """Adds instructions that compute the value to the fusion `inner`; returns the last one."""
        if self._index is not None:
            return self._again(inner, self._indices[self._index])
        at = [self._again(inner, i) for i in self._indices]
        return inner.part_at(self._array, self.shape, at)

    def _again(self, inner: FusedBody, i: _Instruction) -> _Instruction:
        """Makes an index of the dynamic-update-slice known in the fusion `inner`; returns it."""
        if self._inside is self._body:
            return inner.parameter(i)
        if i.opcode == "parameter":
            return inner.parameter(self._operands[i.parameter_number])
        return inner.copied(i, [self._again(inner, k) for k in self._inside.operands(i)])
