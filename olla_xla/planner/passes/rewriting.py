"""The passes that change a module's instructions, in their order; loaded where they have work."""

from __future__ import annotations

from collections.abc import Iterator

from olla_xla.planner.passes import relax_overlap, rematerialise, scan_residuals, sink_moves
from olla_xla.planner.state import ModuleState

__all__ = ["RECOMPUTATION", "free_edits"]

RECOMPUTATION = (scan_residuals.run, rematerialise.run, relax_overlap.run)
"""What is tried towards a memory budget, or within an allowance of time."""


def free_edits(start: ModuleState) -> Iterator[ModuleState]:
    """The module with edits that cost nothing, from most of them to none."""
    sunk = sink_moves.run(start)
    yield from scan_residuals.before_order(sunk)
    if sunk is not start:
        yield from scan_residuals.before_order(start)
