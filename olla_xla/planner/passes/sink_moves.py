"""Takes out what moves arrays for loops alone, where that costs nothing (remat.loops.moves)."""

from __future__ import annotations

import dataclasses

from olla_xla.planner.state import ModuleState
from olla_xla.remat.loops.moves import without_moves


def run(state: ModuleState) -> ModuleState:
    """A new state without instructions that move arrays for loops; `state` if nothing is saved."""
    request = state.request
    if not request.options.loops:
        return state
    sunk = without_moves(state.module, request.target, request.cost)
    if sunk is None:
        return state
    edits = dataclasses.replace(state.edits, sunk=sunk, sources=("moves",))
    return dataclasses.replace(state, module=sunk.module, kernels=sunk.kernels, edits=edits)
