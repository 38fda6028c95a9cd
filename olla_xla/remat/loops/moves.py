"""Removes instructions that move arrays for loops: slices are taken from the original arrays.

An array that is transposed before a loop, so that each iteration's slice is contiguous, is live as
long as the loop runs, beside the original. A slice of the original has the same bytes.
"""

from __future__ import annotations

import dataclasses
import math

from hlo.module import HloError, Module
from hlo.rewrite.edit import Edit
from hlo.rewrite.sink import sink_moves
from hlo.rewrite.sinkable import Sink, sinks
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import facts_of
from olla_xla.problem import refusals
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel, module_work


@dataclasses.dataclass(frozen=True, eq=False)
class Sunk:
    """A module from which array moves in front of loops were removed, and the time that saves.

    Attributes:
      names: of the removed instructions. module: without them.
      less_seconds, less_moved: predicted time of a step, and bytes moved, that it takes less.
    """

    names: tuple[str, ...]
    module: Module
    less_seconds: float
    less_moved: int


def without_moves(module: Module, target: str, cost: CostModel) -> Sunk | None:
    """Removes instructions that move arrays for loops alone; None if that does not pay.

    It pays if the module then takes less memory and no more time.

    Args:
      module: a scheduled one, without optimization barriers. target: "cpu" or "cuda".
      cost: prices operators.
    """
    found = sinks(module, target)
    if not found:
        return None
    names = tuple(sink.move.name for sink in found)
    sunk = _without(module, target, names, cost)
    if sunk is None:
        own = run_seconds(module, cost)
        kept = tuple(
            sink.move.name
            for sink in found
            if sink.in_order or _seconds(module, sink, target, cost) <= own
        )
        if kept and kept != names:
            sunk = _without(module, target, kept, cost)
    return sunk


def _seconds(module: Module, sink: Sink, target: str, cost: CostModel) -> float:
    """Predicted time of a module without one thing that moves an array."""
    try:
        without = Edit(module).rewrite(sink_moves, (sink.move.name,), target).module()
    except HloError as error:
        refusals.note("a module without what moves an array for loops", error)
        return math.inf
    return run_seconds(without, cost)


def _without(module: Module, target: str, names: tuple[str, ...], cost: CostModel) -> Sunk | None:
    """A module without some of what moves arrays, if that is better in memory and no slower."""
    try:
        after = Edit(module).rewrite(sink_moves, names, target).module()
        less = run_seconds(module, cost) - run_seconds(after, cost)
        if facts_of(after, target).total >= facts_of(module, target).total or less < 0:
            return None
        check_rewrite(module.data, after.data, target, loops=True)
        check_executable(after.data, target)
    except (HloError, CheckError) as error:
        refusals.note("a module without what moves arrays for loops", error)
        return None
    refusals.accepted()
    moved = module_work(module, target).bytes - module_work(after, target).bytes
    return Sunk(names, after, less, moved)
