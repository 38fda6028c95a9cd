"""The kinds of fault, by name."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from benchmarks.mutants import aliases, attributes, operands, order, patterns, text, tuples
from benchmarks.mutants.draft import Draft

Seed = Callable[[Draft, random.Random], str | None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
      seed: puts one into a draft and says which; None where the module has no place for it. It is
        None itself where the fault is in the executable, not in the module.
      share: how often it is chosen, relative to others.
    """

    seed: Seed | None
    share: float = 1


OVERLAP = "overlap"
"""Two buffers of the executable that live together, moved onto each other."""

THUNKS = tuple(
    "slices exchanged,offset into a neighbour,reader after its writer,two operands in one place,"
    "a thunk dropped".split(",")
)
"""Kinds of `benchmarks.thunks.mutants` that CPUs' executables have places for."""

KINDS: dict[str, Kind] = {
    "alias_read_later": Kind(aliases.read_later, 2),
    "alias_read_inside": Kind(aliases.read_inside, 2),
    "bound_and_late": Kind(aliases.bound_and_late, 2),
    "behind_writer": Kind(order.behind_writer, 3),
    "shuffled": Kind(order.shuffled, 2),
    "lost_edge": Kind(order.lost_edge, 2),
    "effects": Kind(order.effects, 3),
    "before_operand": Kind(order.before_operand),
    "clone_operand": Kind(operands.clone_operand, 3),
    "remade_operand": Kind(operands.remade_operand, 3),
    "remade_part": Kind(attributes.remade_part, 2),
    "operand": Kind(operands.any_operand),
    "fused_operand": Kind(operands.fused_operand),
    "exchanged": Kind(operands.exchanged),
    "index": Kind(operands.index),
    "lost_copy": Kind(order.lost_copy),
    OVERLAP: Kind(None, 3),
    "loop_state": Kind(tuples.loop_state, 3),
    "branches": Kind(tuples.branches, 2),
    "results": Kind(tuples.results),
    "donation": Kind(tuples.donation),
    "constant": Kind(attributes.constant),
    "attribute": Kind(attributes.attribute),
    "fusion": Kind(attributes.fusion),
    "configuration": Kind(attributes.configuration),
    "kernel_bound": Kind(patterns.bound, 2),
    "kernel_held": Kind(patterns.held, 2),
    "kernel_freed": Kind(patterns.freed, 2),
    "kernel_read_late": Kind(patterns.read_late, 2),
    **{name: Kind(fault) for name, fault in text.LAYOUTS.items()},
    **{name: Kind(fault, 0.3) for name, fault in text.FAULTS.items()},
}
"""Name -> kind; a third of all mutants are of those in `text`."""

AUDITED: dict[str, Kind] = {
    **{
        kind: KINDS[kind]
        for kind in "alias_read_later alias_read_inside bound_and_late behind_writer shuffled "
        "before_operand lost_copy donation".split()
    },
    **{k: KINDS[k] for k in text.LAYOUTS if k not in ("layout_bitcast", "layout_any")},
    **{kind: Kind(None, 4) for kind in (OVERLAP, *THUNKS)},
}
"""Those that change where and when arrays are read, and not which program it is, as a bitcast in
another layout does."""


def mutated(module: bytes, kind: str, seed: str) -> tuple[str, bytes] | None:
    """(description of a fault, the module with the fault); None if the module has no place for it.

    Args:
      module: serialized, scheduled HloModuleProto.
      kind: one of `KINDS` but OVERLAP. seed: equal seeds give equal faults.
    """
    put = KINDS[kind].seed
    assert put is not None, "this fault is not one of the module"
    draft = Draft(module)
    text = put(draft, random.Random(f"{seed}/{kind}"))
    return None if text is None else (text, draft.finish())
