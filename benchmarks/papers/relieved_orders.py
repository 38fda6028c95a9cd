"""Orders of no larger live sum for which offsets are easier to find.

The memory of a donated argument is reserved for the output that replaces it, although it is dead in
between. If no other tensor fits there, no packing reaches the largest live sum (dead_space.py).
Often a copy makes the argument dead earlier than necessary. Making the copy later costs nothing,
because either the argument or the copy is live anyway.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.place.dead_space import Waste, waste
from olla_xla.place.items import Items, items_of, parts_of
from olla_xla.place.problem import PlacementProblem


def relieved(
    arrays: GraphArrays,
    order: Sequence[int],
    problem_of: Callable[[Sequence[int]], PlacementProblem],
    seconds: float,
) -> list[int]:
    """Moves single operators until no dead stretch forces more than the largest live sum.

    Args:
      problem_of: the blocks of an order. seconds: at most.

    Returns:
      An order of no larger live sum; the given one if nothing helped.
    """
    best = list(order)
    deadline = time.monotonic() + seconds
    items = step_items(problem_of(best))
    target_height = int(items.loads().max(initial=0))
    found = waste(items, target_height)
    while found.section >= 0:
        moved = _better(arrays, best, found, problem_of, target_height, deadline)
        if moved is None:
            break
        best, found = moved
    return best


def _better(
    arrays: GraphArrays,
    order: list[int],
    found: Waste,
    problem_of: Callable[[Sequence[int]], PlacementProblem],
    target_height: int,
    deadline: float,
) -> tuple[list[int], Waste] | None:
    """A move after which less is forced, or the same by fewer stretches; the largest come first."""
    now = step_items(problem_of(order))
    for size, first, last in sorted(found.stretches, reverse=True):
        best: tuple[list[int], Waste] | None = None
        least = (found.bytes, len(found.stretches))
        trials = itertools.chain(
            _moves(arrays, order, found.section, first, last),
            _fills(arrays, order, now, found.section, size, first, last),
        )
        for trial in trials:
            if time.monotonic() > deadline:
                return best
            items = step_items(problem_of(trial))
            if items.loads().max() > target_height:
                continue
            left = waste(items, target_height)
            if (left.bytes, len(left.stretches)) < least:
                best, least = (trial, left), (left.bytes, len(left.stretches))
        if best is not None:
            return best
    return None


def step_items(problem: PlacementProblem) -> Items:
    """The blocks of memory space 0 as items, with one section for every unit of time from 0 on."""
    items, item = items_of(problem, 0)
    owner, lower, upper, raw = parts_of(
        problem, np.flatnonzero((problem.space == 0) & (problem.size > 0)), item
    )
    order = np.lexsort((lower, owner))
    return dataclasses.replace(
        items,
        count=int(upper.max(initial=0)),
        part_first=lower[order],
        part_last=upper[order] - 1,
        part_height=(-(-raw // items.grain) * items.grain)[order],
    )


def _moves(
    arrays: GraphArrays, order: list[int], step: int, first: int, last: int
) -> Iterator[list[int]]:
    """Orders in which a stretch of dead steps first..last begins after `step`, or ends before."""
    position = arrays.positions(order)
    at = first - 1
    killer = order[at]
    after = arrays.succ_idx[arrays.succ_ptr[killer] : arrays.succ_ptr[killer + 1]]
    stop = int(position[after].min(initial=arrays.n))
    for to in sorted({step, step + 1, step + 2, (step + stop) // 2, stop - 1}):
        if step <= to < stop:
            yield order[:at] + order[at + 1 : to + 1] + [killer] + order[to + 1 :]
    if last + 1 >= arrays.n:
        return
    maker = order[last + 1]
    before = arrays.pred_idx[arrays.pred_ptr[maker] : arrays.pred_ptr[maker + 1]]
    low = int(position[before].max(initial=-1)) + 1
    for to in sorted({step, step - 1, (step + low) // 2, low}, reverse=True):
        if low <= to <= step:
            yield order[:to] + [maker] + order[to : last + 1] + order[last + 2 :]


_FILLS = 4  # parts that are brought into a stretch, at each of its ends


def _fills(
    arrays: GraphArrays,
    order: list[int],
    items: Items,
    step: int,
    size: int,
    first: int,
    last: int,
) -> Iterator[list[int]]:
    """Orders in which a part that is live at `step` lies within the dead steps first..last.

    The part extends beyond these steps at one end. There the operator that bounds the stretch is
    moved behind the one that bounds the part, or the other way round. Only parts of at most `size`
    bytes can fill the stretch.
    """
    live = (items.part_first <= step) & (step <= items.part_last) & (items.part_height <= size)
    early = live & (items.part_first < first) & (items.part_last <= last)
    late = live & (items.part_first >= first) & (items.part_last > last)
    for begin in np.sort(items.part_first[early])[::-1][:_FILLS].tolist():
        yield from _swapped(arrays, order, begin, first - 1)
    for end in np.sort(items.part_last[late])[:_FILLS].tolist():
        yield from _swapped(arrays, order, last + 1, end)


def _swapped(arrays: GraphArrays, order: list[int], low: int, high: int) -> Iterator[list[int]]:
    """Orders in which the operator at step `high` runs right before that at step `low`.

    Either of the two moves there, with nothing else; orders that are not legal are left out.
    """
    if not 0 <= low < high < arrays.n:
        return
    position = arrays.positions(order)
    one, two = order[low], order[high]
    before = arrays.pred_idx[arrays.pred_ptr[two] : arrays.pred_ptr[two + 1]]
    if int(position[before].max(initial=-1)) < low:
        yield order[:low] + [two] + order[low:high] + order[high + 1 :]
    after = arrays.succ_idx[arrays.succ_ptr[one] : arrays.succ_ptr[one + 1]]
    if int(position[after].min(initial=arrays.n)) > high:
        yield order[:low] + order[low + 1 : high + 1] + [one] + order[high + 1 :]
