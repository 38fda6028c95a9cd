"""Moves of single operators that keep the largest live sum, with what then overlaps repacked.

An operator moves that begins or ends a tensor that exceeds the target height of the packing, or one
that meets it in time, to another step between its predecessors and its successors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.papers.reordering.item_parts import HandOvers, ItemParts
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.jit import jit
from olla_xla.memory.lifetimes import live_spans
from olla_xla.place.placed_parts import (
    FIRST,
    ITEM,
    LAST,
    LOW,
    TOP,
    Shapes,
    excess,
    overlapping,
    sticking_out,
)
from olla_xla.place.relocate import ANYWHERE, Scratch, repack, scratch

_MOVES = 500
"""Of operators, between tries of local repair."""

_AT_TARGET = 0.4
"""Share of moves for what exceeds the target height itself, not for what meets it."""

_NEAR = 20
"""Steps of a short move, at most."""

_EARLIEST, _LATEST, _FAR = 0, 1, 2
"""Of four ways for an operator to move: as far as it goes, anywhere between; else near."""


class Order(NamedTuple):
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


@jit
def move(
    steps: Order,
    offset: np.ndarray,
    parts: ItemParts,
    graph: GraphArrays,
    fixed: HandOvers,
    target_height: int,
    peak: int,
    seed: int,
) -> int:
    """Moves operators; changes `steps`, `offset` and when parts live, in place.

    Args:
      steps: a legal order. offset: int64 [movable items] bytes. parts: of all items.
      graph: the graph. fixed: hand-overs that must stay.
      target_height: bytes for the items that are not live everywhere. peak: the largest live sum,
        in bytes.
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
        outs = sticking_out(offset, parts.size, target_height, out)
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
            taken = _disturbed(graph, parts, lives, offset, target_height, v, target, trial)
        if taken == 0:
            _shift(steps, to, at)
            continue
        kept = _others(by_offset, offset, shapes, trial.mark, placed)
        limit = _arrange(taken, offset, parts.size, target_height, trial)
        _, cost, _, count = repack(
            taken, ANYWHERE, limit, weight, shapes, target_height, placed, kept, trial
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
def _end(graph: GraphArrays, position: np.ndarray, parts: ItemParts, item: int) -> int:
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
def _shift(steps: Order, at: int, to: int) -> None:
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
    graph: GraphArrays, position: np.ndarray, parts: ItemParts, fixed: HandOvers, lives: _Lives
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
def _arrange(
    taken: int, offset: np.ndarray, size: np.ndarray, target_height: int, trial: Scratch
) -> float:
    """Sets the keys by which items are repacked: large ones first, more or less.

    Takes the marks off, too; returns the items' bytes above the target height.
    """
    above = 0.0
    for k in range(taken):
        i = trial.taken[k]
        trial.mark[i] = False
        above += excess(offset[i], size[i], target_height)
        trial.key[k] = -np.log(float(size[i])) - np.random.random()
    return above


@jit
def _disturbed(
    graph: GraphArrays,
    parts: ItemParts,
    lives: _Lives,
    offset: np.ndarray,
    target_height: int,
    v: int,
    target: int,
    trial: Scratch,
) -> int:
    """Marks and lists what to place anew after v was moved; 0 if an item then meets itself.

    That is the target, and of v's operands and outputs those that exceed the target height or
    overlap another. Only their lives have changed against others'.
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
        out = offset[i] + parts.size[i] > target_height
        if out or _collides(i, parts, lives, offset, trial.mark):
            trial.mark[i] = True
            trial.taken[count] = i
            count += 1
    return count


@jit
def _touched(graph: GraphArrays, parts: ItemParts, v: int) -> np.ndarray:
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
def _collides(
    i: int, parts: ItemParts, lives: _Lives, offset: np.ndarray, mark: np.ndarray
) -> bool:
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
