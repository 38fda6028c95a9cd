"""Repairs a packing and the order of operators together.

What sticks out of a packing by little often fits if some tensor lived a few steps less. So tries of
local repair (repair.py) alternate with moves of single operators: of one that begins or ends a
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
from olla_xla.place.exact.restarts import Budget
from olla_xla.place.repair import fit, overlapping, put, relocate
from olla_xla.place.tensors.blocks import blocks_of, hand_overs, inside_name
from olla_xla.problem.graph import TensorGraph

__all__ = ["repaired_together"]

_TRIES, _MOVES = 2000, 500
"""Of local repair and of operators, in turn."""

_SOME = (6, 40, 15)
_PATIENCE = 300
_BUMP = 1.2

_AT_TARGET = 0.4
"""Share of moves for what sticks out itself, not for what meets it."""

_NEAR = 20
"""Steps of a short move, at most."""


class _Graph(NamedTuple):
    """The fields of GraphArrays that decide when tensors live, and which hand-overs must stay.

    Attributes:
      passes: [pairs] whether memory passes on by the pair. longer: and the operand is live at the
        step all the same.
    """

    source: np.ndarray
    live_in: np.ndarray
    live_out: np.ndarray
    sink_ptr: np.ndarray
    sink_idx: np.ndarray
    in_ptr: np.ndarray
    in_idx: np.ndarray
    out_ptr: np.ndarray
    out_idx: np.ndarray
    pred_ptr: np.ndarray
    pred_idx: np.ndarray
    succ_ptr: np.ndarray
    succ_idx: np.ndarray
    pair_b: np.ndarray
    pair_a: np.ndarray
    pair_must: np.ndarray
    passes: np.ndarray
    longer: np.ndarray


class _Parts(NamedTuple):
    """The parts of each item; sections are steps.

    Attributes:
      ptr, first, last, height: as in Items. tensor: of each part; -1 - v for the inside of operator
        v. item, inside: the item of each tensor and of each operator's inside, or -1.
      size: [items] bytes. movable: items below this number are not live everywhere.
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
    steps, position = np.array(order, np.int64), arrays.positions(order)
    best, top = (steps.copy(), offset.copy()), int(np.max(offset + parts.size[:count], initial=0))
    turn = 1000 * seed
    while top > goal and budget.left() > 0:
        turn += 1
        ends = parts.ptr[count]
        shapes = (parts.ptr[: count + 1], *(row[:ends] for row in parts[1:4]))
        offset, placed = relocate(
            offset, *shapes, parts.size[:count], goal, _TRIES, turn,
            _SOME[turn % len(_SOME)], _PATIENCE, _BUMP,
        )  # fmt: skip
        placed += _move(
            steps, position, offset, parts, fixed, goal, peak, _MOVES, turn, _AT_TARGET, _NEAR
        )
        budget.charge(int(placed), 0.0)
        height = int(np.max(offset + parts.size[:count]))
        if height < top:
            best, top = (steps.copy(), offset.copy()), height
    steps, offset = best
    whole = np.concatenate([floor + offset, always])
    return steps.tolist(), dict(zip(names, whole[owner].tolist(), strict=True)), floor + top


def _parts(
    arrays: GraphArrays, order: Sequence[int], alignment: int
) -> tuple[_Parts, _Graph] | None:
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
    given = {(b, a): step for b, a, step, _ in hand_overs(arrays, position)}
    pairs = list(zip(arrays.pair_b.tolist(), arrays.pair_a.tolist(), strict=True))
    passes = np.array([pair in given for pair in pairs], np.bool_)
    longer = np.array([p in given and spans[p[1], 1] > given[p] for p in pairs], np.bool_)
    named = {name: getattr(arrays, name) for name in _Graph._fields if hasattr(arrays, name)}
    fixed = _Graph(**named, passes=passes, longer=longer)
    parts = _Parts(ptr, first, last, height, tensor, item_of, inside, size, int(n - always.sum()))
    return parts, fixed


def _settled(parts: _Parts, start: np.ndarray, goal: int) -> np.ndarray:
    """Offsets of what is movable, above nothing else: first fit in the order of `start`."""
    count = parts.movable
    total = parts.ptr[count]
    placed = np.empty((5, total), np.int64)
    shapes = (parts.ptr[: count + 1], *(row[:total] for row in parts[1:4]))
    offset = np.zeros(count, np.int64)
    done = 0
    for i in np.argsort(start[:count], kind="stable").tolist():
        offset[i] = fit(i, *shapes[:3], parts.size[i], goal, 0, placed, done)
        done = put(i, offset[i], *shapes, placed, done)
    return offset


@jit
def _move(
    order: np.ndarray,
    position: np.ndarray,
    offset: np.ndarray,
    parts: _Parts,
    graph: _Graph,
    goal: int,
    peak: int,
    tries: int,
    seed: int,
    at_target: float,
    near: int,
) -> int:  # pragma: no cover
    """Moves operators; changes `order`, `position`, `offset`, and when parts live, in place.

    Returns:
      Items placed.
    """
    np.random.seed(seed)
    n, count = len(order), parts.movable
    total = parts.ptr[count]
    first, last = parts.first.copy(), parts.last.copy()
    spans = np.empty((len(graph.source), 2), np.int64)
    flags = np.empty((2, len(graph.source)), np.bool_)
    load = np.empty(n + 1, np.int64)
    out, met = np.empty(count, np.int64), np.empty(count, np.int64)
    mark = np.zeros(len(parts.size), np.bool_)
    taken, fresh, key = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count)
    placed = np.empty((5, total), np.int64)
    by_offset = np.argsort(offset, kind="mergesort")
    spent = 0
    for _ in range(tries):
        outs = 0
        for i in range(count):
            if offset[i] + parts.size[i] > goal:
                out[outs] = i
                outs += 1
        if outs == 0:
            break
        target = out[np.random.randint(outs)]
        subject = target
        if np.random.random() >= at_target:
            m = overlapping(target, parts.ptr[: count + 1], parts.first, parts.last, met)
            if m > 0:
                subject = met[np.random.randint(m)]
        v = _end(graph, position, parts, subject)
        at = position[v]
        to = _destination(graph, position, v, near)
        if to == at:
            continue
        _shift(order, position, at, to)
        good = _spans(graph, position, spans, flags[0], flags[1])
        good = good and _lives(parts, position, spans, first, last, load) == peak
        if good:
            c = _disturbed(graph, parts, first, last, offset, goal, v, target, mark, taken)
            good = c > 0
        if good:
            kept = 0
            for i in by_offset:
                if mark[i]:
                    continue
                for q in range(parts.ptr[i], parts.ptr[i + 1]):
                    placed[0, kept], placed[1, kept] = first[q], last[q]
                    placed[2, kept], placed[3, kept] = offset[i], offset[i] + parts.height[q]
                    placed[4, kept] = i
                    kept += 1
            before, after = np.int64(0), np.int64(0)
            for k in range(c):
                i = taken[k]
                mark[i] = False
                before += min(parts.size[i], max(np.int64(0), offset[i] + parts.size[i] - goal))
                key[k] = -np.log(float(parts.size[i])) - np.random.random()
            mode = np.random.randint(3)
            for k in np.argsort(key[:c], kind="mergesort"):
                i = taken[k]
                x = fit(i, parts.ptr, first, last, parts.size[i], goal, mode, placed, kept)
                spent += 1
                fresh[i] = x
                after += min(parts.size[i], max(np.int64(0), x + parts.size[i] - goal))
                if after > before:
                    good = False
                    break
                kept = put(i, x, parts.ptr, first, last, parts.height, placed, kept)
            if good:
                for k in range(c):
                    offset[taken[k]] = fresh[taken[k]]
                parts.first[:] = first
                parts.last[:] = last
                by_offset = np.argsort(offset, kind="mergesort")
        if not good:
            _shift(order, position, to, at)
    return spent


@jit
def _end(graph: _Graph, position: np.ndarray, parts: _Parts, item: int) -> int:  # pragma: no cover
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
def _destination(graph: _Graph, position: np.ndarray, v: int, near: int) -> int:  # pragma: no cover
    """A random step to which operator v may move: as far as it goes, near, or anywhere."""
    at, low, high = position[v], np.int64(0), np.int64(len(position) - 1)
    for k in range(graph.out_ptr[v], graph.out_ptr[v + 1]):
        if graph.live_in[graph.out_idx[k]]:
            return int(at)
    for k in range(graph.pred_ptr[v], graph.pred_ptr[v + 1]):
        low = max(low, position[graph.pred_idx[k]] + 1)
    for k in range(graph.succ_ptr[v], graph.succ_ptr[v + 1]):
        high = min(high, position[graph.succ_idx[k]] - 1)
    kind = np.random.randint(4)
    if kind == 0:
        return int(low)
    if kind == 1:
        return int(high)
    if kind == 2:
        return int(np.random.randint(low, high + 1))
    return int(min(high, max(low, at + np.random.randint(-near, near + 1))))


@jit
def _shift(order: np.ndarray, position: np.ndarray, at: int, to: int) -> None:  # pragma: no cover
    """Moves the operator at step `at` to step `to`."""
    v = order[at]
    step = 1 if to > at else -1
    for s in range(at, to, step):
        order[s] = order[s + step]
        position[order[s]] = s
    order[to] = v
    position[v] = to


@jit
def _spans(
    graph: _Graph,
    position: np.ndarray,
    spans: np.ndarray,
    given: np.ndarray,
    taken: np.ndarray,
) -> bool:  # pragma: no cover
    """Writes when each tensor is live, as lifetimes.py has it; false if memory passes otherwise."""
    given[:] = False
    taken[:] = False
    for i in range(len(spans)):
        stop = position[graph.source[i]]
        spans[i, 0] = 0 if graph.live_in[i] else stop
        if graph.live_out[i]:
            spans[i, 1] = len(position)
            continue
        for k in range(graph.sink_ptr[i], graph.sink_ptr[i + 1]):
            stop = max(stop, position[graph.sink_idx[k]])
        spans[i, 1] = stop + 1
    for k in range(len(graph.pair_b)):
        b, a = graph.pair_b[k], graph.pair_a[k]
        step = position[graph.source[b]]
        passes = not given[a] and spans[a, 1] == step + 1
        passes = passes and (not taken[b] or graph.pair_must[k])
        if passes != graph.passes[k]:
            return False
        if passes:
            given[a] = True
            taken[b] = True
            spans[a, 1] = step
    for k in range(len(graph.pair_b)):
        if graph.longer[k]:
            spans[graph.pair_a[k], 1] += 1
    return True


@jit
def _lives(
    parts: _Parts,
    position: np.ndarray,
    spans: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    load: np.ndarray,
) -> int:  # pragma: no cover
    """Writes when each part lives; returns the largest live sum, or -1 if some part never does."""
    load[:] = 0
    for q in range(len(parts.tensor)):
        t = parts.tensor[q]
        if t < 0:
            first[q] = last[q] = position[-1 - t]
        else:
            first[q], last[q] = spans[t, 0], spans[t, 1] - 1
            if last[q] < first[q]:
                return -1
        load[first[q]] += parts.height[q]
        load[last[q] + 1] -= parts.height[q]
    top, live = np.int64(0), np.int64(0)
    for s in range(len(position)):
        live += load[s]
        top = max(top, live)
    return int(top)


@jit
def _disturbed(
    graph: _Graph,
    parts: _Parts,
    first: np.ndarray,
    last: np.ndarray,
    offset: np.ndarray,
    goal: int,
    v: int,
    target: int,
    mark: np.ndarray,
    taken: np.ndarray,
) -> int:  # pragma: no cover
    """Marks and lists what to place anew after v was moved; 0 if an item then meets itself.

    That is the target, and of v's operands and outputs those that stick out or overlap another.
    Only their lives have changed against others'.
    """
    count = parts.movable
    touched = np.empty(
        graph.in_ptr[v + 1] - graph.in_ptr[v] + graph.out_ptr[v + 1] - graph.out_ptr[v] + 1,
        np.int64,
    )
    c = 0
    for k in range(graph.in_ptr[v], graph.in_ptr[v + 1]):
        touched[c] = parts.item[graph.in_idx[k]]
        c += 1
    for k in range(graph.out_ptr[v], graph.out_ptr[v + 1]):
        touched[c] = parts.item[graph.out_idx[k]]
        c += 1
    touched[c] = parts.inside[v]
    for i in touched:
        if i < 0:
            continue
        for p in range(parts.ptr[i], parts.ptr[i + 1]):
            for q in range(p + 1, parts.ptr[i + 1]):
                if first[p] <= last[q] and first[q] <= last[p]:
                    return 0
    mark[target] = True
    taken[0] = target
    c = 1
    for i in touched:
        if i < 0 or i >= count or mark[i]:
            continue
        hit = offset[i] + parts.size[i] > goal
        for j in range(count):
            if hit:
                break
            if j == i or mark[j]:
                continue
            if offset[j] >= offset[i] + parts.size[i] or offset[i] >= offset[j] + parts.size[j]:
                continue
            for p in range(parts.ptr[i], parts.ptr[i + 1]):
                for q in range(parts.ptr[j], parts.ptr[j + 1]):
                    if (
                        first[p] <= last[q]
                        and first[q] <= last[p]
                        and offset[j] < offset[i] + parts.height[p]
                        and offset[i] < offset[j] + parts.height[q]
                    ):
                        hit = True
        if hit:
            mark[i] = True
            taken[c] = i
            c += 1
    return c
