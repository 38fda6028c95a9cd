"""Which arrays XLA:TPU keeps in VMEM, the memory of a core, instead of HBM.

Its memory-space assignment runs after the schedule that a plan decides, so this is a prediction. In
each computation arrays are taken one after the other, most bytes read and written first, as long as
all that are in VMEM at a step fit. What comes from outside of the computation, leaves it, or
outlives a loop or call in it stays in HBM.
"""

import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from hlo.backend.tpu import TPU
from hlo.exchange import is_transfer
from hlo.module import Computation, Instruction
from hlo.shapes import ShapeIndex

Array = tuple[Instruction, ShapeIndex]
"""An array: the instruction that makes it, and where it is in the instruction's result."""

_FORWARDS = frozenset(("bitcast", "get-tuple-element", "tuple", "optimization-barrier"))

_OUTSIDE = frozenset(("parameter", "constant"))

_Known = dict[int, frozenset[Array]]

_known: weakref.WeakKeyDictionary[Computation, _Known] = weakref.WeakKeyDictionary()
"""Computation -> capacity -> what was found; the planner prices each instruction many times."""


def on_chip(computation: Computation, capacity: int) -> frozenset[Array]:
    """The arrays that XLA is predicted to keep in VMEM, not in HBM, of a computation that runs step
    by step; cached. `capacity`: bytes of VMEM.
    """
    known = _known.setdefault(computation, {})
    if capacity not in known:
        known[capacity] = _packed(computation, capacity)
    return known[capacity]


def leaves_of(i: Instruction, index: ShapeIndex = ()) -> Iterator[Array]:
    """Yields (the instruction that makes it, index there) of each array at `index` of a result,
    through tuples, bitcasts and barriers.
    """
    while i.opcode in _FORWARDS and (i.opcode != "tuple" or index):
        if i.opcode == "get-tuple-element":
            i, index = i.operands[0], (i.tuple_index, *index)
        elif i.opcode == "tuple":
            i, index = i.operands[index[0]], index[1:]
        else:
            i = i.operands[0]
    if i.opcode == "tuple":
        for operand in i.operands:
            yield from leaves_of(operand)
        return
    for inner, shape in i.shape.at(index).indices():
        if not shape.is_tuple:
            yield i, (*index, *inner)


def _packed(computation: Computation, capacity: int) -> frozenset[Array]:
    sequence = computation.schedule or tuple(computation.instructions)
    readers = _readers(computation, sequence)
    breaks = np.cumsum([bool(i.called_control) for i in sequence])
    arrays: list[tuple[int, int, int, int, Array]] = []
    for k, i in enumerate(sequence):
        if not _may_make(i):
            continue
        for index, shape in i.shape.indices():
            steps = readers.get((i, index))
            if shape.is_tuple or steps is None or not steps or shape.bytes > capacity:
                continue
            last = steps[-1]
            if breaks[last] == breaks[k]:
                moved = (1 + len(steps)) * shape.bytes
                arrays.append((-moved, len(arrays), k, last, (i, index)))
    used = np.zeros(len(sequence) + 1, np.int64)
    chosen: set[Array] = set()
    for _, _, first, last, array in sorted(arrays, key=lambda t: t[:2]):
        size = array[0].shape.at(array[1]).bytes
        if int(used[first : last + 1].max()) + size <= capacity:
            used[first : last + 1] += size
            chosen.add(array)
    return frozenset(chosen)


def _may_make(i: Instruction) -> bool:
    """Whether an instruction makes arrays that may lie in VMEM: no transfer, loop or call does."""
    if i.opcode in _FORWARDS or i.opcode in _OUTSIDE or i.called_control:
        return False
    if i.opcode == "custom-call" and i.custom_call_target == TPU.allocating_call:
        return False  # the result of what writes to it in place is that memory
    return not is_transfer(i)


def _readers(
    computation: Computation, sequence: Sequence[Instruction]
) -> dict[Array, list[int] | None]:
    """Array -> steps that read it, ascending; None if it leaves the computation, or a loop, call or
    asynchronous operation reads it.
    """
    readers: dict[Array, list[int] | None] = {}
    for k, i in enumerate(sequence):
        if i.opcode in _FORWARDS:
            continue
        for array in dict.fromkeys(a for o in i.operands for a in leaves_of(o)):
            steps = readers.setdefault(array, [])
            if i.called_control or i.opcode.endswith("-start"):
                readers[array] = None
            elif steps is not None:
                steps.append(k)
    if computation.root is not None:
        readers.update(dict.fromkeys(leaves_of(computation.root)))
    return readers
