"""The recomputation problem of one computation: its tensors, who reads them, what a rerun costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlo.exchange import MOVING, asked, reduction, run_by
from hlo.module import Computation, Instruction
from hlo.values import Dataflow
from hlo.walk import after_needs
from olla_xla.memory.arrays import GraphArrays, csr, rows
from olla_xla.memory.kernels import Pattern, joined_buffers
from olla_xla.memory.lower import LoweredComputation
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.purity import FORWARDING, pure, recomputable


@dataclasses.dataclass(frozen=True)
class Repeat:
    """The result of a transfer that gives the same bytes as an earlier one, which need not be kept.

    Attributes:
      tensor: of the result. since: key (number of a moment of the schedule) from which on it is
        read instead of the earlier one.
      handles: instructions that give the earlier result as an array. handle: one that gives this.
    """

    tensor: int
    since: int
    handles: tuple[Instruction, ...]
    handle: Instruction


class Marks(NamedTuple):
    """Per-tensor and per-operator facts about recomputation, as arrays for compiled loops.

    Attributes:
      limit: [m] the last step at which a tensor may be read: then its buffer is overwritten.
      rerun: bool [n], the operator may be cloned.
      first: [m] of a result that repeats an earlier transfer's (`repeats`), the tensor of the
        earliest; else -1. Its readers read a version of that one, which needs no clone.
      given: bool [n], operators whose results a later transfer repeats: later versions of these are
        that transfer's results, not clones.
    """

    limit: NDArray[np.int64]
    rerun: NDArray[np.bool_]
    first: NDArray[np.int64]
    given: NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False)
class RematGraph:
    """A computation in a fixed order, with what may be recomputed in it, and at what cost.

    Attributes:
      arrays: of its graph; operators that only forward read nothing. If arguments stay, tensors in
        their buffers have 0 bytes. marks: see there.
      instructions: [n] in execution order. values: [m] value ids of the tensors.
      held: bytes of the entry's arguments, in use at every step, if they stay; else 0.
      memory: [m] numbers, equal of tensors that lie in the same memory, whatever the order.
      evictable: [m] bool, the tensor may be dropped and computed again.
      seconds: [n] predicted time of a clone. moved: [n] int64, bytes that a clone moves.
      repeats: tensor -> the later results with the same bytes, in execution order.
    """

    arrays: GraphArrays
    marks: Marks
    instructions: tuple[Instruction, ...]
    values: tuple[int, ...]
    held: int
    memory: NDArray[np.int64]
    evictable: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    moved: NDArray[np.int64]
    repeats: Mapping[int, tuple[Repeat, ...]]

    @functools.cached_property
    def dropped(self) -> NDArray[np.int64]:
        """Evictions, int64 [k, 2] of (tensor, moment), that are always made: of transfers' results,
        where a later transfer gives the same bytes.
        """
        evictions = [(t, k.since) for t, later in self.repeats.items() for k in later]
        return np.array(evictions, np.int64).reshape(-1, 2)

    def with_arguments_held(self) -> RematGraph:
        """Makes a new graph in which the entry computation's arguments keep their memory to the
        end. Only tensors in an argument's own buffer lie there. XLA's total counts an argument's
        bytes however early its last read is, and reuses them only for what happens to fit.
        """
        size, live_in = self.arrays.bytes, self.arrays.live_in
        in_arguments = np.isin(self.memory, self.memory[live_in])
        arrays = self.arrays.resized(np.where(in_arguments, 0, size))
        return dataclasses.replace(self, held=int(size[live_in].sum()), arrays=arrays)

    def without_repeats(self) -> RematGraph:
        """Makes a new graph that knows of no transfers between devices with equal results."""
        first, given = np.full(self.arrays.m, -1, np.int64), np.zeros(self.arrays.n, np.bool_)
        marks = self.marks._replace(first=first, given=given)
        return dataclasses.replace(self, marks=marks, repeats={})


def remat_graph(
    dataflow: Dataflow,
    lowered: LoweredComputation,
    cost: CostModel,
    kernels: Mapping[str, Pattern] | None = None,
    runs: int = 1,
) -> RematGraph:
    """Makes the RematGraph of one computation, in its order in the module.

    Args:
      dataflow: of the module. lowered: the computation. cost: prices operators.
      kernels: kernel name -> which of its arrays must share memory (memory.kernels); an operand
        that a kernel must overwrite cannot be read afterwards.
      runs: times that it runs in a step; seconds and bytes moved are multiplied by it.
    """
    arrays = GraphArrays.of(lowered.graph)
    instructions = lowered.instructions
    awaited = {k for i in instructions for k in i.control_predecessors}
    rerun = np.array(
        [i not in awaited and recomputable(i, cost.target) for i in instructions], np.bool_
    )
    work = [cost.copied_work(i) for i in instructions]
    in_ptr, in_idx = _reads(arrays)
    memory = _memory(dataflow, lowered, arrays, kernels or {})
    limit = _limits(arrays, memory)
    repeats = _repeats(dataflow, lowered, arrays, limit)
    first = np.full(arrays.m, -1, np.int64)
    for t, later in repeats.items():
        first[[k.tensor for k in later]] = t
    seconds = np.array([runs * cost.device.seconds(w) for w in work])
    moved = np.array([runs * w.bytes for w in work], np.int64)
    given = np.zeros(arrays.n, np.bool_)
    given[arrays.source[list(repeats)]] = True
    seconds[given], moved[given] = 0.0, 0  # the later transfer runs anyway
    return RematGraph(
        arrays=arrays._replace(in_ptr=in_ptr, in_idx=in_idx),
        marks=Marks(limit, rerun, first, given),
        instructions=instructions,
        values=lowered.values,
        held=0,
        memory=memory,
        evictable=_evictable(dataflow, lowered, arrays, rerun),
        seconds=seconds,
        moved=moved,
        repeats=repeats,
    )


def _memory(
    dataflow: Dataflow,
    lowered: LoweredComputation,
    arrays: GraphArrays,
    kernels: Mapping[str, Pattern],
) -> NDArray[np.int64]:
    """[m] a number for each tensor, equal for those that share memory in every order."""
    same = joined_buffers(dataflow, lowered.instructions, kernels)
    return np.array([same.get(b, b) for b in arrays.buffer.tolist()], np.int64)


def _reads(arrays: GraphArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """CSR (ptr, idx): operator -> tensors it reads; none for bitcasts, tuples and the like."""
    read = rows(arrays.in_ptr, arrays.in_idx)
    return csr([[] if free else row for row, free in zip(read, arrays.free, strict=True)])


def _repeats(
    dataflow: Dataflow, lowered: LoweredComputation, arrays: GraphArrays, limit: NDArray[np.int64]
) -> dict[int, tuple[Repeat, ...]]:
    """Maps the tensor of a transfer between devices to the results of later ones that give its
    bytes again. `limit`: int64 [m], the step at which each tensor's memory is overwritten, n if
    never.
    """
    groups = repeated_results(dataflow, lowered.instructions)
    if not groups:
        return {}
    number = {v: t for t, v in enumerate(lowered.values)}
    alone = np.bincount(arrays.buffer, minlength=1)[arrays.buffer] == 1
    usable = alone & ~arrays.live_in & ~arrays.live_out & (limit == arrays.n)
    last = arrays.source.copy()
    reader = np.repeat(np.arange(arrays.n), np.diff(arrays.in_ptr))
    np.maximum.at(last, arrays.in_idx, np.where(arrays.free[reader], -1, reader))
    repeats: dict[int, tuple[Repeat, ...]] = {}
    for group in groups:
        known = [(number[r.value], r) for r in group if r.value in number]
        results = [(k, r) for k, r in known if usable[k]]
        if not results:
            continue
        (t, first), *later = results
        before, kept = t, []
        for k, result in later:
            # If the earlier result is still read when the later one is made, both are needed.
            if last[before] < arrays.source[k]:
                since = (2 * int(last[before]) + 1) * arrays.n + 1
                kept.append(Repeat(k, since, first.handles, result.handles[0]))
                before = k
        if kept:
            repeats[t] = tuple(kept)
    return repeats


def _limits(arrays: GraphArrays, memory: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[m]: step of the operator that overwrites each tensor's memory; n where none does."""
    limit = np.full(arrays.m, arrays.n, np.int64)
    members: dict[int, list[int]] = {}
    for t, number in enumerate(memory.tolist()):
        members.setdefault(number, []).append(t)
    for tensors in members.values():
        tensors.sort(key=lambda t: (not arrays.live_in[t], int(arrays.source[t])))
        for a, b in zip(tensors, tensors[1:], strict=False):
            limit[a] = arrays.source[b]
    return limit


def _evictable(
    dataflow: Dataflow, lowered: LoweredComputation, arrays: GraphArrays, rerun: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Selects (bool [m]) the tensors that may be dropped and computed again: operators that may run
    twice make them, they share no buffer, and nothing passes them on but bitcasts, tuple elements
    and loops that leave them unchanged.
    """
    alone = np.bincount(arrays.buffer, minlength=1)[arrays.buffer] == 1
    result = rerun[arrays.source] & alone & ~arrays.live_in & ~arrays.live_out
    for t in np.flatnonzero(result):
        value = dataflow.values[lowered.values[t]]
        places = {i for i, _ in value.positions[1:]}
        here = {i for i in places if i.computation is lowered.computation}
        loops = {i for i in here if i.opcode == "while"}
        passed = {i for i in loops if not _handed_out(i, here)}
        starts = {i.operands[0] for i in passed if i.operands[0].users == [i]}
        known = all(i.opcode in FORWARDING or i in passed or i in starts for i in here)
        result[t] = known and {i.computation for i in places - here} <= _run_by(passed)
    return result


def _handed_out(loop: Instruction, places: set[Instruction]) -> bool:
    """Whether a value that a loop leaves unchanged may be read from the loop's result. `places` are
    the instructions in whose results the value lies.
    """
    return loop.is_root or any(u.opcode != "get-tuple-element" or u in places for u in loop.users)


def _run_by(loops: Iterable[Instruction]) -> set[Computation]:
    """The computations that loops run, those that they call included."""
    called = (c for i in loops for c in i.called)
    return set(after_needs(called, lambda c: (k for i in c.instructions for k in i.called)))


# Transfers between devices that a computation runs twice, with the same result.
#
# Where weights are sharded, as under FSDP, the backward pass gathers weights again that the
# forward pass gathered. Clones in the backward pass may read its all-gather, which then runs
# earlier than it did. No transfer is added, and what is read has the same bits.


_LARGEST = 64  # most instructions that may make a transfer's operand; a weight's shard takes few


@dataclasses.dataclass(frozen=True)
class TransferredArray:
    """One array among the results of a transfer between devices.

    Attributes:
      value: id of its value. transfer: what defines it, the start where that is asynchronous.
      handles: instructions that give the array by itself (the transfer, its done or their
        get-tuple-elements), in execution order.
    """

    value: int
    transfer: Instruction
    handles: tuple[Instruction, ...]


def repeated_results(
    dataflow: Dataflow, instructions: Sequence[Instruction]
) -> list[tuple[TransferredArray, ...]]:
    """Groups of results of transfers that have the same bytes, each group in execution order. The
    transfers compute nothing (`hlo.exchange.MOVING`), and what they move is made of parameters and
    constants alone, without transfers before it, so that they may run at any earlier time.
    `instructions`: of one computation, in execution order.
    """
    groups: dict[Hashable, list[TransferredArray]] = {}
    made = _ConstantExpressions()
    for i in instructions:
        made.add(i)
        transfer = run_by(i)
        if transfer is None or transfer.opcode not in MOVING or i.control_predecessors:
            continue
        operands = [made.number(o) for o in i.operands]
        if None in operands:
            continue
        how = asked(transfer), reduction(transfer)
        for k, operand in enumerate(operands):
            result = _result(dataflow, i, k)
            if result is not None:
                groups.setdefault((how, operand, i.operands[k].shape.key), []).append(result)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _result(dataflow: Dataflow, i: Instruction, k: int) -> TransferredArray | None:
    """The array that a transfer makes of operand `k`; None if no instruction gives it by itself,
    that waits for others by control dependencies, or it is live to the end.
    """
    ends = [u for u in i.users if u.opcode.endswith("-done")] if _is_start(i) else [i]
    if len(ends) != 1 or ends[0].control_predecessors or (_is_start(i) and len(i.users) != 1):
        return None
    (end,) = ends
    if end.shape.is_array:
        handles: tuple[Instruction, ...] = (end,)
    else:
        takers = [u for u in end.users if u.opcode == "get-tuple-element" and u.tuple_index == k]
        handles = tuple(u for u in takers if u.shape.is_array and not u.control_predecessors)
    if not handles:
        return None
    value = dataflow.at[handles[0], ()]
    if value.instruction not in (i, run_by(i)) or value.live_out:
        return None
    return TransferredArray(value.id, i, handles)


def _is_start(i: Instruction) -> bool:
    return i.opcode.endswith("-start")


class _ConstantExpressions:
    """Value numbers of what is made of parameters and constants: equal numbers mean equal bits."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._at: dict[Instruction, tuple[int, int]] = {}
        """By instruction, its number and how many instructions make it."""

    def number(self, i: Instruction) -> int | None:
        """Returns the number of a result (equal numbers: equal bits); None if it has none."""
        entry = self._at.get(i)
        return None if entry is None else entry[0]

    def add(self, i: Instruction) -> None:
        """Numbers an instruction's result, so that equal numbers mean equal bits, if it is pure,
        all its operands have numbers, and at most _LARGEST instructions make it. Operands are added
        first.
        """
        if i.control_predecessors or any(o not in self._at for o in i.operands):
            return
        # Purity is checked last: it looks into fusions, and few are made of parameters alone.
        if i.opcode not in FORWARDING and i.opcode not in ("constant", "parameter") and not pure(i):
            return
        size = 1 + sum(self._at[o][1] for o in i.operands)
        if size <= _LARGEST:
            operands = tuple(self._at[o][0] for o in i.operands)
            key = i.attributes, reduction(i), operands
            self._at[i] = self._numbers.setdefault(key, len(self._numbers)), size
