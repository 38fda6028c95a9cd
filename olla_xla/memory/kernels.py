"""Which operands and results of a kernel are the same memory, where its rounding may depend on it.

XLA compiles a kernel from its fusion and from which of the slices of memory it is given are equal.
So where rounding may depend on that (`hlo.rounding`), a plan gives a kernel the same pattern of
equal slices as XLA's own order does.
"""

from collections.abc import Iterable, Mapping

from hlo.module import Instruction
from hlo.rounding import may_depend_on_memory
from hlo.shapes import ShapeIndex
from hlo.sharing import Sharing
from hlo.values import Dataflow
from olla_xla.memory.assignment.model import Assignment

Pattern = tuple[int, ...]
"""Of each array that a kernel reads or makes (`leaves`), the number of the first one that is the
same slice of memory; its own where none before it is."""


def leaves(i: Instruction) -> list[tuple[Instruction, ShapeIndex]]:
    """Lists the arrays of an instruction, all that it reads, by operand, then its results: each as
    (the instruction that defines it, tuple index).
    """
    return [
        (source, index)
        for source in (*i.operands, i)
        for index, shape in source.shape.indices()
        if not shape.is_tuple
    ]


def find_kernels(
    dataflow: Dataflow, pairs: Sharing, target: str, *, every: bool = False
) -> list[Instruction]:
    """Kernels (instructions) whose rounding may depend on which of their arrays share memory.

    Args:
      dataflow: of a module. pairs: values that may share memory. target: a platform's name.
      every: also those whose arrays share memory alike in any order: those of copies may not.
    """
    values = dataflow.values
    if every:
        listed = (i for c in dataflow.module.control_computations for i in c.instructions)
        return [i for i in listed if not i.called_control and may_depend_on_memory(i, target)]
    free: dict[Instruction, None] = {}
    for v in values:
        if not v.instruction.called_control and any(
            values[a].buffer != v.buffer for a, _ in pairs[v.id]
        ):
            free[v.instruction] = None
    return [i for i in free if may_depend_on_memory(i, target)]


def pattern(i: Instruction, dataflow: Dataflow, assignment: Assignment) -> Pattern:
    """Which arrays of an instruction (`leaves`) share memory under a buffer assignment: for each,
    the number of the first in the same place.
    """
    first: dict[tuple[int, int], int] = {}
    firsts = []
    for k, where in enumerate(leaves(i)):
        v = dataflow.at[where].id
        place = int(assignment.allocation[v]), int(assignment.offset[v])
        firsts.append(first.setdefault(place, k))
    return tuple(firsts)


def inherited(kept: Mapping[str, Pattern], copies: Iterable[tuple[str, str]]) -> dict[str, Pattern]:
    """A copy of `kept`, name -> pattern (which arrays share memory), to which copied instructions
    are added with their originals' patterns. `copies`: (copy's name, original's name).
    """
    return {**kept, **{name: kept[original] for name, original in copies if original in kept}}


def wanted(i: Instruction, kept: Mapping[str, Pattern]) -> Pattern | None:
    """The pattern that an instruction must have, by `kept`: for each of its arrays, the first one
    that must be the same memory. None without one, or if the number of its arrays has changed.
    """
    own = kept.get(i.name)
    return None if own is None or len(own) != len(leaves(i)) else own


def overwritten(
    i: Instruction, kept: Mapping[str, Pattern], index: ShapeIndex | None = None
) -> list[tuple[Instruction, ShapeIndex]]:
    """The operands, as (instruction, tuple index), whose memory results of `i` must have by `kept`:
    instruction name -> pattern (which of its arrays share memory). `index`: of the result that
    overwrites; None: any.
    """
    operands = (o for r, o in _overwrites(i, kept) if index is None or r[1] == index)
    return list(dict.fromkeys(operands))


def joined_buffers(
    dataflow: Dataflow, instructions: Iterable[Instruction], kept: Mapping[str, Pattern]
) -> dict[int, int]:
    """Finds which buffers must be one memory so that kernels' arrays share memory as `kept` (kernel
    name -> pattern) demands. A result that overwrites an operand has the operand's memory, and so
    have all values in the buffer of either, such as a donated argument that the result replaces.

    Returns:
      Buffer -> the one that stands for all that are joined with it; others are not in it.
    """
    owner: dict[int, int] = {}

    def stands_for(buffer: int) -> int:
        while owner.get(buffer, buffer) != buffer:
            buffer = owner[buffer]
        return buffer

    for i in instructions:
        for result, operand in _overwrites(i, kept):
            a, b = (stands_for(dataflow.at[where].buffer) for where in (operand, result))
            owner[a] = owner[b] = a
    return {buffer: stands_for(buffer) for buffer in owner}


def _overwrites(
    i: Instruction, kept: Mapping[str, Pattern]
) -> list[tuple[tuple[Instruction, ShapeIndex], tuple[Instruction, ShapeIndex]]]:
    """Pairs (result, operand) of arrays of `i` such that by its pattern in `kept` (which arrays
    share memory) the first overwrites the second. An array is (instruction, tuple index).
    """
    own = wanted(i, kept)
    if own is None:
        return []
    arrays = leaves(i)
    first = next(k for k, (source, _) in enumerate(arrays) if source is i)
    return [(arrays[k], arrays[own[k]]) for k in range(first, len(own)) if own[k] < first]
