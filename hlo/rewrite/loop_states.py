"""The states of loops: elements that join them, elements that leave, arrays that iterations
write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hlo import xla_pb2
from hlo.backend import platform
from hlo.module import HloError
from hlo.rewrite.bodies import MutableComputation
from hlo.rewrite.checkpoints import Places, Ring, Segments, kept_in
from hlo.rewrite.fused_body import FusedBody, stack_shape
from hlo.rewrite.loop_edit import Checkpoints, LoopEdit, NewResidual
from hlo.rewrite.loop_module import LoopModule, LoopSite
from hlo.rewrite.slots import counts_slices, put_into_slots, update_of

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


class States:
    """Adds elements to the states of a forward and a backward loop, and removes elements.

    Args:
      module: that has the loops. edit: the change that is made.
    """

    def __init__(self, module: LoopModule, edit: LoopEdit) -> None:
        self._module = module
        self._edit = edit

    def stacked(
        self, writer: LoopSite, body: MutableComputation, kept: int | NewResidual
    ) -> _Instruction:
        """Adds an array to the forward loop in which each iteration stores a value as its slice.

        Args:
          writer: the forward loop. body: of it.
          kept: the value, as a number of an element of its state, or of an instruction of its body.

        Returns:
          The get-tuple-element of the loop's result that is the whole array.
        """

        def own(put: FusedBody, counter: _Instruction) -> _Instruction:
            return put.index(counter, self._edit.written)

        if isinstance(kept, int):
            value = body.element(kept)
        else:
            value = self._module.leaf(body, body.named(kept.value), kept.index)
        return self._kept(writer, body, value, Ring("stack", self._edit.iterations, own))

    def checkpoints(
        self,
        checkpoints: Checkpoints,
        writer: LoopSite,
        reader: LoopSite,
        source: MutableComputation,
    ) -> Places:
        """Adds arrays of checkpoints to the forward loop `writer`, and its results to `reader`.

        Returns:
          The arrays' numbers in the state of `reader`, the backward loop.
        """
        few, since = kept_in(Segments(self._edit.iterations, checkpoints.every))

        def place(value: _Instruction, ring: Ring) -> int:
            self.grow(reader, self._kept(writer, source, value, ring))
            return len(reader.i.shape.tuple_shapes) - 1

        elements = [source.element(kept.element) for kept in checkpoints.kept]
        values = [
            self._module.leaf(source, source.named(r.value), r.index) for r in checkpoints.residuals
        ]
        return Places(
            [place(value, few) for value in elements],
            [
                place(value, since) if kept.held else -1
                for value, kept in zip(elements, checkpoints.kept, strict=True)
            ],
            [place(value, since) for value in values],
        )

    def _kept(
        self, writer: LoopSite, body: MutableComputation, value: _Instruction, ring: Ring
    ) -> _Instruction:
        """Gives the forward loop a new array of slices of a value; what that ends as."""
        parent = writer.parent
        counter = body.element(0)
        whole = _Shape.FromString(stack_shape(value.shape.SerializeToString(), ring.slices))
        name = f"{value.name}.{ring.name}"
        begun = self._module.unwritten(parent, f"{name}.begin", whole, self._edit.target)
        self.grow(writer, begun)
        number = len(writer.i.shape.tuple_shapes) - 1
        put = self._module.fused_body(f"{name}.put")
        put.parameter(body.element(number))  # before the index, as XLA:TPU has them
        at = ring.at(put, counter)
        if at.opcode != "parameter" and not platform(self._edit.target).emits_any_fusion:
            raise HloError(f"{name} is not written at the index of the iteration")
        update = put.update(body.element(number), value, at)
        made = put.fusion(self._module.names.new(f"{name}.put"), update, "kLoop", _Instruction())
        # Before the next iteration's value can be written over this one's.
        body.root().operand_ids[number] = body.add(made, early=True).id
        end = _Instruction(
            name=self._module.names.new(f"{name}.end"),
            opcode="get-tuple-element",
            operand_ids=[writer.i.id],
            tuple_index=number,
        )
        end.shape.CopyFrom(whole)
        return parent.add(end)

    def grow(self, site: LoopSite, value: _Instruction) -> None:
        """Adds an element to a loop's state that starts as `value`; no iteration changes it."""
        start, loop = site.start(), site.loop
        for i in (start, *site.whole()):
            i.shape.tuple_shapes.append(value.shape)
        start.operand_ids.append(value.id)
        for number in loop.called_computation_ids:
            inner = self._module.body(self._module.computations[number])
            parameter = inner.parameter()
            parameter.shape.tuple_shapes.append(value.shape)
            inner.computation.ClearField("program_shape")
        body = self._module.body(self._module.computations[loop.called_computation_ids[0]])
        element = body.element(len(start.operand_ids) - 1)
        root = body.root()
        root.operand_ids.append(element.id)
        root.shape.tuple_shapes.append(value.shape)

    def forget(self, site: LoopSite, gone: list[int]) -> None:
        """Removes elements, by number, from a loop's state; nothing may read their final values.

        One that a fusion computes beside other results stays, shortened to `SLOTS` slices.
        """
        body = self._module.body(self._module.computations[site.loop.called_computation_ids[0]])
        held = _held(body, gone)
        for k in held:
            self._shorten(site, body, k)
        self.shrink(site, [k for k in gone if k not in held])

    def _shorten(self, site: LoopSite, body: MutableComputation, k: int) -> None:
        """Lets an array that a fusion puts a slice into, and nothing reads, have few slices."""
        (fusion,) = body.operands(body.operands(body.root())[k])
        element = body.element(k)
        computation = self._module.computations[fusion.called_computation_ids[0]]
        operand = list(fusion.operand_ids).index(element.id)
        if [i.id for i in body.readers(element.id)] != [fusion.id]:
            raise HloError(f"{element.name} is read by more than {fusion.name}")
        axis = counts_slices(computation, update_of(fusion, computation, operand))
        whole = put_into_slots(fusion, computation, operand, axis).shape
        end = body.operands(body.root())[k]
        for shape in (element.shape, end.shape, body.root().shape.tuple_shapes[k]):
            shape.CopyFrom(whole)
        start = site.start()
        for i in (start, *site.whole()):
            i.shape.tuple_shapes[k].CopyFrom(whole)
        for number in site.loop.called_computation_ids:
            inner = self._module.body(self._module.computations[number])
            inner.parameter().shape.tuple_shapes[k].CopyFrom(whole)
            inner.computation.ClearField("program_shape")
        for i in site.parent.readers(site.i.id):
            if i.opcode == "get-tuple-element" and i.tuple_index == k:
                raise HloError(f"{i.name} reads an array most of whose slices were removed")
        begun, name = start.operand_ids[k], f"{element.name}.slots"
        few = self._module.unwritten(site.parent, name, whole, self._edit.target)
        start.operand_ids[k] = few.id
        site.parent.sweep([begun])
        site.parent.trim([begun], self._module.computations)

    def shrink(self, site: LoopSite, gone: list[int]) -> None:
        """Removes elements, by number, from a loop's state. Raises HloError if one is read."""
        parent, start, loop = site.parent, site.start(), site.loop
        begun = [start.operand_ids[k] for k in gone]
        _drop(start.operand_ids, gone)
        for i in (start, *site.whole()):
            _drop_shapes(i.shape, gone)
        parent.sweep([*begun, *_renumbered(parent.readers(site.i.id), gone)])
        parent.trim(begun, self._module.computations)
        for k, number in enumerate(loop.called_computation_ids):
            inner = self._module.body(self._module.computations[number])
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
                raise HloError(f"{still} is read, but was removed from its loop's state")


def _held(body: MutableComputation, gone: Iterable[int]) -> list[int]:
    """Those elements of a state whose instruction also computes other things."""
    root = body.root()
    ends = {k: body.operands(root)[k] for k in gone}
    lost = {i.id for i in ends.values()}
    found = []
    for k, end in ends.items():
        if end.opcode == "get-tuple-element":
            (whole,) = body.operands(end)
            if any(i.id not in lost for i in body.readers(whole.id)):
                found.append(k)
    return found


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
