"""Faults: copies left out that XLA made because one buffer is not enough.

A digest of the computation does not change; only the contents of memory do. XLA's pipeline mostly
inserts a copy wherever some order could do harm. Without these copies there are readers that can be
moved behind writers.
"""

from __future__ import annotations

import random

from benchmarks.mutants import order
from benchmarks.mutants.draft import Draft

_MOST = 4  # copies left out at once


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
    moved = order.behind_writer(draft, rng)
    if moved is None and (lost := lost_copy(draft, rng)) is not None:
        moved = order.behind_writer(draft, rng)
        return None if moved is None else f"{lost}; {moved}"
    return moved


def shuffled(draft: Draft, rng: random.Random) -> str | None:
    """A random order; half of the time copies are removed first."""
    lost = lost_copy(draft, rng) if rng.random() < 0.5 else None
    text = order.shuffled(draft, rng)
    return text if lost is None or text is None else f"{lost}; {text}"
