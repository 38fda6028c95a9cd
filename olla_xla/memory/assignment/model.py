"""Predicts XLA's assigned total for any order: a simulation of its buffer assignment rule.

Alias sets are taken by decreasing size. An entry argument has its own allocation, reusable only if
an output replaces it. Any other set first tries the allocations of its instruction's operands, then
every reusable allocation from the newest to the oldest; what finds no home goes to one heap
(heap.py), or, when live-out, gets an allocation of its own. Read in XLA's BufferAssigner.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numba import njit

from hlo.module import Computation, Instruction
from hlo.sharing import Sharing, sharing
from hlo.values import Dataflow, Value
from olla_xla.memory.assignment.gaps import new_gaps, previous, put
from olla_xla.memory.assignment.heap import pack, share_in_place
from olla_xla.memory.assignment.live_ranges import live_ranges

__all__ = ["ALIGNMENT", "Assignment", "AssignmentModel"]

ALIGNMENT = {"cpu": 64, "cuda": 256}
"""Bytes to which XLA aligns buffers inside one allocation, by target."""

_NEGLIGIBLE = 5e-4

# How an alias set is treated.
_TEMP, _CONSTANT, _ARGUMENT, _TUPLE = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A simulated buffer assignment; sizes and offsets in bytes.

    Attributes:
      total_bytes: arguments + outputs - aliases + temp.
      temp_bytes: the heap.
      allocation: by value id; allocations are numbered as made, the heap comes last.
      offset: by value id, within its allocation.
      sizes: by allocation.
      start, end: live ranges by value id, inclusive logical times.
    """

    total_bytes: int
    temp_bytes: int
    allocation: np.ndarray
    offset: np.ndarray
    sizes: np.ndarray
    start: np.ndarray
    end: np.ndarray


class AssignmentModel:
    """The order-independent part of the simulation for one module."""

    def __init__(self, dataflow: Dataflow, target: str, pairs: Sharing | None = None) -> None:
        self.dataflow = dataflow
        self.target = target
        self.alignment = ALIGNMENT[target]
        module = dataflow.module
        self.computations = module.control_computations
        self.instructions = [i for c in reversed(self.computations) for i in c.instructions]
        self._number = {i: k for k, i in enumerate(self.instructions)}
        self._span = {c: k for k, c in enumerate(self.computations)}
        self._build_ranges()
        self._build_buffers()
        self._build_sharing(sharing(dataflow, target) if pairs is None else pairs)

    # Building.

    def _start_ref(self, computation: Computation) -> int:
        return len(self.instructions) + self._span[computation]

    def _end_ref(self, computation: Computation) -> int:
        return self._start_ref(computation) + len(self.computations)

    def _point(self, i: Instruction) -> int:
        return self._end_ref(i.computation) if i.is_root else self._number[i]

    def _build_ranges(self) -> None:
        module = self.dataflow.module
        values = self.dataflow.values
        donated = module.donated
        self._start_refs = np.array(
            [
                self._start_ref(v.instruction.computation)
                if v.instruction.opcode == "parameter"
                else self._number[v.instruction]
                for v in values
            ],
            np.int64,
        )
        self._end_refs = np.array([self._point(v.instruction) for v in values], np.int64)
        self._pos = _csr([[self._point(i) for i, _ in v.positions[1:]] for v in values])
        self._use = _csr(
            [[r for u in v.uses for r in self._use_refs(u.instruction)] for v in values]
        )
        self._readonly = np.array(
            [
                v.instruction.opcode == "parameter"
                and v.instruction.computation is module.entry
                and (v.instruction.parameter_number, v.index) not in donated
                for v in values
            ],
            np.bool_,
        )

    def _use_refs(self, user: Instruction) -> Iterable[int]:
        if user.opcode == "call":
            return ()
        if user.opcode == "while":
            user = user.called[0].parameters[0]
        return (self._number[user],)

    def merged(self, pairs: Iterable[tuple[int, int]]) -> AssignmentModel:
        """The model if the alias sets of these values (pairs of value ids) were one each."""
        label = np.arange(len(self._buf_size))
        for a, b in pairs:
            keep, gone = sorted((label[self._buffer[a]], label[self._buffer[b]]))
            label[label == gone] = keep
        number = np.unique(label, return_inverse=True)[1]
        other = copy.copy(self)
        other._buffer = number[self._buffer]
        count = int(number.max(initial=-1)) + 1
        for name, combine in (("_buf_size", np.maximum), ("_kind", np.maximum)):
            setattr(other, name, np.zeros(count, np.int64))
            combine.at(getattr(other, name), number, getattr(self, name))
        for name in ("_live_out", "_argument_readonly"):
            setattr(other, name, np.zeros(count, np.bool_))
            np.logical_or.at(getattr(other, name), number, getattr(self, name))
        other._color = np.zeros(count, np.int64)
        other._color[number] = self._color
        other._position = np.full(count, len(self.instructions))
        np.minimum.at(other._position, number, self._position)
        other._arrange_buffers()
        return other

    def _build_buffers(self) -> None:
        values, buffers = self.dataflow.values, self.dataflow.buffers
        self._buffer = np.array([v.buffer for v in values], np.int64)
        self._buf_size = np.array([max(v.bytes for v in b) for b in buffers], np.int64)
        self._color = np.array([b[0].color for b in buffers], np.int64)
        self._colors = np.unique(self._color)
        self._live_out = np.array([any(v.live_out for v in b) for b in buffers], np.bool_)
        self._kind = np.array([self._kind_of(members) for members in buffers], np.int64)
        self._argument_readonly = np.array(
            [any(self._readonly[v.id] for v in b) for b in buffers], np.bool_
        )
        self._position = np.array(
            [min(self._number[v.instruction] for v in b) for b in buffers], np.int64
        )
        self._arrange_buffers()

    def _kind_of(self, members: Sequence[Value]) -> int:
        for v in members:
            if v.instruction.opcode == "constant":
                return _CONSTANT
            at_entry = v.instruction.computation is self.dataflow.module.entry
            if v.instruction.opcode == "parameter" and at_entry:
                return _ARGUMENT
        return _TUPLE if any(v.shape.is_tuple for v in members) else _TEMP

    def _arrange_buffers(self) -> None:
        """What follows from the alias sets: their values, sizes by value, the order taken in."""
        count = len(self._buf_size)
        pointers = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(self._buffer, minlength=count), out=pointers[1:])
        self._buf = (pointers, np.argsort(self._buffer, kind="stable"))
        self._size = self._buf_size[self._buffer]
        self._single = np.diff(pointers)[self._buffer] == 1
        self._buf_order = np.lexsort((self._position, ~self._live_out, -self._buf_size))

    def _build_sharing(self, pairs: Sharing) -> None:
        values, at = self.dataflow.values, self.dataflow.at
        heap: list[list[int]] = []
        operands: list[list[int]] = []
        copied: list[list[int]] = []
        for v in values:
            in_heap: list[int] = []
            first: list[int] = []
            read: list[int] = []
            for operand in dict.fromkeys(v.instruction.operands):
                top = at[operand, ()]
                first.append(top.id)
                if top.instruction is operand and (top.id, 0) in pairs[v.id]:
                    in_heap.append(top.id)
                if v.instruction.opcode == "copy":
                    read += [at[operand, i].id for i, _ in operand.shape.indices()]
            heap.append(in_heap)
            operands.append(first if not v.index and not v.shape.is_tuple else [])
            copied.append(read)
        self._share = _csr([[a for a, _ in s] for s in pairs])
        self._share_pos = _csr([[p for _, p in s] for s in pairs])[1]
        self._heap_share = _csr(heap)
        self._operands = _csr(operands)
        self._copied = _csr(copied)

    # Evaluation.

    def times(self, orders: Mapping[Computation, Sequence[Instruction]]) -> tuple[np.ndarray, int]:
        """Logical times of all reference points, callees flattened before their callers."""
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
        return time, clock

    def simulate(self, orders: Mapping[Computation, Sequence[Instruction]]) -> Assignment:
        """The buffer assignment of the module under `orders` (every control computation's)."""
        return self._simulate(*self.times(orders), len(self._buf_order))

    def estimator(
        self, computation: Computation, orders: Mapping[Computation, Sequence[Instruction]]
    ) -> Callable[[np.ndarray], int]:
        """A quicker total for many orders of one computation, the others' orders as given.

        Alias sets too small to matter, together less than 0.05% of all bytes, are left out of the
        simulation; their arguments and outputs stay in the total.

        Returns:
          A function from an order (positions in XLA's schedule of `computation`) to bytes.
        """
        sizes = self._buf_size[self._buf_order]
        rest = np.cumsum(sizes[::-1])[::-1]
        keep = int(np.searchsorted(-rest, -_NEGLIGIBLE * max(rest[0], 1))) if len(rest) else 0
        left_out = self._buf_order[keep:]
        counts = (self._kind[left_out] == _ARGUMENT) | self._live_out[left_out]
        counts &= self._kind[left_out] != _CONSTANT
        extra = int(self._buf_size[left_out][counts].sum())
        times = self._times_by_order(computation, orders)

        def estimate(order: np.ndarray) -> int:
            return self._simulate(*times(order), keep).total_bytes + extra

        return estimate

    def _times_by_order(
        self, computation: Computation, orders: Mapping[Computation, Sequence[Instruction]]
    ) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
        """A quicker `times` for many orders of one computation, the others' orders as given.

        What an instruction calls takes the same time wherever it runs, so the points of each
        instruction move together.

        Returns:
          A function from an order (positions in XLA's schedule of `computation`) to `times`.
        """
        instructions = computation.schedule
        assert instructions is not None
        others = dict(orders)
        callers = collections.Counter(
            c for o in orders.values() for i in o for c in i.called_control
        )
        if max(callers.values(), default=0) > 1:  # the last call of a computation sets its times

            def flattened(order: np.ndarray) -> tuple[np.ndarray, int]:
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

        def times(order: np.ndarray) -> tuple[np.ndarray, int]:
            starts = np.empty(len(order), np.int64)
            starts[order] = begin + np.cumsum(lengths[order]) - lengths[order]
            time = base.copy()
            time[flat] = np.repeat(starts, counts) + relative
            return time, total

        return times

    def _points(self, i: Instruction) -> list[int]:
        """The reference points of an instruction and of all that it calls."""
        points = [self._number[i]]
        for computation in i.called_control:
            points += [self._start_ref(computation), self._end_ref(computation)]
            for inner in computation.instructions:
                points += self._points(inner)
        return points

    def _simulate(self, time: np.ndarray, total: int, keep: int) -> Assignment:
        """The assignment of the `keep` largest alias sets at the given logical times."""
        start, end, last = live_ranges(
            time,
            self._start_refs,
            self._end_refs,
            *self._pos,
            *self._use,
            self._readonly,
            total,
            *self._buf,
        )
        allocation, sizes, counted, temporary = _assign(
            start,
            end,
            last,
            self._buf_order[:keep],
            *self._buf,
            self._buf_size,
            self._kind,
            self._live_out,
            self._argument_readonly,
            self._color,
            *self._operands,
            *self._share,
            self._share_pos,
            *self._copied,
        )
        offset = np.zeros(len(allocation), np.int64)
        kept = np.zeros(len(self._buf_size), np.bool_)
        kept[self._buf_order[:keep]] = True
        homeless = (allocation < 0) & kept[self._buffer]
        heaps: list[int] = []
        for color in self._colors:
            ids = np.flatnonzero(homeless & (self._color[self._buffer] == color))
            if not len(ids):
                continue
            ticks = share_in_place(
                ids, start, end, self._size, self._buffer, self._single, *self._heap_share
            )
            size, placed = pack(ids, *ticks, self._size, self.alignment)
            allocation[ids] = len(sizes) + len(heaps)
            offset[ids] = placed[ids]
            heaps.append(int(size))
        temp = 0
        for size in (*heaps, *sizes[temporary]):  # XLA joins all temp allocations into one
            temp = -(-temp // self.alignment) * self.alignment + int(size)
        return Assignment(
            total_bytes=int(sizes[counted].sum()) + temp,
            temp_bytes=temp,
            allocation=allocation,
            offset=offset,
            sizes=np.array([*sizes, *heaps], np.int64),
            start=start,
            end=end,
        )


def _csr(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    pointers = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=pointers[1:])
    return pointers, np.array([x for r in rows for x in r], np.int64)


@njit(cache=True)
def _shares(b, a, position, share_ptr, share_val, share_pos):  # pragma: no cover
    for e in range(share_ptr[b], share_ptr[b + 1]):
        if share_val[e] == a and share_pos[e] == position:
            return True
    return False


@njit(cache=True)
def _interferes(a, b, start, end, last, share_ptr, share_val, share_pos):  # pragma: no cover
    """Whether values a and b need memory of their own (XLA's LiveRangeInterferes)."""
    if start[a] > end[b] or start[b] > end[a]:
        return False
    if end[a] == start[b]:
        return not _shares(b, a, last[a], share_ptr, share_val, share_pos)
    if end[b] == start[a]:
        return not _shares(a, b, last[b], share_ptr, share_val, share_pos)
    return True


@njit(cache=True)
def _assign(
    start,
    end,
    last,
    order,
    buf_ptr,
    buf_val,
    buf_size,
    kind,
    live_out,
    readonly,
    color,
    op_ptr,
    op_val,
    share_ptr,
    share_val,
    share_pos,
    copy_ptr,
    copy_val,
):  # pragma: no cover
    """Homes for alias sets: returns (allocation by value or -1 for the heap, sizes, which
    allocations are arguments or outputs, which are tuple tables, part of temp).
    """
    n = len(start)
    m = len(buf_size)
    allocation = np.full(n, -1, np.int64)
    sizes = np.zeros(m, np.int64)
    colors = np.zeros(m, np.int64)
    usable = np.zeros(m, np.bool_)
    counted = np.zeros(m, np.bool_)
    temporary = np.zeros(m, np.bool_)
    head = np.full(m, -1, np.int64)
    tail = np.full(m, -1, np.int64)
    following = np.full(n, -1, np.int64)
    registered = np.empty(m, np.int64)
    gaps = new_gaps(m)
    clock = end.max() if n else 0
    count = 0
    made = 0
    for b in order:
        home = -1
        lo, hi = buf_ptr[b], buf_ptr[b + 1]
        own = kind[b] != 0
        if not own:
            for e in range(lo, hi):
                v = buf_val[e]
                for f in range(op_ptr[v], op_ptr[v + 1]):
                    candidate = allocation[op_val[f]]
                    if candidate >= 0 and _fits(
                        candidate, b, lo, hi, buf_val, buf_size, live_out, color, sizes, colors,
                        usable, head, following, start, end, last, share_ptr, share_val,
                        share_pos, copy_ptr, copy_val,
                    ):  # fmt: skip
                        home = candidate
                        break
                if home >= 0:
                    break
            if home < 0:
                first = buf_val[lo]
                k = previous(gaps, made, start[first], end[first])
                while k >= 0:
                    candidate = registered[k]
                    if live_out[b] and sizes[candidate] != buf_size[b]:
                        break  # allocations only grow from here
                    if _fits(
                        candidate, b, lo, hi, buf_val, buf_size, live_out, color, sizes, colors,
                        usable, head, following, start, end, last, share_ptr, share_val,
                        share_pos, copy_ptr, copy_val,
                    ):  # fmt: skip
                        home = candidate
                        break
                    k = previous(gaps, k, start[first], end[first])
            if home < 0 and not live_out[b]:
                continue
        if home < 0:
            home = count
            count += 1
            sizes[home] = buf_size[b]
            colors[home] = color[b]
            counted[home] = kind[b] == 2 or (kind[b] != 1 and live_out[b])
            temporary[home] = kind[b] == 3 and not live_out[b]
            usable[home] = kind[b] == 0 or (kind[b] == 2 and not readonly[b])
            if usable[home]:
                registered[made] = home
                put(gaps, made, buf_val[lo:hi], start, end, clock)
                made += 1
        for e in range(lo, hi):
            v = buf_val[e]
            allocation[v] = home
            if head[home] < 0:  # the owner's values stay first: they reject most
                head[home] = v
            else:
                following[tail[home]] = v
            tail[home] = v
    return allocation, sizes[:count], counted[:count], temporary[:count]


@njit(cache=True)
def _fits(
    home, b, lo, hi, buf_val, buf_size, live_out, color, sizes, colors, usable, head, following,
    start, end, last, share_ptr, share_val, share_pos, copy_ptr, copy_val,
):  # fmt: skip  # pragma: no cover
    """XLA's MaybeAssignBuffer, without the assignment."""
    if not usable[home] or colors[home] != color[b] or buf_size[b] > sizes[home]:
        return False
    if live_out[b] and sizes[home] != buf_size[b]:
        return False
    a = head[home]
    while a >= 0:
        for e in range(lo, hi):
            v = buf_val[e]
            if _interferes(v, a, start, end, last, share_ptr, share_val, share_pos):
                return False
            for f in range(copy_ptr[v], copy_ptr[v + 1]):
                if copy_val[f] == a:
                    return False
        a = following[a]
    return True
