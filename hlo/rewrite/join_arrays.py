"""Joins two arrays of a loop's state, one read and one written slice by slice, into one.

A scan that takes an array slice by slice and gives another of the same shape, as `lax.scan` does of
a cache from `xs` to `ys`, has both in its state. Where iteration k reads only slice k of the first,
and writes slice k of the second after that, the second can start as the first: what it reads there
is what the first has, and at the end every slice is written.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation
from hlo.module import HloError
from hlo.rewrite.apart import keep_apart
from hlo.rewrite.fused_body import slice_shape
from hlo.rewrite.loop_edit import LoopEdit
from hlo.rewrite.loop_module import LoopModule, LoopSite
from hlo.rewrite.loop_states import States
from hlo.rewrite.placing import operands_first
from hlo.rewrite.slots import row_axes, shorten_reads, update_of
from hlo.rewrite.trim import sweep_fusion
from hlo.shapes import shape_from_proto

_Instruction = xla_pb2.HloInstructionProto
_Shape = xla_pb2.ShapeProto


@dataclasses.dataclass(frozen=True)
class Join:
    """Two elements of a loop's state that become one array.

    Attributes:
      loop: name of the while. iterations: how many. counter: the element that counts them from 0.
      read: number of the element of which each iteration reads slices, and writes none.
      written: of the one of which each iteration writes one slice, and reads none.
      update: name of the instruction of the body that writes it.
      axis: the dimension of both that counts slices.
      place: (factor, offset) of the slice of iteration k: factor * k + offset, read and written.
    """

    loop: str
    iterations: int
    counter: int
    read: int
    written: int
    update: str
    axis: int
    place: tuple[int, int]


def join_arrays(proto: xla_pb2.HloModuleProto, joins: Sequence[Join], target: str) -> None:
    """Makes the two arrays of each `Join` one, which the loop reads and overwrites slice by slice.
    Raises HloError if there is no such loop, or it reads something only after it is overwritten.

    Args:
      proto: a scheduled module, changed in place. joins: of any of its loops.
      target: "cpu", "cuda" or "tpu", whose in-place rules say what must be copied all the same.
    """
    if not joins:
        return
    before = xla_pb2.HloModuleProto()
    before.CopyFrom(proto)
    for loop in dict.fromkeys(j.loop for j in joins):
        _join(proto, [j for j in joins if j.loop == loop], target)
    keep_apart(before, proto, target)


def _join(proto: xla_pb2.HloModuleProto, joins: Sequence[Join], target: str) -> None:
    """Joins arrays of one loop, which all of `joins` name, in place."""
    loop = joins[0].loop
    edit = LoopEdit(writer=loop, reader=loop, iterations=joins[0].iterations, target=target)
    module = LoopModule(proto, edit)
    site, body = module.writer, module.forward
    module.thread = body.computation.execution_thread
    for join in joins:
        _read_first(module, join)
        start, parent = site.start(), site.parent
        begun = parent.operands(start)[join.written]
        start.operand_ids[join.written] = start.operand_ids[join.read]
        parent.sweep([begun])
        _give(parent, begun)
        _take_over(site, join.written)
    States(module).shrink(site, [j.read for j in joins])
    if not body.added():
        body.place(operands_first(body, body.order))
    module.write()


def _read_first(module: LoopModule, join: Join) -> None:
    """Makes a loop's body read its slices from the array that it writes, before it writes them."""
    body, put = module.forward, module.forward.named(join.update)
    read, written = body.element(join.read), body.element(join.written)
    if read.id in put.operand_ids and put.opcode == "fusion":
        _write_part(module.called(put), put, read, written)
    if read.id in put.operand_ids:
        _slice_first(module, join, put, read)
    body.replace(read, written, but=body.root)
    over = [i for r in body.readers(written) if r.id != put.id for i in _ends(body, r)]
    known = {*put.control_predecessor_ids, *put.operand_ids}
    put.control_predecessor_ids.extend(sorted({i.id for i in over if i.id != body.root.id} - known))


def _write_part(
    body: MutableComputation, put: _Instruction, read: _Instruction, written: _Instruction
) -> None:
    """Makes the fusion `put`, which writes a slice with some rows replaced, write those alone.

    In place; nothing is done if it has another form. `written` has the slice's other rows already.

    Args:
      body: of the fusion. read: the operand that it slices.
      written: the operand into which it writes the slice; it is to be the same array as `read`.
    """
    first, last = (body.parameter(list(put.operand_ids).index(i.id)) for i in (read, written))
    whole = update_of(put, body, last.parameter_number)
    piece, *places = body.operands(whole)[1:]
    inner = _uncast(body, piece)
    if inner.opcode != "dynamic-update-slice" or put.output_operand_aliasing:
        return
    base, part, *within = body.operands(inner)
    base = _uncast(body, base)
    if base.opcode != "dynamic-slice" or _uncast(body, body.operands(base)[0]) is not first:
        return
    axes = row_axes(*(shape_from_proto(i.shape) for i in (inner, part, piece, whole)))
    if axes is None or any(within[k].shape != places[axis].shape for k, axis in axes.items()):
        return
    new = _Shape()
    new.CopyFrom(piece.shape)
    for k, axis in axes.items():
        new.dimensions[axis], places[axis] = part.shape.dimensions[k], within[k]
    whole.operand_ids[1:] = [body.cast(part, new).id, *(i.id for i in places)]
    whole.ClearField("backend_config")  # where in memory XLA:GPU found the slice
    sweep_fusion(put, body)
    body.reorder()


def _uncast(body: MutableComputation, i: _Instruction) -> _Instruction:
    """Returns what `i` is a bitcast of, through several; `i` itself if it is none."""
    while i.opcode == "bitcast":
        (i,) = body.operands(i)
    return i


def _slice_first(module: LoopModule, join: Join, put: _Instruction, read: _Instruction) -> None:
    """Adds a fusion that takes a slice of the array `read`, and makes fusion `put` read that slice.
    XLA lets a fusion write over an array that it reads only if it reads each element where it
    writes it, and otherwise runs it over the whole array.
    """
    if put.opcode != "fusion":
        raise HloError(f"{put.name} reads and writes a slice, and is no fusion")
    body, computation = module.forward, module.called(put)
    made = module.fused_body(f"{put.name}.read")
    stack = made.parameter(read)
    at = made.index(body.element(join.counter), join.place)
    if at.opcode != "parameter" and not module.platform.emits_any_fusion:
        raise HloError(f"{put.name} does not read the slice at the index of the iteration")
    part = made.sliced(read, stack.shape, at, join.axis)
    name = module.names.new(f"{put.name}.read")
    taken = body.add(made.fusion(name, part, "kLoop", _Instruction()))
    assert taken.shape == slice_shape(read.shape, join.axis)
    for number, operand in enumerate(put.operand_ids):
        if operand == read.id:
            shorten_reads(module, computation, computation.parameter(number), join.axis, 1)
            put.operand_ids[number] = taken.id
    computation.computation.ClearField("program_shape")


def _ends(body: MutableComputation, reader: _Instruction) -> Iterable[_Instruction]:
    """Finds the instructions that end a read of an array: `reader`, or an async-start's dones."""
    if not reader.opcode.endswith(("-start", "-update")):
        return [reader]
    return [i for following in body.readers(reader) for i in _ends(body, following)]


def _give(parent: MutableComputation, begun: _Instruction) -> None:
    """Removes a copy of `begun`, a loop's former initial value, a broadcast or fusion, if only the
    copy reads that now.
    """
    readers = parent.readers(begun)
    if begun.opcode in ("broadcast", "fusion") and len(readers) == 1:
        (copy,) = readers
        if copy.opcode == "copy" and copy.shape == begun.shape:
            parent.replace(copy, begun)
            parent.sweep([copy])


def _take_over(site: LoopSite, k: int) -> None:
    """Removes copies of element `k` of a loop's result, as two arrays need not stay apart."""
    for element in site.parent.readers(site.i):
        if element.opcode == "get-tuple-element" and element.tuple_index == k:
            for copy in site.parent.readers(element):
                if copy.opcode == "copy" and copy.shape == element.shape:
                    site.parent.replace(copy, element)
                    site.parent.sweep([copy])
