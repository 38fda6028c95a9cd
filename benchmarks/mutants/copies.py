"""Copies that XLA made because one buffer is not enough, left out.

No digest of what is computed tells the difference: only what lies in memory does. As it leaves
XLA's pipeline, a step mostly has a copy wherever an order could harm it; with copies left out,
there are readers to move behind writers.
"""

from __future__ import annotations

import random

from benchmarks.mutants import order
from benchmarks.mutants.draft import Draft

__all__ = ["behind_writer", "lost_copy", "shuffled"]

_MOST = 4  # copies left out at once


def lost_copy(draft: Draft, rng: random.Random) -> str | None:
    """What read a copy reads what it was made of."""
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
    """A reader behind the instruction that overwrites it; copies left out where there is none."""
    moved = order.behind_writer(draft, rng)
    if moved is None and (lost := lost_copy(draft, rng)) is not None:
        moved = order.behind_writer(draft, rng)
        return None if moved is None else f"{lost}; {moved}"
    return moved


def shuffled(draft: Draft, rng: random.Random) -> str | None:
    """Any order, half of the time with copies left out."""
    lost = lost_copy(draft, rng) if rng.random() < 0.5 else None
    text = order.shuffled(draft, rng)
    return text if lost is None or text is None else f"{lost}; {text}"
