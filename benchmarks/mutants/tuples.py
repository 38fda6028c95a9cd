"""Faults: exchanged elements of loop states, of results, or of donations; exchanged branches."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.mutants.draft import Draft


def loop_state(draft: Draft, rng: random.Random) -> str | None:
    """Exchanges two elements of a loop's initial or next state, or two reads of its state."""
    found = []
    for around in draft.scheduled():
        by_id = {i.id: i for i in around.instructions}
        for loop in around.instructions:
            if loop.opcode != "while":
                continue
            body, condition = (draft.bodies[k] for k in loop.called_computation_ids)
            root = next(i for i in body.instructions if i.id == body.root_id)
            for what in (by_id[loop.operand_ids[0]], root):
                if what.opcode == "tuple":
                    found += [(what, a, b) for a, b in _pairs(what.shape)]
            for inner in (body, condition):
                found += [
                    (i, -1, b)
                    for i in inner.instructions
                    if i.opcode == "get-tuple-element"
                    for b in _others(loop.shape, i)
                ]
    if not found:
        return None
    what, a, b = rng.choice(found)
    if a < 0:
        text = f"{what.name} takes element {b} of the state for element {what.tuple_index}"
        what.tuple_index = b
        return text
    return _exchange(what, a, b)


def branches(draft: Draft, rng: random.Random) -> str | None:
    """Exchanges two branches of a conditional, or two results of one branch."""
    found: list[tuple[str, Any, int, int]] = []
    for around in draft.scheduled():
        for i in around.instructions:
            if i.opcode != "conditional":
                continue
            ids, given = i.called_computation_ids, []
            for body in (draft.bodies[k] for k in ids):
                root = next(k for k in body.instructions if k.id == body.root_id)
                if root.opcode == "tuple":
                    ends = _pairs(root.shape)
                    found += [(f"results of {body.name}", root.operand_ids, *p) for p in ends]
                given += [k.shape for k in body.instructions if k.opcode == "parameter"]
            found += [
                (f"branches of {i.name}", ids, a, b)
                for b in range(len(ids))
                for a in range(b)
                if given[a] == given[b] and ids[a] != ids[b]
            ]
    if not found:
        return None
    text, ids, a, b = rng.choice(found)
    ids[a], ids[b] = ids[b], ids[a]
    return f"{text} {a} and {b} exchanged"


def results(draft: Draft, rng: random.Random) -> str | None:
    """Exchanges two results of the module."""
    root = next(i for i in draft.entry.instructions if i.id == draft.entry.root_id)
    pairs = _pairs(root.shape) if root.opcode == "tuple" else []
    return _exchange(root, *rng.choice(pairs)) if pairs else None


def donation(draft: Draft, rng: random.Random) -> str | None:
    """Exchanges the donated arguments of two outputs."""
    parameters = {
        i.parameter_number: i for i in draft.entry.instructions if i.opcode == "parameter"
    }
    entries = list(draft.proto.input_output_alias.entries)
    found = [
        (a, b)
        for k, b in enumerate(entries)
        for a in entries[:k]
        if parameters[a.parameter_number].shape == parameters[b.parameter_number].shape
    ]
    if not found:
        return None
    a, b = rng.choice(found)
    a.parameter_number, b.parameter_number = b.parameter_number, a.parameter_number
    return f"donated arguments {a.parameter_number} and {b.parameter_number} exchanged"


def _exchange(what: Any, a: int, b: int) -> str:
    what.operand_ids[a], what.operand_ids[b] = what.operand_ids[b], what.operand_ids[a]
    return f"elements {a} and {b} of {what.name} exchanged"


def _pairs(shape: Any) -> list[tuple[int, int]]:
    parts = [part.SerializeToString(deterministic=True) for part in shape.tuple_shapes]
    return [(a, b) for b in range(len(parts)) for a in range(b) if parts[a] == parts[b]]


def _others(shape: Any, element: Any) -> list[int]:
    own = element.tuple_index
    parts = list(shape.tuple_shapes)
    if own >= len(parts) or parts[own] != element.shape:
        return []
    return [k for k, part in enumerate(parts) if k != own and part == parts[own]]
