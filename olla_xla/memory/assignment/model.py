"""Predicts XLA's assigned total for any order: a simulation of its BufferAssigner's rule.

Alias sets are taken by decreasing size. An entry argument has its own allocation, reusable only if
an output replaces it. Any other set is tried in the allocations made before (allocation_reuse.py);
what reuses no allocation goes to one heap (heap.py), or, when live-out, gets one of its own.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hlo.backend import platform
from hlo.module import Computation, Instruction
from hlo.sharing import Sharing, sharing
from hlo.values import Dataflow, Value
from olla_xla.memory.arrays import csr
from olla_xla.memory.assignment.allocation_reuse import (
    AliasSetKind,
    AliasSets,
    AllocationReuse,
    Links,
    reuse_allocations,
)
from olla_xla.memory.assignment.heap import pack, share_in_place
from olla_xla.memory.assignment.live_ranges import LiveRanges, References, live_ranges
from olla_xla.memory.assignment.temporaries import applies, joined, starts

_NEGLIGIBLE = 5e-4

Order = NDArray[np.int64]
"""int64 [n], positions in XLA's schedule of a computation."""

Times = tuple[NDArray[np.int64], int]
"""int64 [points], the logical time of each reference point; and the steps in all."""


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A simulated buffer assignment; sizes and offsets in bytes.

    Attributes:
      total_bytes: arguments + outputs - aliases + temp.
      temp_bytes: all temporaries, in heaps (one a memory space), and tuples' tables.
      allocation: int64 [values]; allocations are numbered as made, heaps come last.
      offset: int64 [values], within its allocation.
      sizes: int64 [allocations].
      start, end: int64 [values], live ranges, inclusive logical times.
    """

    total_bytes: int
    temp_bytes: int
    allocation: NDArray[np.int64]
    offset: NDArray[np.int64]
    sizes: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


class AssignmentModel:
    """Simulates XLA's buffer assignment of one module for any order of its instructions."""

    def __init__(self, dataflow: Dataflow, target: str, pairs: Sharing | None = None) -> None:
        self.dataflow = dataflow
        self.target = target
        self.alignment = platform(target).alignment
        module = dataflow.module
        self.computations = module.control_computations
        self.instructions = [i for c in reversed(self.computations) for i in c.instructions]
        self._number = {i: k for k, i in enumerate(self.instructions)}
        self._starts = starts(dataflow, self._number, target)
        self._applies = applies(module)
        self._held = np.zeros(0, np.int64)
        self._timed: tuple[dict[Any, Any], Times] = {}, (np.zeros(0, np.int64), 0)
        self._span = {c: k for k, c in enumerate(self.computations)}
        self._build_ranges()
        self._build_sharing(sharing(dataflow, target) if pairs is None else pairs)
        self._build_buffers()

    def _start_ref(self, computation: Computation) -> int:
        return len(self.instructions) + self._span[computation]

    def _end_ref(self, computation: Computation) -> int:
        return self._start_ref(computation) + len(self.computations)

    def _build_ranges(self) -> None:
        module, values = self.dataflow.module, self.dataflow.values
        donated, entry = module.donated, module.entry
        begun = {c: i for i in self._number if i.opcode == "async-start" for c in i.called_control}

        def start_of(i: Instruction) -> int:
            # Values inside an asynchronous operation are live from its start on.
            i = begun.get(i.computation, i)
            return self._start_ref(i.computation) if i.opcode == "parameter" else self._number[i]

        start = [start_of(v.instruction) for v in values]
        readonly = [
            v.instruction.opcode == "parameter"
            and v.instruction.computation is entry
            and (v.instruction.parameter_number, v.index) not in donated
            for v in values
        ]
        number = self._number
        point = number | {c.root: self._end_ref(c) for c in self.computations if c.root}
        loops = [i for i in number if i.opcode == "while"]
        read = number | {i: number[i.called[0].parameters[0]] for i in loops}
        read = {i: k for i, k in read.items() if i.opcode != "call"}
        position_ptr, position_idx = csr([[point[i] for i, _ in v.positions[1:]] for v in values])
        users = [[u.instruction for u in v.uses] for v in values]
        use_ptr, use_idx = csr([[read[i] for i in row if i in read] for row in users])
        self._references = References(
            start=np.array(start, np.int64),
            end=np.array([point[v.instruction] for v in values], np.int64),
            position_ptr=position_ptr,
            position_idx=position_idx,
            use_ptr=use_ptr,
            use_idx=use_idx,
            readonly=np.array(readonly, np.bool_),
        )

    def merged(self, pairs: Iterable[tuple[int, int]]) -> AssignmentModel:
        """Returns a model like this one in which both values (ids) of a pair share one buffer."""
        sets = self._sets
        label = np.arange(len(sets.bytes))
        for a, b in pairs:
            keep, gone = sorted((label[self._set_of[a]], label[self._set_of[b]]))
            label[label == gone] = keep
        number = np.unique(label, return_inverse=True)[1]
        count = int(number.max(initial=-1)) + 1

        def joined(combine: np.ufunc, array: NDArray[Any], start: int = 0) -> NDArray[Any]:
            result = np.full(count, start, array.dtype)
            combine.at(result, number, array)
            return result

        color = np.zeros(count, np.int64)
        color[number] = sets.color
        other = copy.copy(self)
        other._set_buffers(
            number[self._set_of],
            bytes=joined(np.maximum, sets.bytes),
            kind=joined(np.maximum, sets.kind),
            live_out=joined(np.logical_or, sets.live_out),
            readonly=joined(np.logical_or, sets.readonly),
            color=color,
            position=joined(np.minimum, sets.position, len(self.instructions)),
        )
        return other

    def held(self, holds: Iterable[tuple[int, Instruction]]) -> AssignmentModel:
        """Returns a model in which each value (id) in `holds` lives until after the instruction
        beside it.
        """
        holds = list(holds)
        other = copy.copy(self)
        if holds:
            known = len(self.instructions) + 2 * len(self.computations) + len(self._held)
            other._latest = None
            other._held = np.append(self._held, [self._number[i] for _, i in holds])
            uses = np.split(self._references.use_idx, self._references.use_ptr[1:-1])
            more = {}
            for k, (value, _) in enumerate(holds):
                more.setdefault(value, []).append(known + k)
            rows = [[*row.tolist(), *more.get(v, ())] for v, row in enumerate(uses)]
            use_ptr, use_idx = csr(rows)
            other._references = self._references._replace(use_ptr=use_ptr, use_idx=use_idx)
        return other

    def _build_buffers(self) -> None:
        values, buffers = self.dataflow.values, self.dataflow.buffers
        members = [v.id for b in buffers for v in b]
        begins = np.cumsum([0, *map(len, buffers[:-1])])

        def of_sets(combine: np.ufunc, by_value: ArrayLike) -> NDArray[Any]:
            of_members = np.array(by_value)[members]
            return combine.reduceat(of_members, begins) if len(of_members) else of_members

        self._set_buffers(
            np.array([v.buffer for v in values], np.int64),
            bytes=of_sets(np.maximum, [v.bytes for v in values]),
            kind=np.array([self._kind_of(members) for members in buffers], np.int64),
            live_out=of_sets(np.logical_or, [v.live_out for v in values]),
            readonly=of_sets(np.logical_or, self._references.readonly),
            color=np.array([b[0].color for b in buffers], np.int64),
            position=of_sets(np.minimum, [self._number[v.instruction] for v in values]),
        )

    def _kind_of(self, members: Sequence[Value]) -> AliasSetKind:
        for v in members:
            i = v.instruction
            if i.opcode == "constant":
                return AliasSetKind.CONSTANT
            if i.opcode == "parameter" and i.computation is self.dataflow.module.entry:
                return AliasSetKind.ARGUMENT
        return AliasSetKind.TUPLE if any(v.shape.is_tuple for v in members) else AliasSetKind.TEMP

    def _set_buffers(self, set_of: NDArray[np.int64], **by_set: NDArray[Any]) -> None:
        """Sets which values share a buffer (an alias set), and all fields that follow from that.

        Args:
          set_of: int64 [values], the set of each. by_set: fields of AliasSets, without the lists.
        """
        pointers = np.zeros(len(by_set["bytes"]) + 1, np.int64)
        np.cumsum(np.bincount(set_of, minlength=len(pointers) - 1), out=pointers[1:])
        members = np.argsort(set_of, kind="stable")
        ptr, idx = self._operands
        counts = np.diff(ptr)[members]
        ends = np.concatenate(([0], np.cumsum(counts)))
        operands = idx[np.repeat(ptr[members] - ends[:-1], counts) + np.arange(ends[-1])]
        self._latest: tuple[NDArray[np.int64], Assignment] | None = None
        self._set_of = set_of
        self._sets = AliasSets(pointers, members, ends[pointers], operands, **by_set)
        self._bytes = self._sets.bytes[set_of]
        self._color = self._sets.color[set_of]
        self._spaces = np.unique(self._sets.color)
        self._single = np.diff(pointers)[set_of] == 1
        self._order = np.lexsort((self._sets.position, ~self._sets.live_out, -self._sets.bytes))

    def _build_sharing(self, pairs: Sharing) -> None:
        values, at = self.dataflow.values, self.dataflow.at
        heap: list[list[tuple[int, int]]] = []
        ended = {self.instructions[k]: pair for pair, k in enumerate(self._starts.done)}
        operands: list[list[int]] = []
        copied: list[list[int]] = []
        tops = {i: at[i, ()] for i in self.instructions}
        for v, shared in zip(values, pairs, strict=True):
            i, in_heap = v.instruction, []
            for operand in dict.fromkeys(i.operands) if shared else ():
                top = tops[operand]
                pair = ended.get(operand, -1)  # one operation with its start, if XLA joins them
                itself = top.instruction is operand and (top.id, 0) in shared
                if itself or (pair >= 0 and any(top.id == a for a, _ in shared)):
                    in_heap.append((top.id, pair))
            heap.append(in_heap)
            reads = () if v.index or v.shape.is_tuple else dict.fromkeys(i.operands)
            operands.append([tops[operand].id for operand in reads])
            copies = dict.fromkeys(i.operands) if i.opcode == "copy" else ()
            copied.append([at[o, index].id for o in copies for index, _ in o.shape.indices()])
        share_ptr, share_idx = csr([[a for a, _ in s] for s in pairs])
        copied_ptr, copied_idx = csr(copied)
        self._links = Links(
            share_ptr=share_ptr,
            share_idx=share_idx,
            copied_ptr=copied_ptr,
            copied_idx=copied_idx,
        )
        self._heap_share = csr([[operand for operand, _ in row] for row in heap])
        self._heap_share_pair = np.array([pair for row in heap for _, pair in row], np.int64)
        self._operands = csr(operands)

    # Evaluation.

    def times(self, orders: Mapping[Computation, Sequence[Instruction]]) -> Times:
        """Returns the times of `References`' points under these orders, and the steps in all; keeps
        the last result.
        """
        orders = dict(orders)
        if self._timed[0] == orders:  # simulations of one order, with other values in one buffer
            return self._timed[1]
        n, c = len(self.instructions), len(self.computations)
        time = np.zeros(n + 2 * c, np.int64)
        clock = 0

        def flatten(computation: Computation) -> None:
            nonlocal clock
            time[self._start_ref(computation)] = clock
            for i in orders[computation]:
                if i.opcode == "while":
                    flatten(i.called[1])
                    flatten(i.called[0])
                elif i.opcode in ("call", "conditional", "async-start"):
                    for callee in i.called:
                        flatten(callee)
                time[self._number[i]] = clock
                clock += 1
            time[self._end_ref(computation)] = clock

        flatten(self.dataflow.module.entry)
        self._timed = orders, (time, clock)
        return time, clock

    def simulate(self, orders: Mapping[Computation, Sequence[Instruction]]) -> Assignment:
        """Returns the buffer assignment under orders of all computations; keeps the last result."""
        time, total = self.times(orders)
        if self._latest is None or not np.array_equal(self._latest[0], time):
            self._latest = time, self._simulate(time, total, len(self._order))
        return self._latest[1]

    def estimator(
        self, computation: Computation, orders: Mapping[Computation, Sequence[Instruction]]
    ) -> Callable[[Order, int | None], int]:
        """Makes a fast function of an order of one computation (positions in XLA's schedule of it),
        and of the most bytes that are of interest or None; other orders are fixed. It returns the
        total in bytes; if that is more, any number above the limit. Alias sets too small to matter,
        together at most 0.05% of all bytes, are left out of the simulation; those of arguments and
        outputs stay in the total.
        """
        sets = self._sets
        sizes = sets.bytes[self._order]
        rest = np.cumsum(sizes[::-1])[::-1]
        keep = int(np.searchsorted(-rest, -_NEGLIGIBLE * max(rest[0], 1))) if len(rest) else 0
        left_out = self._order[keep:]
        counts = (sets.kind[left_out] == AliasSetKind.ARGUMENT) | sets.live_out[left_out]
        counts &= sets.kind[left_out] != AliasSetKind.CONSTANT
        extra = int(sets.bytes[left_out][counts].sum())
        times = self._times_by_order(computation, orders)

        def estimate(order: Order, most: int | None = None) -> int:
            most = None if most is None else most - extra
            return self._simulate(*times(order), keep, most).total_bytes + extra

        return estimate

    def _times_by_order(
        self, computation: Computation, orders: Mapping[Computation, Sequence[Instruction]]
    ) -> Callable[[Order], Times]:
        """Makes a quicker `times` for many orders of one computation, the others' orders as given:
        an instruction's callees take the same number of steps wherever it runs, so all its points
        move together. It is no quicker where some computation is called from two places. An order
        is one of positions in XLA's schedule of `computation`.
        """
        instructions = computation.schedule
        assert instructions is not None
        others = dict(orders)
        callers = collections.Counter(
            c for o in orders.values() for i in o for c in i.called_control
        )
        if max(callers.values(), default=0) > 1:  # the last call of a computation sets its times

            def flattened(order: Order) -> Times:
                others[computation] = tuple(instructions[k] for k in order)
                return self.times(others)

            return flattened
        others[computation] = instructions
        base, total = self.times(others)
        begin = base[self._start_ref(computation)]
        ends = base[[self._number[i] for i in instructions]] + 1
        lengths = np.diff(ends, prepend=begin)
        points = [self._points(i) for i in instructions]
        flat = np.array([p for own in points for p in own], np.int64)
        counts = np.array([len(own) for own in points], np.int64)
        relative = base[flat] - np.repeat(ends - lengths, counts)

        def times(order: Order) -> Times:
            starts = np.empty(len(order), np.int64)
            starts[order] = begin + np.cumsum(lengths[order]) - lengths[order]
            time = base.copy()
            time[flat] = np.repeat(starts, counts) + relative
            return time, total

        return times

    def _points(self, i: Instruction) -> list[int]:
        """Numbers of the points (`References`) of an instruction and of all that it calls."""
        points = [self._number[i]]
        for computation in i.called_control:
            points += [self._start_ref(computation), self._end_ref(computation)]
            for inner in computation.instructions:
                points += self._points(inner)
        return points

    def _simulate(
        self, time: NDArray[np.int64], total: int, keep: int, most: int | None = None
    ) -> Assignment:
        """Returns the assignment of the `keep` largest alias sets (buffers) at these logical times.
        If its total is above `most`, heaps may be left unpacked, and the total is any number above.
        """
        alone = self._starts.alone(time)
        if len(alone):
            time = self._starts.joined_times(time, alone)
            total -= self._starts.steps_gone(alone)
        if len(self._held):  # each hold takes a step of its own, between two instructions
            time = np.concatenate((2 * time, 2 * time[self._held] + 1))
            total = 2 * total
        ranges = live_ranges(time, total, self._references, self._sets.ptr, self._sets.idx)
        reuse = reuse_allocations(self._sets, self._links, ranges, self._order[:keep])
        kept = np.zeros(len(self._sets.bytes), np.bool_)
        kept[self._order[:keep]] = True
        in_heap = (reuse.allocation < 0) & kept[self._set_of]
        counted = int(reuse.bytes[reuse.counted].sum())
        left = None if most is None else most - counted
        offset, heaps = self._heaps(in_heap, ranges, reuse, alone, left)
        tables = reuse.temporary.copy()
        for v in self._starts.gone(alone):
            if reuse.allocation[v] >= 0:
                tables[reuse.allocation[v]] = False
        temp = joined(reuse.bytes[tables], heaps, self._applies, self.alignment)
        return Assignment(
            total_bytes=counted + temp,
            temp_bytes=temp,
            allocation=reuse.allocation,
            offset=offset,
            sizes=np.append(reuse.bytes, np.array(heaps, np.int64)),
            start=ranges.start,
            end=ranges.end,
        )

    def _shared_in_heap(self, alone: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """CSR (ptr, idx): value -> operands it may take over in the heap; an operand that is a done
        only if it and its start are one of the pairs `alone`, which XLA makes one operation.
        """
        pair, (ptr, idx) = self._heap_share_pair, self._heap_share
        if (pair < 0).all():
            return ptr, idx
        keep = (pair < 0) | np.isin(pair, alone)
        return np.concatenate(([0], np.cumsum(keep)))[ptr], idx[keep]

    def _heaps(
        self,
        in_heap: NDArray[np.bool_],
        ranges: LiveRanges,
        found: AllocationReuse,
        alone: NDArray[np.int64],
        most: int | None,
    ) -> tuple[NDArray[np.int64], list[int]]:
        """Packs what reuses no allocation: one heap a memory space, numbered after allocations.

        Args:
          in_heap: bool [values]. ranges: of all values. found: `allocation` is completed.
          alone: numbers of asynchronous pairs (start, done) between which nothing runs.
          most: a heap that must take more bytes is not packed; None: each is.

        Returns:
          (offset in bytes by value id, bytes of each heap).
        """
        offset = np.zeros(len(in_heap), np.int64)
        heaps: list[int] = []
        share = self._shared_in_heap(alone)
        as_they_come = platform(self.target).places_as_they_come
        for space in self._spaces:
            ids = np.flatnonzero(in_heap & (self._color == space))
            if not len(ids):
                continue
            ticks = share_in_place(
                ids, ranges.start, ranges.end, self._bytes, self._set_of, self._single, *share
            )
            size, placed = pack(ids, *ticks, self._bytes, self.alignment, most, as_they_come)
            found.allocation[ids] = len(found.bytes) + len(heaps)
            offset[ids] = placed[ids]
            heaps.append(int(size))
        return offset, heaps
