"""Repairs a packing and the order of operators together.

What sticks out of a packing by little often fits if some tensor lived a few steps less. So tries of
local repair (relocate.py) alternate with moves of single operators: of one that begins or ends a
tensor that sticks out, or one that meets it in time, to another step between its predecessors and
its successors. A move is kept where the largest live sum stays what it is, memory passes on from
the same operands to the same outputs, and no more sticks out once the tensors that then overlap
another are placed anew. Most moves change nothing that counts, and are kept all the same: they
lead away from where the repair is stuck. All randomness is seeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import jit
from olla_xla.memory.lifetimes import live_spans, passes_on
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.placed_parts import (
    FIRST,
    ITEM,
    LAST,
    LOW,
    LOWEST,
    TOP,
    Shapes,
    excess,
    fit,
    overlapping,
    put,
    sticking_out,
)
from olla_xla.place.relocate import ANYWHERE, Scratch, place_anew, relocate, scratch
from olla_xla.place.tensors.blocks import blocks_of, inside_name
from olla_xla.problem.graph import TensorGraph

__all__ = ["repaired_together"]

_TRIES, _MOVES = 2000, 500
"""Tries of local repair, and moves of operators, which alternate."""

_AT_TARGET = 0.4
"""Share of moves for what sticks out itself, not for what meets it."""

_NEAR = 20
"""Steps of a short move, at most."""

_EARLIEST, _LATEST, _FAR = 0, 1, 2
"""Of four ways for an operator to move: as far as it goes, anywhere between; else near."""


class _HandOvers(NamedTuple):
    """Which pairs of the graph memory passes on by, and must go on doing so.

    Attributes:
      passes: bool [pairs]. longer: bool [pairs], of those, the operand is live at the step all the
        same.
    """

    passes: np.ndarray
    longer: np.ndarray


class _Order(NamedTuple):
    """An order of operators: int64 [n], the operator of each step and the step of each operator."""

    operator: np.ndarray
    position: np.ndarray


class _Lives(NamedTuple):
    """When parts live under an order that is tried, and scratch space to find out.

    Attributes:
      first, last: int64 [parts], steps, both inclusive.
      spans, passes: [m, 2] and [pairs], as `live_spans` writes them. load: int64 [n + 1] bytes.
    """

    first: np.ndarray
    last: np.ndarray
    spans: np.ndarray
    passes: np.ndarray
    load: np.ndarray


class _Parts(NamedTuple):
    """The parts of each item; sections are steps.

    Attributes:
      ptr, first, last, height, size: as in Shapes.
      tensor: int64 [parts], of each part; -1 - v for the inside of operator v.
      item, inside: int64 [m] and [n], the item of each tensor and of each operator's inside, or -1.
      movable: items below this number are not live everywhere.
    """

    ptr: np.ndarray
    first: np.ndarray
    last: np.ndarray
    height: np.ndarray
    tensor: np.ndarray
    item: np.ndarray
    inside: np.ndarray
    size: np.ndarray
    movable: int

    def shapes(self) -> Shapes:
        """The items that are not live everywhere."""
        count, end = self.movable, self.ptr[self.movable]
        first, last, height = self.first[:end], self.last[:end], self.height[:end]
        return Shapes(self.ptr[: count + 1], first, last, height, self.size[:count])


def repaired_together(
    graph: TensorGraph,
    order: Sequence[int],
    offsets: Mapping[str, tuple[int, int]],
    alignment: int,
    budget: Budget,
    seed: int = 0,
) -> tuple[list[int], dict[str, int], int] | None:
    """Looks for an order of the same largest live sum and a packing without fragmentation.

    Args:
      graph, order, alignment: as in `place_graph`. offsets: a placement under that order, name ->
        (offset, size). budget: is charged one node for each item placed. seed: other tries.

    Returns:
      (order, offset of each tensor and of each operator's inside by name, bytes needed), the best
      found; None if a tensor passes its memory on at its own first step, or tensors of one buffer
      are live together: such graphs are not supported.
    """
    arrays = GraphArrays.of(graph)
    found = _parts(arrays, order, alignment)
    if found is None:
        return None
    parts, fixed = found
    count = parts.movable
    tensors = [graph.tensors[t].name if t >= 0 else "" for t in parts.tensor.tolist()]
    names = [
        name or inside_name(graph.operators[-1 - t].name)
        for name, t in zip(tensors, parts.tensor.tolist(), strict=True)
    ]
    loads = np.zeros(arrays.n + 1, np.int64)
    np.add.at(loads, parts.first, parts.height)
    np.subtract.at(loads, parts.last + 1, parts.height)
    peak = int(np.cumsum(loads).max(initial=0))
    below = parts.size[count:]
    floor, always = int(below.sum()), np.cumsum(below) - below
    goal = peak - floor
    owner = np.repeat(np.arange(len(parts.size)), np.diff(parts.ptr))
    start = np.zeros(len(parts.size), np.int64)
    start[owner] = [offsets[name][0] for name in names]
    offset = _settled(parts, start, goal)
    steps = _Order(np.array(order, np.int64), arrays.positions(order))
    best, top = (
        (steps.operator.copy(), offset.copy()),
        int(np.max(offset + parts.size[:count], initial=0)),
    )
    seed *= 1000
    while top > goal and budget.left() > 0:
        seed += 1
        offset, placed = relocate(offset, parts.shapes(), goal, _TRIES, seed)
        placed += _move(steps, offset, parts, arrays, fixed, goal, peak, seed)
        budget.charge(int(placed), 0.0)
        height = int(np.max(offset + parts.size[:count]))
        if height < top:
            best, top = (steps.operator.copy(), offset.copy()), height
    steps, offset = best
    whole = np.concatenate([floor + offset, always])
    return steps.tolist(), dict(zip(names, whole[owner].tolist(), strict=True)), floor + top


def _parts(
    arrays: GraphArrays, order: Sequence[int], alignment: int
) -> tuple[_Parts, _HandOvers] | None:
    """Items, those that are live everywhere last; None if a graph is not supported."""
    blocks = blocks_of(arrays, order, alignment)
    spans, position = blocks.spans, blocks.position
    kept = (arrays.bytes > 0) & (spans[:, 0] < spans[:, 1])
    if ((arrays.bytes > 0) & ~kept).any():
        return None
    keep, calls = np.flatnonzero(kept), np.flatnonzero(blocks.inside > 0)
    groups = np.concatenate([blocks.group[keep], len(blocks.group) + calls])
    first = np.concatenate([spans[keep, 0], position[calls]])
    last = np.concatenate([spans[keep, 1] - 1, position[calls]])
    height = np.concatenate([blocks.sizes[keep], blocks.inside[calls]])
    tensor = np.concatenate([keep, -1 - calls])
    numbers, item = np.unique(groups, return_inverse=True)
    n = len(numbers)
    size, low = np.zeros(n, np.int64), np.full(n, np.iinfo(np.int64).max)
    np.maximum.at(size, item, height)
    np.minimum.at(low, item, height)
    steps = np.zeros(n, np.int64)
    np.add.at(steps, item, last - first + 1)
    always = (steps == arrays.n) & (low == size)
    rank = np.argsort(always, kind="stable")
    number = np.empty(n, np.int64)
    number[rank] = np.arange(n)
    item, size = number[item], size[rank]
    by = np.lexsort((first, item))
    item, tensor, height, first, last = item[by], tensor[by], height[by], first[by], last[by]
    if ((item[1:] == item[:-1]) & (first[1:] <= last[:-1])).any():
        return None
    ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(item, minlength=n), out=ptr[1:])
    item_of, inside = np.full(arrays.m, -1), np.full(arrays.n, -1)
    item_of[tensor[tensor >= 0]] = item[tensor >= 0]
    inside[-1 - tensor[tensor < 0]] = item[tensor < 0]
    passes = passes_on(arrays, position)
    longer = passes & (spans[arrays.pair_a, 1] > position[arrays.source[arrays.pair_b]])
    parts = _Parts(ptr, first, last, height, tensor, item_of, inside, size, int(n - always.sum()))
    return parts, _HandOvers(passes, longer)


def _settled(parts: _Parts, start: np.ndarray, goal: int) -> np.ndarray:
    """Offsets of what is movable, above nothing else: first fit in the order of `start`."""
    shapes = parts.shapes()
    placed = np.empty((5, len(shapes.first)), np.int64)
    offset = np.zeros(parts.movable, np.int64)
    done = 0
    for i in np.argsort(start[: parts.movable], kind="stable").tolist():
        offset[i] = fit(i, shapes, goal, LOWEST, placed, done)
        done = put(i, offset[i], shapes, placed, done)
    return offset


@jit
def _move(
    steps: _Order,
    offset: np.ndarray,
    parts: _Parts,
    graph: GraphArrays,
    fixed: _HandOvers,
    goal: int,
    peak: int,
    seed: int,
) -> int:
    """Moves operators; changes `steps`, `offset` and when parts live, in place.

    Args:
      steps: a legal order. offset: int64 [movable items] bytes. parts: of all items.
      graph: the graph. fixed: hand-overs that must stay.
      goal: bytes for the items that are not live everywhere. peak: the largest live sum, in bytes.
      seed: of the random numbers.

    Returns:
      Items placed.
    """
    np.random.seed(seed)
    n, m = len(steps.position), len(graph.source)
    lives = _Lives(
        parts.first.copy(),
        parts.last.copy(),
        np.empty((m, 2), np.int64),
        np.empty(len(fixed.passes), np.bool_),
        np.empty(n + 1, np.int64),
    )
    ends = parts.ptr[: parts.movable + 1]
    shapes = Shapes(parts.ptr, lives.first, lives.last, parts.height, parts.size)
    trial, weight = scratch(len(parts.size)), np.ones(len(parts.size))
    out = np.empty(parts.movable, np.int64)
    placed = np.empty((5, parts.ptr[parts.movable]), np.int64)
    by_offset = np.argsort(offset, kind="mergesort")
    spent = 0
    for _ in range(_MOVES):
        outs = sticking_out(offset, parts.size, goal, out)
        if outs == 0:
            break
        target = out[np.random.randint(outs)]
        now = Shapes(ends, parts.first, parts.last, parts.height, parts.size)
        v = _end(graph, steps.position, parts, _subject(target, now, trial.near))
        at = steps.position[v]
        to = _destination(graph, steps.position, v)
        if to == at:
            continue
        _shift(steps, at, to)
        taken = 0
        if _relive(graph, steps.position, parts, fixed, lives) == peak:
            taken = _disturbed(graph, parts, lives, offset, goal, v, target, trial)
        if taken == 0:
            _shift(steps, to, at)
            continue
        kept = _others(by_offset, offset, shapes, trial.mark, placed)
        limit = _arrange(taken, offset, parts.size, goal, trial)
        _, cost, _, count = place_anew(
            taken, ANYWHERE, limit, weight, shapes, goal, placed, kept, trial
        )
        spent += count
        if cost > limit:
            _shift(steps, to, at)
            continue
        for i in trial.taken[:taken]:
            offset[i] = trial.fresh[i]
        parts.first[:] = lives.first
        parts.last[:] = lives.last
        by_offset = np.argsort(offset, kind="mergesort")
    return spent


@jit
def _subject(target: int, shapes: Shapes, near: np.ndarray) -> int:
    """The item for which an operator is to move: the target, or one that it meets in time."""
    if np.random.random() >= _AT_TARGET:
        m = overlapping(target, shapes, near)
        if m > 0:
            return int(near[np.random.randint(m)])
    return target


@jit
def _end(graph: GraphArrays, position: np.ndarray, parts: _Parts, item: int) -> int:
    """An operator at which a random part of an item begins or ends."""
    q = np.random.randint(parts.ptr[item], parts.ptr[item + 1])
    t = parts.tensor[q]
    if t < 0:
        return int(-1 - t)
    v = graph.source[t]
    if np.random.random() < 0.5:
        for k in range(graph.sink_ptr[t], graph.sink_ptr[t + 1]):
            if position[graph.sink_idx[k]] > position[v]:
                v = graph.sink_idx[k]
    return int(v)


@jit
def _destination(graph: GraphArrays, position: np.ndarray, v: int) -> int:
    """A random step to which operator v may move: as far as it goes, near, or anywhere."""
    at, low, high = position[v], np.int64(0), np.int64(len(position) - 1)
    for k in range(graph.out_ptr[v], graph.out_ptr[v + 1]):
        if graph.live_in[graph.out_idx[k]]:
            return int(at)
    for k in range(graph.pred_ptr[v], graph.pred_ptr[v + 1]):
        low = max(low, position[graph.pred_idx[k]] + 1)
    for k in range(graph.succ_ptr[v], graph.succ_ptr[v + 1]):
        high = min(high, position[graph.succ_idx[k]] - 1)
    way = np.random.randint(4)
    if way == _EARLIEST:
        return int(low)
    if way == _LATEST:
        return int(high)
    if way == _FAR:
        return int(np.random.randint(low, high + 1))
    return int(min(high, max(low, at + np.random.randint(-_NEAR, _NEAR + 1))))


@jit
def _shift(steps: _Order, at: int, to: int) -> None:
    """Moves the operator at step `at` to step `to`."""
    v = steps.operator[at]
    step = 1 if to > at else -1
    for s in range(at, to, step):
        steps.operator[s] = steps.operator[s + step]
        steps.position[steps.operator[s]] = s
    steps.operator[to] = v
    steps.position[v] = to


@jit
def _relive(
    graph: GraphArrays, position: np.ndarray, parts: _Parts, fixed: _HandOvers, lives: _Lives
) -> int:
    """Writes when each part lives; returns the largest live sum in bytes.

    -1 if some part never lives, or memory passes on by other pairs than it must.
    """
    met = np.zeros((2, graph.m), np.bool_)
    live_spans(graph, position, lives.spans, lives.passes, met)
    for k in range(len(fixed.passes)):
        if lives.passes[k] != fixed.passes[k]:
            return -1
    for k in range(len(fixed.longer)):
        if fixed.longer[k]:
            lives.spans[graph.pair_a[k], 1] += 1
    lives.load[:] = 0
    for q in range(len(parts.tensor)):
        t = parts.tensor[q]
        if t < 0:
            lives.first[q] = lives.last[q] = position[-1 - t]
        else:
            lives.first[q], lives.last[q] = lives.spans[t, 0], lives.spans[t, 1] - 1
            if lives.last[q] < lives.first[q]:
                return -1
        lives.load[lives.first[q]] += parts.height[q]
        lives.load[lives.last[q] + 1] -= parts.height[q]
    top, live = np.int64(0), np.int64(0)
    for s in range(len(position)):
        live += lives.load[s]
        top = max(top, live)
    return int(top)


@jit
def _others(
    by_offset: np.ndarray,
    offset: np.ndarray,
    shapes: Shapes,
    mark: np.ndarray,
    placed: np.ndarray,
) -> int:
    """Writes the placed parts of all items that are not marked; returns their number."""
    count = 0
    for i in by_offset:
        if mark[i]:
            continue
        for q in range(shapes.ptr[i], shapes.ptr[i + 1]):
            placed[FIRST, count], placed[LAST, count] = shapes.first[q], shapes.last[q]
            placed[LOW, count], placed[TOP, count] = offset[i], offset[i] + shapes.height[q]
            placed[ITEM, count] = i
            count += 1
    return count


@jit
def _arrange(taken: int, offset: np.ndarray, size: np.ndarray, goal: int, trial: Scratch) -> float:
    """Sets the keys by which items are placed anew: large ones first, more or less.

    Takes the marks off, too; returns the items' bytes above the goal.
    """
    above = 0.0
    for k in range(taken):
        i = trial.taken[k]
        trial.mark[i] = False
        above += excess(offset[i], size[i], goal)
        trial.key[k] = -np.log(float(size[i])) - np.random.random()
    return above


@jit
def _disturbed(
    graph: GraphArrays,
    parts: _Parts,
    lives: _Lives,
    offset: np.ndarray,
    goal: int,
    v: int,
    target: int,
    trial: Scratch,
) -> int:
    """Marks and lists what to place anew after v was moved; 0 if an item then meets itself.

    That is the target, and of v's operands and outputs those that stick out or overlap another.
    Only their lives have changed against others'.
    """
    touched = _touched(graph, parts, v)
    for i in touched:
        for p in range(parts.ptr[i], parts.ptr[i + 1]):
            for q in range(p + 1, parts.ptr[i + 1]):
                if lives.first[p] <= lives.last[q] and lives.first[q] <= lives.last[p]:
                    return 0
    trial.mark[target] = True
    trial.taken[0] = target
    count = 1
    for i in touched:
        if i >= parts.movable or trial.mark[i]:
            continue
        out = offset[i] + parts.size[i] > goal
        if out or _collides(i, parts, lives, offset, trial.mark):
            trial.mark[i] = True
            trial.taken[count] = i
            count += 1
    return count


@jit
def _touched(graph: GraphArrays, parts: _Parts, v: int) -> np.ndarray:
    """int64, the items of the tensors that v reads and makes, and of its inside."""
    reads = graph.in_idx[graph.in_ptr[v] : graph.in_ptr[v + 1]]
    makes = graph.out_idx[graph.out_ptr[v] : graph.out_ptr[v + 1]]
    items = np.empty(len(reads) + len(makes) + 1, np.int64)
    for k in range(len(reads)):
        items[k] = parts.item[reads[k]]
    for k in range(len(makes)):
        items[len(reads) + k] = parts.item[makes[k]]
    items[-1] = parts.inside[v]
    return items[items >= 0]


@jit
def _collides(i: int, parts: _Parts, lives: _Lives, offset: np.ndarray, mark: np.ndarray) -> bool:
    """Whether item i overlaps another that is not marked, in time and in its place."""
    for j in range(parts.movable):
        if j == i or mark[j]:
            continue
        if offset[j] >= offset[i] + parts.size[i] or offset[i] >= offset[j] + parts.size[j]:
            continue
        for p in range(parts.ptr[i], parts.ptr[i + 1]):
            for q in range(parts.ptr[j], parts.ptr[j + 1]):
                if (
                    lives.first[p] <= lives.last[q]
                    and lives.first[q] <= lives.last[p]
                    and offset[j] < offset[i] + parts.height[p]
                    and offset[i] < offset[j] + parts.height[q]
                ):
                    return True
    return False
