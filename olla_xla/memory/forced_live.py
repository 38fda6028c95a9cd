"""Certified lower bounds on the lifetime peak: they hold for every order of the graph.

Forced-live bound: while operator `v` runs, whatever the order, a tensor is live if its source is
`v` or an ancestor of `v` (or it is live from the start) and one of its users is `v` or a descendant
of `v` (or it is live to the end). Their bytes, plus the transient bytes of `v`, less what the
outputs of `v` could at most take over from inputs that may die there, bound the live bytes at `v`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.memory.jit import inner, loop
from olla_xla.problem.graph import TensorGraph

_BLOCK_WORDS = 16  # operators are taken in blocks of 64 times this many

_NEVER, _MAYBE, _SURELY = 0, 1, 2
"""Whether an input dies at an operator: in no order, perhaps in some, in every order."""


class _OperatorBlock(NamedTuple):
    """The operators first, ..., last - 1, and which of them come before and after each operator.

    Attributes:
      before: uint64 [n, words], for each operator u the bits of those that are u or an ancestor of
        u; bit k is operator first + k. after: the same for u and its descendants.
      near: int64 [any], all tensors with bytes that may be live at one of the operators.
      steps: int64 [64 words], overwritten: by how much live bytes rise at each operator.
    """

    first: int
    last: int
    before: NDArray[np.uint64]
    after: NDArray[np.uint64]
    near: NDArray[np.int64]
    steps: NDArray[np.int64]


def forced_live_bound(graph: TensorGraph | GraphArrays) -> tuple[int, int]:
    """A lower bound on the lifetime peak of any order, in bytes, and the operator at which so many
    bytes must be live; (0, -1) without operators.
    """
    forced = forced_live_bytes(graph)
    if not len(forced):
        return 0, -1
    v = int(np.argmax(forced))
    return int(forced[v]), v


def forced_live_bytes(graph: TensorGraph | GraphArrays) -> NDArray[np.int64]:
    """int64 [n]: for each operator, a lower bound on the live bytes while it runs."""
    g = GraphArrays.of(graph)
    ids = np.arange(g.n)
    ordered = (g.pred_idx < np.repeat(ids, np.diff(g.pred_ptr))).all()
    topological = ids if ordered else topological_order(g)
    backward = np.ascontiguousarray(topological[::-1])
    rank = g.positions(topological)
    begins, ends = np.where(g.live_in, -1, rank[g.source]), rank[g.source]
    np.maximum.at(ends, np.repeat(np.arange(g.m), np.diff(g.sink_ptr)), rank[g.sink_idx])
    ends[g.live_out] = g.n
    total = g.transient + g.bytes[g.live_in & g.live_out].sum()
    words = min(_BLOCK_WORDS, g.n // 64 + 1)
    before = np.empty((g.n, words), np.uint64)
    after = np.empty((g.n, words), np.uint64)
    steps = np.empty(64 * words, np.int64)
    by_size = np.lexsort((g.bytes[g.pair_a], np.repeat(np.arange(g.n), np.diff(g.pair_ptr))))
    scratch = np.empty((4, max(g.m, len(g.pair_a))), np.int64)
    for first in range(0, g.n, 64 * words):
        last = min(first + 64 * words, g.n)
        low, high = rank[first:last].min(), rank[first:last].max()
        _reach(first, low, topological, g.pred_ptr, g.pred_idx, before)
        _reach(first, g.n - 1 - high, backward, g.succ_ptr, g.succ_idx, after)
        near = np.flatnonzero((begins <= high) & (ends >= low) & (g.bytes > 0))
        block = _OperatorBlock(first, last, before, after, near, steps)
        scratch[:3] = -1
        scratch[3] = _SURELY
        _account(g, block, by_size, total, scratch)
    return total


@loop
def _reach(
    first: int,
    skip: int,
    order: NDArray[np.int64],
    ptr: NDArray[np.int64],
    idx: NDArray[np.int64],
    reach: NDArray[np.uint64],
) -> None:
    """Writes to reach[v], for each operator v, the bits of those of a block of operators, from
    `first` on, that v is or depends on, if `order` runs along edges (else: that depend on v). The
    first `skip` operators in `order` are reached from none of them. `ptr`, `idx`: CSR, operator ->
    the ones next to it, which come before it in `order`.
    """
    words = reach.shape[1]
    for k in range(len(order)):
        v = order[k]
        for w in range(words):
            reach[v, w] = 0
        if k < skip:
            continue
        if first <= v < first + 64 * words:
            reach[v, (v - first) >> 6] |= np.uint64(1) << np.uint64((v - first) & 63)
        for e in range(ptr[v], ptr[v + 1]):
            u = idx[e]
            for w in range(words):
                reach[v, w] |= reach[u, w]


@loop
def _account(
    g: GraphArrays,
    block: _OperatorBlock,
    by_size: NDArray[np.int64],
    total: NDArray[np.int64],
    scratch: NDArray[np.int64],
) -> None:
    """Completes in `total` the lower bounds on live bytes at the operators of the block: adds
    tensors that must be live, and subtracts at each operator the most that its outputs can take
    over of inputs that may die there. Every input of an output's own buffer counts. Of the others,
    at most as many of one size as there are outputs for them; an output whose same-buffer input
    certainly dies takes no other.

    Args:
      g: the graph. block: of operators. total: int64 [n], bytes by operator, added to.
      by_size: int64 [pairs], each operator's pairs, sorted by the input's bytes.
      scratch: three rows of -1 for tensors and one of _SURELY for pairs, overwritten.
    """
    passed, served, counted, deaths = scratch[0], scratch[1], scratch[2], scratch[3]
    _add_forced(g, block, total)
    _find_deaths(g, block, deaths)
    _subtract_same_buffer(g, block, deaths, total, passed, served)
    _subtract_others(g, block, by_size, deaths, total, passed, served, counted)


@inner
def _add_forced(g: GraphArrays, block: _OperatorBlock, total: NDArray[np.int64]) -> None:
    """Adds the bytes of tensors to `total` at the operators of the block where they must be live;
    those that live from the start to the end are in it already.
    """
    full, one, words = ~np.uint64(0), np.uint64(1), block.before.shape[1]
    block.steps[:] = 0
    for i in block.near:
        if g.live_in[i] and g.live_out[i]:
            continue
        was = np.uint64(0)
        for w in range(words):
            bits = full if g.live_in[i] else block.after[g.source[i], w]
            if not g.live_out[i] and bits:
                needed = block.before[g.source[i], w]
                for k in range(g.sink_ptr[i], g.sink_ptr[i + 1]):
                    needed |= block.before[g.sink_idx[k], w]
                bits &= needed
            _change_where(block.steps, 64 * w, bits ^ (bits << one | was), g.bytes[i], was)
            was = bits >> np.uint64(63)
    live = np.int64(0)
    for k in range(block.last - block.first):
        live += block.steps[k]
        total[block.first + k] += live


@inner
def _change_where(
    steps: NDArray[np.int64], first: int, bits: np.uint64, bytes: int, was: np.uint64
) -> None:
    """Adds `bytes` to and subtracts it from steps[first + k] in turn, for every bit k set in
    `bits`. `was`: 1 if it is subtracted first, else 0.
    """
    change = -bytes if was else bytes
    k = first
    while bits:
        while not bits & np.uint64(0xFF):
            bits >>= np.uint64(8)
            k += 8
        if bits & np.uint64(1):
            steps[k] += change
            change = -change
        bits >>= np.uint64(1)
        k += 1


@inner
def _find_deaths(g: GraphArrays, block: _OperatorBlock, deaths: NDArray[np.int64]) -> None:
    """Writes for each (output, input) pair of the block's operators whether the input dies at
    operator v, which makes the output: in no order (_NEVER) if another reader is a descendant of v,
    in every order (_SURELY, as `deaths` says at first) if all others are ancestors of v, else
    _MAYBE. `deaths`: int64 [pairs of the block], changed in place.
    """
    begin, end = g.pair_ptr[block.first], g.pair_ptr[block.last]
    for k in range(begin, end):
        a, v = g.pair_a[k], g.source[g.pair_b[k]]
        word, bit = (v - block.first) >> 6, np.uint64(1) << np.uint64((v - block.first) & 63)
        for e in range(g.sink_ptr[a], g.sink_ptr[a + 1]):
            s = g.sink_idx[e]
            if s != v and block.before[s, word] & bit:
                deaths[k - begin] = _NEVER
                break
            if s != v and not block.after[s, word] & bit:
                deaths[k - begin] = _MAYBE


@inner
def _subtract_same_buffer(
    g: GraphArrays,
    block: _OperatorBlock,
    deaths: NDArray[np.int64],
    total: NDArray[np.int64],
    passed: NDArray[np.int64],
    served: NDArray[np.int64],
) -> None:
    """Subtracts from `total` what outputs may take over from inputs of their own buffers.

    Args:
      g: the graph. block: of operators. total: int64 [n], bytes by operator. deaths: [pairs of the
        block], whether the input dies there.
      passed: int64 [m], written: the operator at which an input may pass its memory on.
      served: int64 [m], written: the operator where an output surely has such an input.
    """
    begin = g.pair_ptr[block.first]
    for k in range(begin, g.pair_ptr[block.last]):
        if not g.pair_must[k] or deaths[k - begin] == _NEVER:
            continue
        a, b = g.pair_a[k], g.pair_b[k]
        v = g.source[b]
        if deaths[k - begin] == _SURELY:
            served[b] = v
        if passed[a] != v:
            passed[a] = v
            total[v] -= g.bytes[a]


@inner
def _subtract_others(
    g: GraphArrays,
    block: _OperatorBlock,
    by_size: NDArray[np.int64],
    deaths: NDArray[np.int64],
    total: NDArray[np.int64],
    passed: NDArray[np.int64],
    served: NDArray[np.int64],
    counted: NDArray[np.int64],
) -> None:
    """Subtracts from `total`, bytes by operator, the most that its outputs may take over from
    inputs of other buffers: of each size, the smaller of the numbers of inputs and of outputs of
    that size. Inputs in `passed` and outputs in `served` are left out (`_subtract_same_buffer`).
    """
    for v in range(block.first, block.last):
        begin, end = g.pair_ptr[v], g.pair_ptr[v + 1]
        givers, takers, size, run = 0, 0, 0, -1
        for j in range(begin, end):
            k = by_size[j]
            a, b = g.pair_a[k], g.pair_b[k]
            if g.pair_must[k] or deaths[k - g.pair_ptr[block.first]] == _NEVER:
                continue
            if served[b] == v or passed[a] == v:
                continue
            if run < 0 or g.bytes[a] != size:
                total[v] -= min(givers, takers) * size
                givers, takers, size, run = 0, 0, g.bytes[a], j
            if counted[a] != run:
                counted[a] = run
                givers += 1
            if counted[b] != run:
                counted[b] = run
                takers += 1
        total[v] -= min(givers, takers) * size
