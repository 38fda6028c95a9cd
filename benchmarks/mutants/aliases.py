"""Faults: results of fusions bound to operands that they must not overwrite, or may not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from benchmarks.mutants import order
from benchmarks.mutants.draft import Draft
from hlo.module import module_from_bytes
from hlo.rewrite.edit import Edit
from hlo.shapes import Shape, ShapeIndex

Binding = tuple[Any, Any, ShapeIndex, int]
"""(computation, fusion, index of the result, operand number)."""


def read_later(draft: Draft, rng: random.Random) -> str | None:
    """Binds a result to an operand that is read later, or whose memory must not be overwritten."""
    return bind(draft, [b for b in bindings(draft) if is_needed(draft, b)], rng)


def read_inside(draft: Draft, rng: random.Random) -> str | None:
    """Binds a result to an operand that nothing else reads; the fusion may read it elsewhere."""
    return bind(draft, [b for b in bindings(draft) if not is_needed(draft, b)], rng)


def bound_and_late(draft: Draft, rng: random.Random) -> str | None:
    """Binds a result to a dying operand, and moves an earlier reader of that behind the fusion."""
    found = [b for b in bindings(draft) if not is_needed(draft, b)]
    rng.shuffle(found)
    for body, fusion, index, operand in found:
        source = draft.sources(body)[fusion.operand_ids[operand]]
        readers = [i for i in draft.readers(body, source) if i.id != fusion.id]
        rng.shuffle(readers)
        for reader in readers:
            if order.delay(draft, body, reader, fusion):
                text = f"{reader.name} runs after {fusion.name}"
                bound = bind(draft, [(body, fusion, index, operand)], rng)
                return f"{bound}, and {text}"
    return None


def bind(draft: Draft, found: list[Binding], rng: random.Random) -> str | None:
    """Binds one of the candidates; returns a description, or None if there is no candidate."""
    if not found:
        return None
    _, fusion, index, operand = rng.choice(found)
    name = fusion.name
    edit = Edit(module_from_bytes(draft.finish())).alias({name: [(index, operand)]})
    draft.load(edit.to_bytes())
    return f"result {list(index)} of {name} bound to its operand {operand}"


def bindings(draft: Draft) -> Iterator[Binding]:
    """All pairs of a fusion's result and an operand of the same number of bytes."""
    for body in draft.scheduled():
        by_id = {i.id: i for i in body.instructions}
        for fusion in body.instructions:
            if fusion.opcode != "fusion":
                continue
            taken = {tuple(b.output_shape_index) for b in fusion.output_operand_aliasing}
            bound = {b.operand_index for b in fusion.output_operand_aliasing}
            for index, result in draft.shape(fusion).indices():
                if result.is_tuple or not result.bytes or index in taken:
                    continue
                for k, operand in enumerate(fusion.operand_ids):
                    if k not in bound and _fits(draft.shape(by_id[operand]), result):
                        yield body, fusion, index, k


def _fits(operand: Shape, result: Shape) -> bool:
    same = (operand.num_elements, operand.element_bits, operand.bytes)
    return not operand.is_tuple and same == (
        result.num_elements,
        result.element_bits,
        result.bytes,
    )


def is_needed(draft: Draft, binding: Binding) -> bool:
    """Whether the operand is read later, or its memory must not be overwritten."""
    body, fusion, _, number = binding
    source = draft.sources(body)[fusion.operand_ids[number]]
    position = {i.id: k for k, i in enumerate(draft.order(body))}
    later = any(position[r.id] > position[fusion.id] for r in draft.readers(body, source))
    if later or draft.is_result(body, source):
        return True
    owner = next(i for i in body.instructions if i.id == source[0])
    return owner.opcode in ("parameter", "constant")
