"""Removes arrays that loops do not need, at no cost in time: moved copies, and second arrays.

An array that is transposed before a loop, so that each iteration's slice is contiguous, is live as
long as the loop runs, beside the original. A slice of the original has the same bytes. And an array
that a loop writes slice by slice may lie where one is that it reads so (`remat.loops.joined`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from hlo.module import HloError, Module
from hlo.rewrite.edit import Edit
from hlo.rewrite.join_arrays import join_arrays
from hlo.rewrite.restack import restack, restacks
from hlo.rewrite.sink import sink_moves
from hlo.rewrite.sinkable import Sink, sinks
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import facts_of
from olla_xla.problem import refusals
from olla_xla.problem.plan_parts import JoinRecord
from olla_xla.remat.cost.path import run_seconds
from olla_xla.remat.cost.roofline import CostModel, module_work
from olla_xla.remat.loops.joined import joins, record


@dataclasses.dataclass(frozen=True, eq=False)
class Spared:
    """A module without arrays that its loops need not have.

    Attributes:
      names: of the instructions that moved arrays for loops alone, and are gone.
      joined: arrays that then became one, as in `Plan.joined`. module: the result.
      less_seconds, less_moved: predicted seconds, and bytes moved, that a step now takes less.
    """

    names: tuple[str, ...]
    joined: tuple[JoinRecord, ...]
    module: Module
    less_seconds: float
    less_moved: int

    @property
    def sources(self) -> tuple[str, ...]:
        """Which edits were made, "moves" and "joined", for `Plan.source`."""
        return ("moves",) * bool(self.names) + ("joined",) * bool(self.joined)


def spared(module: Module, target: str, cost: CostModel, allowance: float = 0.0) -> list[Spared]:
    """Removes arrays that loops need not have: the edited modules, the one with most edits first.

    The first edit removes moves of arrays in front of loops, the second joins arrays. Each is made
    only if the module then takes less memory and no more time, but for the `allowance` of the
    second: where a slice is read and written by one fusion, it takes a copy of the slice, and rows
    that are written into an array take a kernel each.

    Args:
      module: a scheduled one, without optimization barriers. target: such as "cpu".
      cost: prices operators. allowance: predicted seconds that a run may take longer.
    """
    names, without = _without_moves(module, target, cost)

    def once(module: Module, what: str, change: Any, found: Sequence[Any]) -> Any:
        after = _cheaper(module, target, cost, what, change, found, allowance) if found else None
        return ((), module) if after is None else (found, after)

    again = [found.stack.name for found in restacks(without, target)]
    again, after = once(without, "second arrays of slices", restack, again)
    pairs, after = once(after, "second arrays of loops", join_arrays, joins(after, target))
    joined = *((name, 0, 0) for name in again), *map(record, pairs)
    found = [(joined, after)] * bool(joined) + [((), without)] * bool(names)
    if not found:
        return []
    own, moved = run_seconds(module, cost), module_work(module, target).bytes
    return [
        Spared(
            names, arrays, changed,
            less_seconds=own - run_seconds(changed, cost),
            less_moved=moved - module_work(changed, target).bytes,
        )
        for arrays, changed in found
    ]  # fmt: skip


def _without_moves(module: Module, target: str, cost: CostModel) -> tuple[tuple[str, ...], Module]:
    """Removes copies of arrays in front of loops that only these loops need: (their names, the new
    module); ((), module) where that saves no memory or takes longer.
    """
    movable = sinks(module, target)
    if not movable:
        return (), module
    names = tuple(sink.move.name for sink in movable)
    after = _cheaper(module, target, cost, _MOVES, sink_moves, names)
    if after is None:
        own = run_seconds(module, cost)
        kept = tuple(
            sink.move.name
            for sink in movable
            if sink.in_order or _seconds(module, sink, target, cost) <= own
        )
        if kept and kept != names:
            names, after = kept, _cheaper(module, target, cost, _MOVES, sink_moves, kept)
    return ((), module) if after is None else (names, after)


_MOVES = "copies of arrays in front of loops"


def _seconds(module: Module, sink: Sink, target: str, cost: CostModel) -> float:
    """Predicted seconds of a run without `sink`, a move; inf, and noted, if that is impossible."""
    try:
        without = Edit(module).rewrite(sink_moves, (sink.move.name,), target).module()
    except HloError as error:
        refusals.note("a module without the copy of an array for a loop", error)
        return math.inf
    return run_seconds(without, cost)


def _cheaper(
    module: Module,
    target: str,
    cost: CostModel,
    what: str,
    change: Any,
    edits: Sequence[Any],
    allowance: float = 0.0,
) -> Module | None:
    """Changes a module by `change(proto, edits, target)`; None if that does not save memory, takes
    over `allowance` seconds longer, or is refused. Both outcomes go to `refusals`, a refusal
    as that of a module without `what`.
    """
    try:
        after = Edit(module).rewrite(change, edits, target).module()
        if facts_of(after, target).total >= facts_of(module, target).total:
            return None
        if run_seconds(after, cost) > run_seconds(module, cost) + allowance:
            return None
        check_rewrite(module.data, after.data, target, loops=True)
        check_executable(after.data, target)
    except (HloError, CheckError) as error:
        refusals.note(f"a module without {what}", error)
        return None
    refusals.accepted()
    return after
