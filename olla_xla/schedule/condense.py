"""The condensed graph that the search works on: free operators are grouped with a neighbour.

A `free` operator (parameter, constant, bitcast, tuple, get-tuple-element) that makes no tensor of
its own is put into a group with a neighbour, so that only groups are moved:
- without predecessors: into the prologue, which is always group 0 and runs first;
- with all predecessors in one group: at the end of that group;
- else, with one successor that is not free and reads what it reads: right before it, in its group.
None of these raises the least peak: any legal order, contracted and expanded again, is legal and
has no higher peak, and a condensed order has exactly the peak of its expansion.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays


@dataclasses.dataclass(frozen=True, eq=False)
class Reduced:
    """A smaller graph in which operators that must run together are joined to groups.

    Attributes:
      full: the graph it was made from. arrays: the condensed one; its operators are groups.
      member_ptr, member_idx: by group (CSR), its operators in the order they run.
      keys: int64 [groups], the operator by whose place in an order the group is placed.
      prologue: whether group 0 holds the operators that always run first.
    """

    full: GraphArrays
    arrays: GraphArrays
    member_ptr: NDArray[np.int64]
    member_idx: NDArray[np.int64]
    keys: NDArray[np.int64]
    prologue: bool

    def expand(self, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Converts an order of groups, int64 [groups], into one of operators, int64 [operators]."""
        return _gather(np.asarray(order, np.int64), self.member_ptr, self.member_idx)

    def contract(self, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Converts an order of operators, int64 [operators], into one of groups, int64 [groups]."""
        place = self.full.positions(order)[self.keys]
        if self.prologue:
            place[0] = -1
        return np.argsort(place, kind="stable")


def reduce_graph(full: GraphArrays) -> Reduced:
    """Groups free operators with a neighbour; the graph's ids must be a topological order. Free are
    parameters, constants, bitcasts, tuples and get-tuple-elements that make no tensor.
    """
    group_of, prologue = _groups(full)
    lead = [v for v in range(full.n) if group_of[v] == v]
    if prologue:
        lead = [full.n, *lead]
    number = np.full(full.n + 1, -1, np.int64)
    number[lead] = np.arange(len(lead))
    group = number[group_of]
    by_group = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[by_group], np.arange(len(lead) + 1))
    keys = np.array([by_group[0], *lead[1:]] if prologue else lead, np.int64)
    arrays = _condensed(full, group, len(lead), prologue)
    return Reduced(full, arrays, starts, by_group, keys, prologue)


def _gather(
    order: NDArray[np.int64], ptr: NDArray[np.int64], idx: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Concatenates the rows of a CSR, in the order given."""
    lengths = np.diff(ptr)[order]
    before = np.cumsum(lengths) - lengths
    return idx[np.arange(lengths.sum()) + np.repeat(ptr[order] - before, lengths)]


def _groups(g: GraphArrays) -> tuple[NDArray[np.int64], bool]:
    """Groups free operators (bitcasts, tuples and others without tensors) with a neighbour: (int64
    [n], the operator that leads each one's group, or `n` for the prologue, the group that runs
    first; whether there is a prologue).
    """
    sized = (g.bytes > 0) & ~g.live_in
    makes = np.bincount(g.source[sized], minlength=g.n)
    loose = g.free & (makes == 0) & (g.transient == 0)
    succs = np.diff(g.succ_ptr)
    leader = np.arange(g.n)
    for v in np.flatnonzero(loose).tolist():  # ascending: its predecessors' groups are known
        groups = {int(leader[u]) for u in g.pred_idx[g.pred_ptr[v] : g.pred_ptr[v + 1]]}
        if not groups:
            leader[v] = g.n
        elif len(groups) == 1:
            leader[v] = groups.pop()
        elif succs[v] == 1:
            user = int(g.succ_idx[g.succ_ptr[v]])
            if not g.free[user] and _reads(g, v) <= _reads(g, user):
                leader[v] = user
    # Operators attached to one that has since been attached itself follow it.
    follow = np.append(leader, g.n)
    while not np.array_equal(follow, follow[follow]):
        follow = follow[follow]
    return follow[: g.n], bool((follow[: g.n] == g.n).any())


def _reads(g: GraphArrays, v: int) -> set[int]:
    """Ids of the tensors of at least one byte that an operator reads."""
    return {int(i) for i in g.in_idx[g.in_ptr[v] : g.in_ptr[v + 1]] if g.bytes[i]}


def _condensed(full: GraphArrays, group: NDArray[np.int64], n: int, prologue: bool) -> GraphArrays:
    """Makes the graph whose `n` operators are groups of those of `full`; `group` has the number of
    each one's. Tensors that live throughout become transient bytes; empty ones are left out, unless
    they must share memory with another.
    """
    constant = full.live_in & full.live_out
    # Both tensors of a forced in-place pair stay, even if one is empty.
    must = np.concatenate([full.pair_b[full.pair_must], full.pair_a[full.pair_must]])
    passes = np.isin(np.arange(full.m), must)
    keep = np.flatnonzero(((full.bytes > 0) | passes) & ~constant)
    number = np.full(full.m, -1, np.int64)
    number[keep] = np.arange(len(keep))
    transient = np.zeros(n, np.int64)
    np.maximum.at(transient, group, full.transient)
    transient += full.bytes[constant].sum()
    sinks = []
    for i in keep:
        users = set(group[full.sink_idx[full.sink_ptr[i] : full.sink_ptr[i + 1]]].tolist())
        sinks.append(sorted(users - {int(group[full.source[i]])}))
    before: list[set[int]] = [set() for _ in range(n)]
    for v in range(full.n):
        needs = group[full.pred_idx[full.pred_ptr[v] : full.pred_ptr[v + 1]]]
        before[group[v]].update(needs.tolist())
    for v, needs in enumerate(before):
        needs.discard(v)
        if prologue and v and not needs:
            needs.add(0)
    pairs = np.stack([number[full.pair_b], number[full.pair_a]], axis=1)
    inplace = pairs[(pairs >= 0).all(axis=1) & ~full.pair_must]
    return GraphArrays.build(
        transient=transient,
        free=np.zeros(n, np.bool_),
        bytes=full.bytes[keep],
        source=group[full.source[keep]],
        buffer=full.buffer[keep],
        live_in=full.live_in[keep],
        live_out=full.live_out[keep],
        sinks=sinks,
        before=[sorted(needs) for needs in before],
        inplace=[(int(b), int(a)) for b, a in inplace],
    )
