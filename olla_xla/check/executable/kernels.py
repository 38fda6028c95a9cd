"""Which operands and results of a kernel are the same memory in an executable.

XLA compiles a kernel for its fusion and for the pattern of buffer slices that are equal. A kernel
whose rounding may depend on that pattern (`rounding`) must have the one of XLA's own executable.
"""

import dataclasses
from collections.abc import Hashable, Mapping

from olla_xla.check.executable.memory import Place
from olla_xla.check.executable.rounding import Rounding
from olla_xla.check.executable.values import MemoryValue, Values, resolve

Pattern = tuple[int, ...]
"""For each array that a kernel reads or writes, operands first: the position of the first one in
the same memory."""


@dataclasses.dataclass(frozen=True)
class KernelMemory:
    """Which operands and results of a kernel lie in the same memory, as two patterns.

    `found` is that of XLA's buffer assignment; `forced` has only what XLA's alias rules force. A
    pattern has, for each operand and then result, the position of the first one in its place.
    """

    found: Pattern
    forced: Pattern


def kernel_memory(
    values: Values,
    shared: Mapping[MemoryValue, Place],
    places: Mapping[MemoryValue, Place],
    target: str,
) -> dict[str, KernelMemory]:
    """Finds which arrays share memory, for each kernel whose rounding may depend on that.

    Returns name of the kernel's instruction -> the patterns of its operands and results. `shared`:
    value -> the buffer that alias rules put it into. `places`: value -> assigned bytes. `target`:
    "cpu", "cuda" or "tpu".
    """
    rounding, known = Rounding(target), {}
    memories: dict[str, KernelMemory] = {}
    for frame in values.frame.every():
        for op in frame.body.ops:
            if op.opcode in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast"):
                continue
            if op not in known:
                runs_others = op.opcode in ("while", "conditional", "call", "async-start")
                known[op] = not runs_others and rounding.depends_on_memory(op)
            if known[op]:
                given = [resolve(frame.at[o][i]) for o in (*op.operands, op) for i in frame.at[o]]
                memories[op.name] = KernelMemory(_pattern(given, places), _pattern(given, shared))
    return memories


def differing(found: Mapping[str, KernelMemory], expected: Mapping[str, Pattern]) -> list[str]:
    """Names of the kernels whose arrays share memory otherwise than expected.

    Args:
      found: kernel name -> its patterns, as assigned and as forced by XLA's aliases.
      expected: kernel name -> pattern. A kernel that has none here, or one for another number of
        arrays, is expected to have its own forced pattern.
    """
    return [
        name
        for name, memory in found.items()
        if memory.found != _or_forced(expected.get(name), memory)
    ]


def _or_forced(expected: Pattern | None, memory: KernelMemory) -> Pattern:
    if expected is None or len(expected) != len(memory.found):
        return memory.forced
    return expected


def _pattern(given: list[MemoryValue], places: Mapping[MemoryValue, Place]) -> Pattern:
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(places.get(v, v), k) for k, v in enumerate(given))
