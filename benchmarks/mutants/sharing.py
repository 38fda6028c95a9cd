"""Which instruction overwrites which array; some faults need that.

It is found from the module alone, independently of planner and referee, so that faults are seeded
also where these overlook something.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmarks.mutants.draft import Draft, Source

_UPDATES = frozenset({"dynamic-update-slice", "scatter"})


@dataclasses.dataclass(frozen=True)
class Overwrite:
    """In a computation, an instruction that writes where an array lies.

    Attributes:
      body: the computation. writer: the instruction. source: the array. why: in words.
    """

    body: Any
    writer: Any
    source: Source
    why: str


def overwrites(draft: Draft) -> list[Overwrite]:
    """All that XLA must do in place: bound results, updates, donated arguments, loop states."""
    found: list[Overwrite] = []
    for body in draft.scheduled():
        found += _instructions(draft, body)
        for loop in body.instructions:
            if loop.opcode == "while":
                found += _state(draft, draft.bodies[loop.called_computation_ids[0]])
    found += _donated(draft)
    return [o for o in found if (o.writer.id, -1) != o.source]


def _instructions(draft: Draft, body: Any) -> Iterator[Overwrite]:
    by_id = {i.id: i for i in body.instructions}
    for i in body.instructions:
        numbers = {b.operand_index: "bound to it" for b in i.output_operand_aliasing}
        if i.opcode in _UPDATES:
            numbers[0] = "in place"
        elif i.opcode == "fusion":
            numbers |= {k: "in place" for k in _updated(draft, i)}
        elif i.opcode == "while":
            start = by_id[i.operand_ids[0]]
            if start.opcode == "tuple":
                for k in start.operand_ids:
                    source = draft.source(body, by_id[k])
                    yield Overwrite(body, i, source, "a loop that starts from it")
        for k, why in numbers.items():
            yield Overwrite(body, i, draft.source(body, by_id[i.operand_ids[k]]), why)


def _updated(draft: Draft, fusion: Any) -> list[int]:
    """Operands that a fusion updates in place."""
    body = draft.bodies[fusion.called_computation_ids[0]]
    by_id = {i.id: i for i in body.instructions}
    root = by_id[body.root_id]
    outputs = [by_id[k] for k in root.operand_ids] if root.opcode == "tuple" else [root]
    found = []
    for output in outputs:
        writer = by_id[draft.source(body, output)[0]]
        if writer.opcode in _UPDATES:
            origin = by_id[draft.source(body, by_id[writer.operand_ids[0]])[0]]
            if origin.opcode == "parameter":
                found.append(origin.parameter_number)
    return found


def _state(draft: Draft, body: Any) -> Iterator[Overwrite]:
    """A loop's next state is written where its state lies."""
    by_id = {i.id: i for i in body.instructions}
    root = by_id[body.root_id]
    parameter = next(i for i in body.instructions if i.opcode == "parameter")
    if root.opcode == "tuple":
        for k, operand in enumerate(root.operand_ids):
            writer = draft.source(body, by_id[operand])
            if writer[0] != parameter.id:
                yield Overwrite(body, by_id[writer[0]], (parameter.id, k), "the loop's next state")


def _donated(draft: Draft) -> Iterator[Overwrite]:
    """An output is written where its donated argument lies."""
    body = draft.entry
    by_id = {i.id: i for i in body.instructions}
    root = by_id[body.root_id]
    parameters = {i.parameter_number: i for i in body.instructions if i.opcode == "parameter"}
    for entry in draft.proto.input_output_alias.entries:
        index = list(entry.output_shape_index)
        if index and root.opcode != "tuple":
            continue
        output = by_id[root.operand_ids[index[0]]] if index else root
        writer = by_id[draft.source(body, output)[0]]
        yield Overwrite(
            body, writer, (parameters[entry.parameter_number].id, -1), "the output in its place"
        )
