"""Faults: instructions that read another array of the same shape than they should."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

from benchmarks.mutants.draft import Draft, passes_on

Choice = tuple[Any, int, list[Any]]
"""(instruction, operand number, what it could read instead)."""


def any_operand(draft: Draft, rng: random.Random) -> str | None:
    """An instruction that runs step by step reads another array."""
    return _replace(draft, rng, draft.scheduled(), lambda i, _: not passes_on(i))


def clone_operand(draft: Draft, rng: random.Random) -> str | None:
    """A clone, made to compute something again, reads another array."""
    return _replace(draft, rng, draft.scheduled(), lambda i, _: ".remat" in i.name)


def remade_operand(draft: Draft, rng: random.Random) -> str | None:
    """An instruction that recomputes a slice of a scan residual reads another array."""
    bodies = [*draft.scheduled(), *draft.fused()]
    made = (".again", ".slice", ".part", ".narrow", ".loop")

    def wanted(i: Any, _: int) -> bool:
        return i.opcode != "tuple" and any(part in i.name for part in made)

    return _replace(draft, rng, bodies, wanted)


def fused_operand(draft: Draft, rng: random.Random) -> str | None:
    """An instruction inside a fusion reads another value."""
    often = _read_twice(draft)

    def wanted(i: Any, k: int) -> bool:
        return i.opcode != "tuple" and i.operand_ids[k] in often

    return _replace(draft, rng, draft.fused(), wanted)


def index(draft: Draft, rng: random.Random) -> str | None:
    """A slice is taken from, or written to, another place."""
    often = _read_twice(draft)
    often.update(i.id for body in draft.scheduled() for i in body.instructions)
    bodies = [*draft.scheduled(), *draft.fused()]
    first = {"dynamic-slice": 1, "dynamic-update-slice": 2}  # number of the first index

    def wanted(i: Any, k: int) -> bool:
        return k >= first.get(i.opcode, k + 1) and i.operand_ids[k] in often

    return _replace(draft, rng, bodies, wanted)


def _read_twice(draft: Draft) -> set[int]:
    """Ids of what is read more than once; XLA refuses a fusion that has an unread value."""
    times = collections.Counter(
        k for body in draft.fused() for i in body.instructions for k in i.operand_ids
    )
    return {k for k, n in times.items() if n > 1}


def _replace(
    draft: Draft, rng: random.Random, bodies: list[Any], wanted: Callable[[Any, int], bool]
) -> str | None:
    found: list[Choice] = []
    for body in bodies:
        by_id = {i.id: i for i in body.instructions}
        before: dict[bytes, list[Any]] = {}
        for i in draft.listed(body):
            for k, operand in enumerate(i.operand_ids):
                old = by_id[operand]
                if wanted(i, k) and not old.shape.tuple_shapes:
                    others = [x for x in before[draft.kind(old)] if x is not old]
                    if others:
                        found.append((i, k, others))
            before.setdefault(draft.kind(i), []).append(i)
    if not found:
        return None
    i, k, others = rng.choice(found)
    new = rng.choice(others)
    i.operand_ids[k] = new.id
    return f"{i.name} reads {new.name} as its operand {k}"


def exchanged(draft: Draft, rng: random.Random) -> str | None:
    """An instruction reads two of its operands the other way round."""
    found = []
    for body in [*draft.scheduled(), *draft.fused()]:
        by_id = {i.id: i for i in body.instructions}
        for i in body.instructions:
            given = [by_id[k] for k in i.operand_ids]
            if i.opcode != "tuple":
                found += [
                    (i, a, b)
                    for b in range(len(given))
                    for a in range(b)
                    if given[a] is not given[b] and draft.kind(given[a]) == draft.kind(given[b])
                ]
    if not found:
        return None
    i, a, b = rng.choice(found)
    i.operand_ids[a], i.operand_ids[b] = i.operand_ids[b], i.operand_ids[a]
    return f"operands {a} and {b} of {i.name} exchanged"
