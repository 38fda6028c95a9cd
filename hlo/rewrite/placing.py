"""Schedules instructions that were added to a computation with an execution order."""

from __future__ import annotations

from collections.abc import Iterable

from hlo import xla_pb2
from hlo.graph import MutableComputation
from hlo.module import HloError
from hlo.walk import after_needs


def place_new(body: MutableComputation) -> None:
    """Schedules each added instruction right before its first reader, or before what overwrites an
    element of a loop's state that it reads; those added `early` before all but parameters. Removes
    unread ones. A new root comes last. An older instruction that a reader needs is moved up before
    it, if it ran later. Raises HloError if an instruction reads itself.
    """
    new = {i.id: i for i in body.added()}
    if not new:
        body.place(operands_first(body, body.order))  # an operand may be another one than before
        return
    order = body.order
    if body.computation.root_id in new:
        order = [*order, new.pop(body.computation.root_id).id]
    step = {k: n for n, k in enumerate(order)}
    readers: dict[int, list[int]] = {k: [] for k in new}
    for i in body.instructions():
        for k in i.operand_ids:
            if k in readers:
                readers[k].append(i.id)
    parameters = {i.id for i in body.instructions() if i.opcode == "parameter"}
    first = next(n for n, k in enumerate(order) if k not in parameters)
    listed = operands_first(body, new)
    unread: set[int] = set()
    for k in reversed(listed):
        steps = [first] if k in body.early else [step[r] for r in readers[k] if r in step]
        if steps:
            step[k] = min(steps + [step[w] for w in _overwriting(body, new[k]) if w in step])
        else:
            unread.add(k)  # made for a use that came to nothing
    before: dict[int, list[int]] = {}
    for k in listed:
        if k not in unread:
            before.setdefault(order[step[k]], []).append(k)
    body.place(n for k in order for n in (*before.get(k, ()), k))
    body.remove(unread)
    body.place(operands_first(body, body.order))


def _overwriting(body: MutableComputation, i: xla_pb2.HloInstructionProto) -> list[int]:
    """Finds what may overwrite an element of a loop's state that `i` reads: ids of instructions.
    They give the next iteration's value of an element that is an operand of `i`.
    """
    state = next((k for k in body.instructions() if k.opcode == "parameter"), None)
    if body.root.opcode != "tuple" or state is None:
        return []
    if len(state.shape.tuple_shapes) != len(body.root.operand_ids):
        return []  # a branch
    elements = (o for o in body.operands(i) if o.opcode == "get-tuple-element")
    taken = [e for e in elements if body.operands(e)[0].opcode == "parameter"]
    following = body.root.operand_ids
    return [following[e.tuple_index] for e in taken if following[e.tuple_index] != e.id]


def operands_first(body: MutableComputation, order: Iterable[int]) -> list[int]:
    """Sorts instructions' ids so that each comes after those that it reads or waits for.
    Raises HloError if an instruction needs itself.
    """
    by_id, among = {i.id: i for i in body.instructions()}, list(order)
    known = set(among)

    def needs(k: int) -> list[int]:
        before = (*by_id[k].operand_ids, *by_id[k].control_predecessor_ids)
        return [n for n in before if n in known]

    return after_needs(among, needs, lambda k: HloError(f"{by_id[k].name} reads itself"))
