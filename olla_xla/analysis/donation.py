"""The donation audit: what became of every donated argument, and what else could be donated.

A donated argument costs nothing if an output takes over its memory ("aliased"). XLA may instead
use its memory for temporaries ("reused"). Otherwise the donation is lost, for one of a few reasons:
no output has its type (shape or dtype), the one that has is laid out or sharded otherwise, or
another argument has it. An aliased argument can still cost a copy: where something reads the
argument after the operator that writes its replacement.
"""

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hlo.module import Instruction
from hlo.shapes import ShapeIndex
from hlo.values import Dataflow, Value
from olla_xla.analysis.leaves import (
    Leaf,
    not_donated,
    other_form,
    parameter_of,
    stands_at,
    to_donate,
    unlike,
)
from olla_xla.analysis.memory_view import MemoryView
from olla_xla.analysis.reading import derivatives
from olla_xla.memory.sources import short_line


class DonationOutcome(enum.StrEnum):
    """What became of an argument's memory: reused by an output, by temporaries, or not."""

    ALIASED = "aliased"
    """An output takes it over."""

    COPIED = "aliased, with a copy"
    """An output takes it over, and XLA copies to make that possible."""

    REUSED = "reused"
    """No output takes it over; temporaries lie in it."""

    LOST = "lost"
    """It was donated, and nothing uses it."""

    UNREAD = "not read"
    """It was donated, and the step does not read it: it is not even passed."""

    POSSIBLE = "not donated"
    """It was not donated, although an output of its type takes memory of its own."""


@dataclasses.dataclass(frozen=True)
class DonationRow:
    """What became of the memory of one argument.

    Attributes:
      path: of the argument. type: its dtype and shape. bytes: its size.
      outcome: what became of its memory. why: why it is not reused better, or "".
      output: path of the output that takes it over, or could; or "".
      argnum: number of the positional argument that holds it; None for a keyword argument.
    """

    path: str
    type: str
    bytes: int
    outcome: DonationOutcome
    output: str = ""
    why: str = ""
    argnum: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the row's fields by name, as a dict for JSON."""
        return {**dataclasses.asdict(self), "outcome": str(self.outcome)}


@dataclasses.dataclass(frozen=True)
class DonationAudit:
    """One row for each argument array that was donated, is aliased, or could have been donated.

    Attributes:
      rows: the outcomes that cost most first, "aliased" last; of one outcome the largest first.
      least_bytes: `trouble`, the rows worth a remedy, leaves out smaller arguments.
    """

    rows: tuple[DonationRow, ...]
    least_bytes: int = 0

    def count(self, *outcomes: DonationOutcome) -> int:
        """Returns how many arguments have one of these outcomes."""
        return sum(row.outcome in outcomes for row in self.rows)

    def bytes(self, *outcomes: DonationOutcome) -> int:
        """Returns the total bytes of the arguments that have one of these outcomes."""
        return sum(row.bytes for row in self.rows if row.outcome in outcomes)

    @property
    def requested(self) -> int:
        """How many argument arrays the caller donated."""
        return len(self.rows) - self.count(DonationOutcome.POSSIBLE)

    @property
    def trouble(self) -> tuple[DonationRow, ...]:
        """Rows of at least `least_bytes` whose memory no output reuses, or only with a copy."""
        least = max(self.least_bytes, 1)
        return tuple(r for r in self.rows if r.outcome in _COSTLY and r.bytes >= least)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON: rows, sums by outcome ([arguments, bytes]), and `requested`."""
        sums = {str(o): [self.count(o), self.bytes(o)] for o in DonationOutcome if self.count(o)}
        return {
            "requested": self.requested,
            "outcomes": sums,
            "rows": [row.to_dict() for row in self.rows],
        }


_LEAST_SHARE = 0.001
"""Part of the step's memory below which an argument is not reported as trouble."""

_COSTLY = (
    DonationOutcome.LOST,
    DonationOutcome.POSSIBLE,
    DonationOutcome.COPIED,
    DonationOutcome.REUSED,
    DonationOutcome.UNREAD,
)
_RANK = {outcome: k for k, outcome in enumerate((*_COSTLY, DonationOutcome.ALIASED))}


def audit(
    view: MemoryView, dataflow: Dataflow, taken: Sequence[Leaf], returned: Sequence[Leaf]
) -> DonationAudit:
    """Finds what became of each donated argument, and which others could be donated.

    Args:
      view: the compiled module's memory. dataflow: its values.
      taken, returned: the arrays that the function takes and returns.
    """
    module = dataflow.module
    outputs = {where: index for index, where in module.aliases.items()}
    kept = {_number(index) for index in module.aliases}
    free = [r for r in returned if r.number not in kept]
    replaced = [r for r in returned if r.number in kept]
    by_number = {r.number: r for r in returned}
    rows = []
    taken_over = {outputs[parameter_of(t)]: t for t in taken if parameter_of(t) in outputs}
    names = _by_path(taken, taken_over, by_number)
    made = derivatives(module)
    for actual in taken:
        where, leaf = parameter_of(actual), names.get(actual, actual)
        if where in outputs:
            result = by_number.get(_number(outputs[where]))
            why = _copy(view, dataflow, actual, outputs[where], by_number)
            if why and result is not None:
                why = other_form(leaf, result) or why
            outcome = DonationOutcome.COPIED if why else DonationOutcome.ALIASED
            rows.append(_row(leaf, outcome, "" if result is None else result.path, why))
        elif leaf.donated and leaf.number is None:
            rows.append(
                _row(leaf, DonationOutcome.UNREAD, "", "the function does not read this argument")
            )
        elif leaf.donated:
            outcome = DonationOutcome.REUSED if _is_reused(view, actual) else DonationOutcome.LOST
            rows.append(_row(leaf, outcome, *why_lost(leaf, free, replaced)))
    replacing = [r for r in free if r.number not in made]
    for leaf, result in not_donated(taken, replacing, set(outputs)):
        why = (
            f"output {result.path} has the same type and takes new memory; "
            f"{to_donate([leaf])} saves that if the caller no longer needs the argument"
        )
        rows.append(_row(leaf, DonationOutcome.POSSIBLE, result.path, why))
    rows.sort(key=lambda row: (_RANK[row.outcome], -row.bytes, row.path))
    return DonationAudit(tuple(rows), math.ceil(_LEAST_SHARE * view.total_bytes))


def _by_path(
    taken: Sequence[Leaf], taken_over: Mapping[ShapeIndex, Leaf], results: Mapping[int | None, Leaf]
) -> dict[Leaf, Leaf]:
    """For each argument, the argument as which its donation is reported: mostly itself.
    JAX gives an output the memory of the first donated argument of its type (`taken_over`). Where
    another donated one stands at the output's path (in `results`, by number), the two are swapped:
    either could be the one that no output takes over.
    """
    says = {leaf: leaf for leaf in taken}
    donated = [t for t in taken if t.donated and t.number is not None]
    for output, leaf in taken_over.items():
        result = results.get(_number(output))
        if result is None or stands_at(result, says[leaf]):
            continue
        alike = (t for t in donated if t.type == leaf.type and stands_at(result, t))
        own = next(alike, None)
        if own is None:
            continue
        holder = next(t for t, said in says.items() if said is own)
        says[leaf], says[holder] = own, says[leaf]
    return says


def _number(index: ShapeIndex) -> int:
    """The number of the result that a tuple index of the module's output leads to."""
    return index[0] if index else 0


def _row(leaf: Leaf, outcome: DonationOutcome, output: str, why: str) -> DonationRow:
    return DonationRow(leaf.path, leaf.type, leaf.bytes, outcome, output, why, leaf.argnum)


def why_lost(leaf: Leaf, free: Sequence[Leaf], replaced: Sequence[Leaf]) -> tuple[str, str]:
    """Why no output reuses a donated argument's memory: (path of the nearest output or "", reason).
    `free`: outputs in memory of their own. `replaced`: outputs in arguments' memory.
    """
    free = sorted(free, key=lambda r: not stands_at(r, leaf))  # its own first
    if same := [r for r in free if r.type == leaf.type]:
        reason = other_form(leaf, same[0])
        return same[0].path, reason or f"XLA did not reuse the argument for output {same[0].path}"
    if near := [r for r in free if r.shape == leaf.shape]:
        return near[0].path, unlike("dtype", leaf.dtype, near[0], near[0].dtype)
    if near := [r for r in free if r.dtype == leaf.dtype and r.bytes == leaf.bytes]:
        return near[0].path, unlike("shape", leaf.type, near[0], near[0].type)
    if taken := [r for r in replaced if r.type == leaf.type]:
        number = f"{len(taken)} outputs" if len(taken) > 1 else "one output"
        return "", f"other arguments' memory already holds {number} of this argument's type"
    if near := [r for r in free if r.path and stands_at(r, leaf)]:
        return near[0].path, unlike("shape", leaf.type, near[0], near[0].type)
    return "", f"no output has the argument's type, {leaf.type}"


def _is_reused(view: MemoryView, leaf: Leaf) -> bool:
    """Whether a value other than the argument itself lies in the argument's memory at any step."""
    memory = view._occupancy
    its = [k for k, a in enumerate(memory.allocations) if a.parameter == parameter_of(leaf)]
    return any(
        allocation in its and not _is_parameter(value, leaf.number)
        for allocation, value in zip(memory.allocation.tolist(), memory.values, strict=True)
    )


def _is_parameter(value: Value, number: int | None) -> bool:
    i = value.instruction
    return i.opcode == "parameter" and i.parameter_number == number


# Copies.


def _copy(
    view: MemoryView,
    dataflow: Dataflow,
    leaf: Leaf,
    output: ShapeIndex,
    results: Mapping[int | None, Leaf],
) -> str:
    """Why XLA copies an argument (`leaf`), or the output that takes over its memory; "" if neither
    is copied, or only the argument to that output. `output`: its index. `results`: by number.
    """
    module, memory = dataflow.module, view._occupancy
    root = module.entry.root
    assert root is not None and leaf.number is not None
    steps = {i: k for k, i in enumerate(memory.instructions) if i is not None}
    argument = dataflow.at[module.entry.parameters[leaf.number], ()]
    writer = dataflow.at[root, output].instruction
    if _is_copy(writer):
        source = dataflow.at[writer.operands[0], ()]
        if source is argument:
            return ""
        maker = source.instruction
        if maker.opcode == "parameter":
            name = maker.op_name or source.name
            return f"the output that replaces this argument is argument {name}, which XLA copies"
        late = _later(argument, maker, steps)
        return _because(
            view, late, maker, f"XLA copies the output that replaces the argument ({source.name})"
        )
    for use in argument.uses:
        i = use.instruction
        if _is_copy(i) and i is not writer and i.shape == argument.shape:
            copied = dataflow.at[i, ()]
            kept = [k for k, _ in root.shape.indices() if dataflow.at.get((root, k)) is copied]
            if kept:
                result = results.get(_number(kept[0]))
                path = "" if result is None else f" as {result.path}"
                return f"the argument is also returned{path}, so XLA copies it"
            return _because(view, _later(copied, writer, steps), writer, "XLA copies it first")
    return ""


def _is_copy(i: Instruction) -> bool:
    if i.opcode == "fusion":
        inside = {inner.opcode for inner in i.called[0].instructions}
        return "copy" in inside and inside <= {"parameter", "copy", "bitcast"}
    return i.opcode == "copy"


def _later(
    value: Value, writer: Instruction, steps: Mapping[Instruction, int]
) -> list[Instruction]:
    """The instructions that read `value` at a later step than that of instruction `writer`."""
    after = steps.get(writer, 0)
    return [u.instruction for u in value.uses if steps.get(u.instruction, -1) > after]


def _because(
    view: MemoryView, readers: Sequence[Instruction], writer: Instruction, what: str
) -> str:
    line = view._describer.line
    if not readers:
        return f"{what}, though after {_named(writer, line(writer))} nothing reads the argument"
    reader = readers[-1]
    return (
        f"{_named(reader, line(reader))} reads the argument after "
        f"{_named(writer, line(writer))} writes its new value; {what}"
    )


def _named(i: Instruction, line: str) -> str:
    return f"{i.name} ({short_line(line)})" if line else i.name
