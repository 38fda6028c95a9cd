"""Fusions that must not read an operand as invariant, but were given a kernel that does.

With programmatic dependent launch a kernel may start before the one ahead of it has ended. After
its scheduler XLA marks the fusions that read what such a one writes: those operands must not be
loaded as invariant (`ld.global.nc`, which a cache that is not coherent may serve). A kernel
that it has compiled is reused for fusions of equal code, and the mark is no part of that.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hlo.gpu_executable import GpuExecutable
from hlo.module import parse_module_proto

__all__ = ["Invariant", "invariant_reads"]

_MARK = "xla.no_invariant_operands"


class Invariant(NamedTuple):
    """Fusions of an executable.

    Attributes:
      marked: those with operands that they must not read as invariant.
      wrong: of these, (fusion, the one that its kernel was compiled for) where that has no mark.
    """

    marked: int
    wrong: tuple[tuple[str, str], ...]


def invariant_reads(module: bytes, executable: GpuExecutable) -> Invariant:
    """Counts them.

    Args:
      module: the executable's, serialized. executable: as it was read.
    """
    marks: dict[str, set[str]] = {}
    for computation in parse_module_proto(module).computations:
        for i in computation.instructions:
            if _MARK in i.frontend_attributes.map:
                marks[i.name] = set(i.frontend_attributes.map[_MARK].split(","))
    kernels = {thunk.name: thunk.kernel for thunk in executable.all_thunks if thunk.kernel}
    # A kernel is named for the fusion that it was compiled for.
    first = {re.sub(r"\W", "_", name): name for name in kernels}
    wrong = []
    for name, operands in marks.items():
        origin = first.get(kernels.get(name, ""), name)
        if not operands <= marks.get(origin, set()):
            wrong.append((name, origin))
    return Invariant(sum(name in kernels for name in marks), tuple(sorted(wrong)))
