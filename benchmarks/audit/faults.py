"""Executables with one fault each, which changes what is read: does the audit say so.

On a GPU, those of `benchmarks.thunks.mutants`, and slices of other addresses. On every target,
faults of a module or of its buffer assignment that no executable of XLA's has: an order in which an
instruction runs before one that it needs, two operands of an instruction in one place, results that
take over other arguments, and layouts that only one side has.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.thunks.mutants import KINDS as THUNKS
from benchmarks.thunks.mutants import mutants
from benchmarks.thunks.subject import Subject
from hlo import xla_pb2
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.gpu_slices import MovingSlice
from hlo.module import parse_module_proto
from olla_xla.check.executable.survey import survey
from olla_xla.compile.gpu_code import read_or_say
from olla_xla.tools.audit.report import ExecutableParts

_HELD = frozenset(("fusion", "copy", "custom-call", "dot", "convolution", "reduce"))


class Fault(NamedTuple):
    """An executable with a fault: the kind, what was done, and what the audit objects to."""

    kind: str
    what: str
    objections: tuple[tuple[str, str], ...]


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
            while (made := MODULES[kind](self.parts, draw)) is not None:
                what, parts = made
                yield self._judged(kind, what, parts, self._moved(parts))

    def _moved(self, parts: ExecutableParts) -> GpuExecutable | None:
        return self.gpu and dataclasses.replace(
            self.gpu, assignment=parts.assignment or self.gpu.assignment
        )

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
        return Fault(kind, what, said.objections)


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

Made = tuple[str, ExecutableParts] | None


def _too_early(parts: ExecutableParts, draw: random.Random) -> Made:
    """An instruction runs before one whose result it reads."""
    proto = parse_module_proto(parts.module)
    options = []
    for computation in proto.computations:
        sequence = list(proto.schedule.sequences[computation.id].instruction_ids) if (
            computation.id in proto.schedule.sequences
        ) else []  # fmt: skip
        place = {k & 0xFFFFFFFF: n for n, k in enumerate(sequence)}
        for i in computation.instructions:
            later = place.get(i.id & 0xFFFFFFFF)
            for operand in i.operand_ids:
                first = place.get(operand & 0xFFFFFFFF)
                if later is not None and first is not None:
                    options.append((computation.id, later, first, i.name))
    if not options:
        return None
    key, later, first, name = draw.choice(options)
    ids = list(proto.schedule.sequences[key].instruction_ids)
    ids.insert(first, ids.pop(later))
    proto.schedule.sequences[key].instruction_ids[:] = ids
    return name, parts._replace(module=proto.SerializeToString())


def _other_argument(parts: ExecutableParts, draw: random.Random) -> Made:
    """A result takes over another argument than the executable has it."""
    proto = parse_module_proto(parts.module)
    entry = next(c for c in proto.computations if c.id == proto.entry_computation_id)
    count = sum(i.opcode == "parameter" for i in entry.instructions)
    entries = proto.input_output_alias.entries
    if not entries or count < 2:
        return None
    chosen = draw.choice(list(entries))
    others = [k for k in range(count) if k != chosen.parameter_number]
    chosen.parameter_number = draw.choice(others)
    what = f"result {list(chosen.output_shape_index)} over argument {chosen.parameter_number}"
    return what, parts._replace(module=proto.SerializeToString())


def _one_sided_layout(parts: ExecutableParts, draw: random.Random) -> Made:
    """A fusion's result, and not what its readers see, has another layout."""
    proto = parse_module_proto(parts.module)
    options = [
        (i, c)
        for c in proto.computations
        for i in c.instructions
        if i.opcode == "fusion"
        and sum(extent > 1 for extent in i.shape.dimensions) > 1
        and len(i.shape.layout.minor_to_major) > 1
    ]
    if not options:
        return None
    chosen, _ = draw.choice(options)
    order = list(chosen.shape.layout.minor_to_major)
    thick = [n for n, k in enumerate(order) if chosen.shape.dimensions[k] > 1]
    a, b = draw.sample(thick, 2)
    order[a], order[b] = order[b], order[a]
    chosen.shape.layout.minor_to_major[:] = order
    return chosen.name, parts._replace(module=proto.SerializeToString())


def _one_place(parts: ExecutableParts, draw: random.Random) -> Made:
    """Two operands of an instruction lie at one address, by XLA's buffer assignment."""
    if not parts.assignment:
        return None
    module = parse_module_proto(parts.module)
    proto = xla_pb2.BufferAssignmentProto.FromString(parts.assignment)
    names = {i.id: i.name for c in module.computations for i in c.instructions}
    made = {
        b.defined_at.instruction_name or names.get(b.defined_at.instruction_id, ""): b.id
        for b in proto.logical_buffers
        if not b.defined_at.shape_index
    }
    where = {s.logical_buffer_id: (a, s) for a in proto.buffer_allocations for s in a.assigned}
    plain = {i.name for c in module.computations for i in c.instructions if i.opcode in _HELD}
    options = []
    for c in module.computations:
        for i in c.instructions if c.id in module.schedule.sequences else ():
            read = [names[k] for k in i.operand_ids if i.opcode == "fusion"]
            options += [
                (made[a], made[b], i.name)
                for a in read
                for b in read
                if a != b and a in plain and a in made and b in made and made[b] in where
                and made[a] in where and where[made[b]][1].size >= where[made[a]][1].size > 0
                and (where[made[a]][0].index, where[made[a]][1].offset)
                != (where[made[b]][0].index, where[made[b]][1].offset)
            ]  # fmt: skip
    if not options:
        return None
    moved, over, name = draw.choice(options)
    source, entry = where[moved]
    target, place = where[over]
    size = entry.size
    kept = [s for s in source.assigned if s.logical_buffer_id != moved]
    rest = [type(entry).FromString(s.SerializeToString()) for s in kept]
    del source.assigned[:]
    source.assigned.extend(rest)
    target.assigned.add(logical_buffer_id=moved, offset=place.offset, size=size)
    return f"operands of {name}", parts._replace(assignment=proto.SerializeToString())


MODULES: dict[str, Callable[[ExecutableParts, random.Random], Made]] = {
    "before what it needs": _too_early,
    "over another argument": _other_argument,
    "a layout of one side": _one_sided_layout,
    "two operands at one address": _one_place,
}

KINDS = (*THUNKS, *SLICES, *MODULES)


def drawn(cases: list[Case], count: int, seed: int) -> list[tuple[str, Fault]]:
    """`count` faults, in turn from all kinds, and of each from all executables."""
    draw = random.Random(seed)
    sources = {k: [(case.name, case.faults(k, draw)) for case in cases] for k in KINDS}
    for of_kind in sources.values():
        draw.shuffle(of_kind)
    found: list[tuple[str, Fault]] = []
    while any(sources.values()) and len(found) < count:
        for of_kind in sources.values():
            while of_kind and len(found) < count:
                name, source = of_kind.pop(0)
                if (fault := next(source, None)) is not None:
                    found.append((name, fault))
                    of_kind.append((name, source))
                    break
    return found
