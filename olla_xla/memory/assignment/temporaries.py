"""XLA's one allocation of all temporaries, and asynchronous collectives that it makes synchronous.

After XLA's BufferAssignment::CombineTempAllocations and ConvertAsyncCollectivesToSync.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlo.backend import platform
from hlo.module import Computation, Instruction, Module
from hlo.values import Dataflow

_NOTHING = frozenset("bitcast constant get-tuple-element parameter tuple".split())
"""Opcodes that take no time, so that nothing overlaps with a transfer when they stand beside it."""

_COLLECTIVES = frozenset(
    "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all "
    "reduce-scatter".split()
)


class Starts(NamedTuple):
    """All asynchronous collectives of a module, each a pair of a start and a done instruction. XLA
    makes one operation of a start and its done if nothing runs in between. It has one tuple table
    where they had several, and takes one step.

    Attributes:
      start, done: int64 [pairs], their instructions by number.
      tables: by pair, ids of the tuple tables that are then not made.
      steps: by pair, instructions by number that then take no step: all but the collective itself.
      work: int64 [any], the instructions that count as work in between, by number.
    """

    start: NDArray[np.int64]
    done: NDArray[np.int64]
    tables: Sequence[Sequence[int]]
    steps: Sequence[Sequence[int]]
    work: NDArray[np.int64]

    def alone(self, time: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers, int64, of the pairs of a start and a done without work between them
        at these times; XLA makes one operation of each.
        """
        if not len(self.start):
            return self.start
        at = np.sort(time[self.work])
        begun, ended = (np.searchsorted(at, time[which]) for which in (self.start, self.done))
        return np.flatnonzero(begun == ended)

    def joined_times(self, time: NDArray[np.int64], alone: NDArray[np.int64]) -> NDArray[np.int64]:
        """The logical times (of points of the schedule, int64) if each pair of a start and a done
        in `alone` takes one step.
        """
        gone = np.sort(time[[number for k in alone for number in self.steps[k]]])
        return time - np.searchsorted(gone, time, side="right")

    def steps_gone(self, alone: NDArray[np.int64]) -> int:
        """How many steps the schedule loses if the pairs of start and done numbered in `alone`,
        int64 [any], take one step each.
        """
        return sum(len(self.steps[k]) for k in alone)

    def gone(self, alone: NDArray[np.int64]) -> list[int]:
        """Ids of the tuple tables that do not exist if each pair in `alone` is one operation."""
        return [v for k in alone for v in self.tables[k]]


def starts(dataflow: Dataflow, numbers: dict[Instruction, int], target: str) -> Starts:
    """The pairs (start, done) of asynchronous collectives of a module; none on a CPU. `numbers`:
    instruction -> its number; `target`: a platform's name.
    """
    pairs, work = [], []
    within = {c for i in numbers if _begins(i) for c in i.called_control}
    for i, number in numbers.items():
        ends = i.opcode.endswith("-done") and _kind(i.operands[0]) in _COLLECTIVES
        if ends:
            pairs.append((i.operands[0], i))
        elif not (_begins(i) or i.computation in within or i.opcode in _NOTHING):
            work.append(number)
    if not platform(target).runs_beside:
        pairs = []
    tables: list[list[int]] = []
    steps: list[list[int]] = []
    at = dataflow.at
    for start, done in pairs:
        own = [at[start, index] for index, shape in start.shape.indices() if shape.is_tuple]
        own += [at[c.root, ()] for c in start.called_control if c.root is not None]
        tables.append([v.id for v in own if v.shape.is_tuple])
        within = [i for c in start.called_control for i in (c.schedule or ())[:-1]]
        own_step = [start] if start.called_control else []
        steps.append([numbers[i] for i in (*within, *own_step, done)])
    return Starts(
        np.array([numbers[start] for start, _ in pairs], np.int64),
        np.array([numbers[done] for _, done in pairs], np.int64),
        tables,
        steps,
        np.array(work, np.int64),
    )


def _begins(i: Instruction) -> bool:
    """Whether an instruction is the start of an asynchronous collective."""
    return i.opcode.endswith("-start") and _kind(i) in _COLLECTIVES


def _kind(start: Instruction) -> str:
    """Opcode of the operation that a start instruction begins; "" if it is not known."""
    if start.opcode == "async-start":
        root = start.called[0].root
        return "" if root is None else root.opcode
    return start.opcode.removesuffix("-start")


def applies(module: Module) -> bool:
    """Whether an instruction of a module, no fusion, applies a computation, like reduce or sort."""
    control = list(module.control_computations)
    seen: set[Computation] = set(control)
    for computation in control:  # grows on the way
        for i in computation.instructions:
            for called in i.called:
                if i.opcode != "fusion" and called not in seen:
                    return True
                if called not in seen:
                    seen.add(called)
                    control.append(called)
    return False


def joined(tables: NDArray[np.int64], heaps: Sequence[int], applied: bool, alignment: int) -> int:
    """Total bytes of the single allocation in which XLA puts all temporary ones end to end. The
    last of them is not padded. XLA swaps the first temporary allocation with the last one that is
    not temporary, as long as there are such pairs (std::partition), and joins them in the order
    that results. The last allocations belong to computations that reductions apply: if there are
    any, the first tuple table comes last, else a heap.

    Args:
      tables: int64 [any], bytes of the tuples' tables, in the order in which they were made.
      heaps: bytes of the heaps, which are made after them.
      applied: whether there are such computations.
    """
    sizes = [*tables.tolist(), *heaps]
    if not sizes:
        return 0
    last = sizes[0] if applied else sizes[-1]
    return (
        sum(-(-size // alignment) * alignment for size in sizes)
        + last
        - (-(-last // alignment) * alignment)
    )
