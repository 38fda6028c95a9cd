"""Faults: schedules that XLA accepts but that break other constraints.

Data dependences and control edges are kept. Values whose memory XLA shares may be read too late.
XLA's pipeline mostly inserts a copy wherever some order could do harm; without these copies, which
some faults leave out, there are readers that can be moved behind writers.
"""

from __future__ import annotations

import random
from typing import Any

from benchmarks.mutants.draft import Draft, passes_on
from benchmarks.mutants.sharing import overwrites

_MOST = 4  # copies left out at once


def _behind_writer(draft: Draft, rng: random.Random) -> str | None:
    """Moves a reader, and what follows from it, behind the instruction that overwrites it."""
    found = [
        (o, reader)
        for o in overwrites(draft)
        for reader in draft.readers(o.body, o.source)
        if reader.id != o.writer.id
    ]
    rng.shuffle(found)
    for o, reader in found:
        if delay(draft, o.body, reader, o.writer):
            return f"{reader.name} runs after {o.writer.name} ({o.why})"
    return None


def delay(draft: Draft, body: Any, reader: Any, writer: Any) -> bool:
    """Schedules a reader right behind a writer, if nothing forbids that and it was not so."""
    order = draft.order(body)
    position = {i.id: k for k, i in enumerate(order)}
    if position[reader.id] > position[writer.id]:
        return False
    behind = draft.descendants(body, reader)
    if writer.id in behind:
        return False
    at = position[writer.id] + 1
    moved = [i for i in order[:at] if i.id in behind]
    kept = [i for i in order[:at] if i.id not in behind]
    draft.set_order(body, kept + moved + order[at:])
    return True


def _shuffled(draft: Draft, rng: random.Random) -> str | None:
    """Any order of a computation that data dependences and control edges allow."""
    bodies = [b for b in draft.scheduled() if len(b.instructions) > 3]
    if not bodies:
        return None
    body = rng.choice(bodies)
    position = {i.id: k for k, i in enumerate(draft.order(body))}
    seed = rng.random()
    draw = random.Random(seed)
    waiting = {i.id: {*i.operand_ids, *i.control_predecessor_ids} for i in body.instructions}
    by_id = {i.id: i for i in body.instructions}
    order: list[Any] = []
    ready = sorted((k for k, needs in waiting.items() if not needs), key=position.__getitem__)
    while ready:
        number = ready.pop(draw.randrange(len(ready)))
        order.append(by_id[number])
        for k in sorted(waiting, key=position.__getitem__):
            if number in waiting[k]:
                waiting[k].discard(number)
                if not waiting[k]:
                    ready.append(k)
    draft.set_order(body, order)
    return f"{body.name} in a random order ({seed:.6f})"


def effects(draft: Draft, rng: random.Random) -> str | None:
    """Exchanges the order of two instructions that have side effects."""
    found = []
    for body in draft.scheduled():
        seen = [i for i in draft.order(body) if i.custom_call_has_side_effect]
        for k, first in enumerate(seen):
            behind = draft.descendants(body, first)
            found += [(body, first, later) for later in seen[k + 1 :] if later.id not in behind]
    if not found:
        return None
    body, first, later = rng.choice(found)
    delay(draft, body, first, later)
    return f"{first.name} runs after {later.name}; both have effects"


def lost_edge(draft: Draft, rng: random.Random) -> str | None:
    """Drops a control edge, and exchanges the order of its two instructions if that is legal."""
    found = [
        (body, i, k)
        for body in draft.scheduled()
        for i in body.instructions
        for k in i.control_predecessor_ids
    ]
    if not found:
        return None
    body, i, before = rng.choice(found)
    kept = [k for k in i.control_predecessor_ids if k != before]
    i.control_predecessor_ids[:] = kept
    first = next(x for x in body.instructions if x.id == before)
    turned = delay(draft, body, first, i)
    return f"{i.name} no longer waits for {first.name}{', and runs first' if turned else ''}"


def before_operand(draft: Draft, rng: random.Random) -> str | None:
    """Schedules an instruction before one of its operands."""
    found = [
        (body, i, k)
        for body in draft.scheduled()
        for i in body.instructions
        for k in i.operand_ids
        if not passes_on(i)
    ]
    if not found:
        return None
    body, i, operand = rng.choice(found)
    order = [x for x in draft.order(body) if x.id != i.id]
    at = next(k for k, x in enumerate(order) if x.id == operand)
    draft.set_order(body, [*order[:at], i, *order[at:]])
    return f"{i.name} runs before {order[at].name}, its operand"


def lost_copy(draft: Draft, rng: random.Random) -> str | None:
    """Lets the readers of a few copies read the arrays that were copied."""
    found = []
    for body in draft.scheduled():
        by_id = {i.id: i for i in body.instructions}
        copies = [i for i in body.instructions if i.opcode == "copy" and i.id != body.root_id]
        found += [(body, i) for i in copies if draft.kind(i) == draft.kind(by_id[i.operand_ids[0]])]
    if not found:
        return None
    lost = rng.sample(found, rng.randint(1, min(_MOST, len(found))))
    for body, copy in lost:
        for i in body.instructions:
            i.operand_ids[:] = [copy.operand_ids[0] if k == copy.id else k for k in i.operand_ids]
    draft.reads_changed()
    return f"{', '.join(copy.name for _, copy in lost)} not read, but the operand"


def behind_writer(draft: Draft, rng: random.Random) -> str | None:
    """Moves a reader behind the instruction that overwrites what it reads; may remove copies."""
    moved = _behind_writer(draft, rng)
    if moved is None and (lost := lost_copy(draft, rng)) is not None:
        moved = _behind_writer(draft, rng)
        return None if moved is None else f"{lost}; {moved}"
    return moved


def shuffled(draft: Draft, rng: random.Random) -> str | None:
    """A random order; half of the time copies are removed first."""
    lost = lost_copy(draft, rng) if rng.random() < 0.5 else None
    text = _shuffled(draft, rng)
    return text if lost is None or text is None else f"{lost}; {text}"
