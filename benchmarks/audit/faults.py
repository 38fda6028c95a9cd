"""Executables with one fault each, which changes what is read: does the audit say so.

On a GPU, those of `benchmarks.thunks.mutants`, and slices of other addresses. On every target,
faults of the module alone, of `benchmarks.mutants`. None is run: `benchmarks mutants --audit` does
that, on a CPU.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator

from benchmarks.mutants.kinds import mutated
from benchmarks.thunks.faults import Fault, in_turn
from benchmarks.thunks.mutants import KINDS as THUNKS
from benchmarks.thunks.mutants import mutants
from benchmarks.thunks.subject import Subject
from hlo.gpu_executable import GpuExecutable, GpuThunk, MovingSlice
from olla_xla.check.executable.survey import survey
from olla_xla.compile.gpu_code import read_or_say
from olla_xla.tools.audit.report import ExecutableParts


class Case:
    """An executable that faults are put into.

    Args:
      name: for reports. parts: the executable.
    """

    def __init__(self, name: str, parts: ExecutableParts) -> None:
        self.name, self.parts = name, parts
        self.gpu = read_or_say(parts.executable)
        self._subject: Subject | None = None

    def faults(self, kind: str, draw: random.Random) -> Iterator[Fault]:
        """Faults of a kind without end; none where the executable has no place for it."""
        if kind in THUNKS and self.gpu is not None:
            self._subject = self._subject or Subject(self.name, self.parts.module, self.gpu)
            for mutant in mutants(self._subject, kind, draw):
                yield self._judged(kind, mutant.what, executable=mutant.executable)
        elif kind in SLICES and self.gpu is not None:
            found = [t.name for t in self.gpu.all_thunks if any(s.is_cut for s in t.slices)]
            while found:
                name = draw.choice(found)
                changed = _with_slices(self.gpu, name, SLICES[kind])
                if changed == self.gpu:
                    return
                yield self._judged(kind, name, executable=changed)
        elif kind in MODULES:
            while made := mutated(self.parts.module, kind, str(draw.random())):
                parts = self.parts._replace(module=made[1])
                if kind.startswith("layout"):  # read from text, with other ids
                    yield self._judged(kind, made[0], parts._replace(assignment=b""))
                else:
                    yield self._judged(kind, made[0], parts, self.gpu)

    def _judged(
        self,
        kind: str,
        what: str,
        parts: ExecutableParts | None = None,
        executable: GpuExecutable | None = None,
    ) -> Fault:
        parts = parts or self.parts
        said = survey(
            parts.module, parts.target, assignment=parts.assignment, executable=executable
        )
        return self.name, kind, what, "; ".join(map(": ".join, said.objections))


def _with_slices(
    executable: GpuExecutable, name: str, change: Callable[[MovingSlice], MovingSlice]
) -> GpuExecutable:
    """The executable with the slices of one thunk changed."""

    def of(thunk: GpuThunk) -> GpuThunk:
        inner = tuple(tuple(map(of, sequence)) for sequence in thunk.inner)
        slices = thunk.slices
        if thunk.name == name:
            slices = tuple(change(s) if s.is_cut else s for s in slices)
        return dataclasses.replace(thunk, inner=inner, slices=slices)

    return dataclasses.replace(executable, thunks=tuple(map(of, executable.thunks)))


def _backwards(s: MovingSlice) -> MovingSlice:
    return s._replace(stride=-s.stride, start=0 if s.stride < 0 else s.start + s.stride)


SLICES: dict[str, Callable[[MovingSlice], MovingSlice]] = {
    "a stride of the other sign": _backwards,
    "twice the stride": lambda s: s._replace(stride=2 * s.stride),
    "no stride": lambda s: s._replace(stride=0),
    "another start": lambda s: s._replace(start=s.start + s.size if not s.start else 0),
    "half of a slice": lambda s: s._replace(size=s.size // 2),
    "another loop's iterations": lambda s: s._replace(loop=(s.loop or 0) + 1),
}

MODULES = tuple("before_operand donation layout_fusion layout_element layout_parameter".split())

KINDS = (*THUNKS, *SLICES, *MODULES)


def drawn(cases: list[Case], count: int, seed: int) -> list[Fault]:
    """`count` faults, taken in turn from all kinds and all executables."""
    draw = random.Random(seed)
    sources = [case.faults(kind, draw) for case in cases for kind in KINDS]
    draw.shuffle(sources)
    return in_turn(sources, count)
