"""What is in memory at the peak of a step, and why: `Analysis`, and how it is made of a module.

An analysis file is one JSON object: `{"format": "olla_xla.analysis", "version": 1, ...}` with what
`Analysis.to_dict` gives.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlo.buffer_assignment import BufferAssignment
from hlo.gc_pause import without_collection
from hlo.module import Computation, Instruction, Module
from hlo.trip_count import trip_count
from olla_xla.analysis.bound import BoundView, bound_view
from olla_xla.analysis.category import Category
from olla_xla.analysis.donation import DonationAudit, audit
from olla_xla.analysis.leaves import Leaf, stands_at
from olla_xla.analysis.live_tensor import Describer, LiveTensor
from olla_xla.analysis.memory_view import MemoryView, memory_view
from olla_xla.analysis.op_names import phase_of
from olla_xla.analysis.ran_again import RanAgain
from olla_xla.analysis.reading import DERIVATIVE, trains
from olla_xla.analysis.remedy import Remedy
from olla_xla.errors import InputError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.plan import Plan
from olla_xla.problem.whole_file import write_text
from olla_xla.version import to_install

FORMAT, VERSION = "olla_xla.analysis", 1


class Executable(NamedTuple):
    """A serialized, scheduled HloModuleProto, and XLA's buffer assignment of it (None: unknown)."""

    module: bytes
    assignment: BufferAssignment | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Analysis:
    """The memory that one step takes, in XLA's order and in a plan's, and a bound for every order.
    `print(analysis)` shows its tables, and so does a notebook; `repr` is one line.

    Attributes:
      title: what was analysed. target: "cpu", "cuda" or "tpu".
      xla: memory in XLA's own order. planned: in the plan's order, or None without a plan.
      bound: no order of XLA's module needs less, or, where the plan changes its operators, of the
        plan's module; with the tensors that prove it.
      lower_bound_bytes: the larger of `bound.bytes` and the plan's own lower bound.
      loops: the loops of XLA's module.
      donation: what became of donated arguments; None where the arguments are not known.
      plan: the plan, or None.
      remedy: what would save memory, if remedies were tried; else None.
      available_bytes: the device's memory, if XLA refused its own order as too large; else None.
      devices: number of devices that run the step; all sizes are of one of them.
      untrained: outputs of a train step that training never changes, or None.
      ran_again: what XLA's own rematerialization adds in its own order, or None.
    """

    title: str
    target: str
    xla: MemoryView
    planned: MemoryView | None
    bound: BoundView
    lower_bound_bytes: int
    loops: tuple[LoopView, ...]
    donation: DonationAudit | None = None
    plan: Plan | None = dataclasses.field(default=None, repr=False)
    remedy: Remedy | None = None
    available_bytes: int | None = None
    devices: int = 1
    untrained: Untrained | None = None
    ran_again: RanAgain | None = None

    @property
    def views(self) -> tuple[MemoryView, ...]:
        """The memory in XLA's own order, then that in the plan's order if there is a plan."""
        return (self.xla,) if self.planned is None else (self.xla, self.planned)

    @property
    def gap(self) -> float:
        """The plan's total, or XLA's without one, / the lower bound - 1; 0.0 if the bound is 0."""
        bound = self.lower_bound_bytes
        return self.views[-1].total_bytes / bound - 1 if bound else 0.0

    def to_dict(self, timeline: bool = False) -> dict[str, Any]:
        """Returns a dict for JSON, without the plan; `timeline` adds bytes in use at each step."""
        return {
            "title": self.title,
            "target": self.target,
            "xla": self.xla.to_dict(timeline),
            "planned": None if self.planned is None else self.planned.to_dict(timeline),
            "bound": self.bound.to_dict(),
            "lower_bound_bytes": self.lower_bound_bytes,
            "loops": [loop.to_dict() for loop in self.loops],
            "donation": None if self.donation is None else self.donation.to_dict(),
            "remedy": None if self.remedy is None else self.remedy.to_dict(),
            "available_bytes": self.available_bytes,
            "devices": self.devices,
            "untrained": None if self.untrained is None else dataclasses.asdict(self.untrained),
            "ran_again": None if self.ran_again is None else dataclasses.asdict(self.ran_again),
        }

    def document(self) -> dict[str, Any]:
        """Returns the content of an analysis file (JSON, read by `olla_xla diff`) as a dict."""
        return {"format": FORMAT, "version": VERSION, **self.to_dict()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an analysis file, which `olla_xla diff` reads; InputError if it cannot."""
        write_text(path, json.dumps(self.document(), indent=1) + "\n")

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes the analysis to `path` as one HTML file, which loads no other file.
        Raises InputError if the file cannot be written, or bokeh is missing.
        """
        write_text(path, _optional("html_page", "report").page(self))

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draws bytes in use over the schedule's steps as PNG, SVG or PDF, by the suffix of `path`.
        Raises InputError for another suffix, if it cannot be written, or matplotlib is missing.
        """
        _optional("figure", "figures").draw(self, Path(path))

    def __repr__(self) -> str:
        """One line: the total bytes of each order and the lower bound."""
        totals = ", ".join(f"{v.name} {v.total_bytes / 2**20:,.1f} MB" for v in self.views)
        least = f"bound {self.lower_bound_bytes / 2**20:,.1f}"
        return f"<Analysis of {self.title}: {totals}, {least}>"

    def __str__(self) -> str:
        """The analysis' tables as text, as the command line prints them, within 80 columns."""
        return _terminal().text(self)

    def _repr_html_(self) -> str:
        """The tables of the analysis as HTML, which notebooks show."""
        return _terminal().html(self)


def analyze_module(
    executable: Executable,
    target: str,
    *,
    title: str = "",
    planned: Executable | None = None,
    plan: Plan | None = None,
    leaves: tuple[Sequence[Leaf], Sequence[Leaf]] | None = None,
    own_order: str = "XLA's order",
    available_bytes: int | None = None,
    devices: int = 1,
    ran_again: RanAgain | None = None,
) -> Analysis:
    """Analyses the memory that a scheduled module takes.

    Args:
      executable: the module in XLA's own order. target: "cpu", "cuda" or "tpu".
      title: a name for the step; by default the module's name.
      planned: the same step compiled with a plan. plan: that plan.
      leaves: (arrays that the function takes, arrays it returns); None: no `donation`, `untrained`.
      own_order: a name for the order in `executable`.
      available_bytes: the device's memory, if XLA refused the step for needing more.
      devices: number of devices that run the module.
      ran_again: what XLA's own rematerialization added to it.

    Raises:
      ModuleFormatError: a module cannot be read or has no schedule.
    """
    with without_collection():
        module = PlannedModule(scheduled_module(executable.module), target)
        describer = Describer(module.dataflow, target)
        xla = memory_view(module, own_order, executable.assignment, describer)
        ours, bounded = None, (module, describer)
        if planned is not None:
            own = PlannedModule(scheduled_module(planned.module), target)
            bounded = own, Describer(own.dataflow, target)
            ours = memory_view(own, "planned", planned.assignment, bounded[1])
        # What XLA's own operators need says nothing of others.
        changed = plan is not None and plan.is_rewritten
        bound = bound_view(*(bounded if changed else (module, describer)))
        least = max(bound.bytes, 0 if plan is None else plan.lower_bound_bytes)
        return Analysis(
            title=title or module.module.name,
            target=target,
            xla=xla,
            planned=ours,
            bound=bound,
            lower_bound_bytes=least,
            loops=loop_views(xla),
            donation=None if leaves is None else audit(xla, module.dataflow, *leaves),
            plan=plan,
            available_bytes=available_bytes,
            devices=devices,
            untrained=None if leaves is None else untrained(module.module, *leaves),
            ran_again=ran_again,
        )


def _terminal() -> Any:
    return importlib.import_module("olla_xla.analysis.terminal")


def _optional(name: str, extra: str) -> Any:
    """Imports olla_xla.analysis.NAME. If that needs a package that is missing, raises InputError.
    Its message says how to install `extra`, the optional dependency group that has it.
    """
    try:
        return importlib.import_module(f"olla_xla.analysis.{name}")
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is missing; {to_install(extra)}") from error


def peak_rows(analysis: Analysis) -> list[tuple[str, Sequence[int]]]:
    """Returns rows (category, bytes at the peak of each order, XLA's first, and in the bound).
    Then, unless 0, what in-place writes save of the bound and what the plan's search adds; sums.
    """
    columns = [view.by_category() for view in analysis.views]
    bound, proof = analysis.bound.by_category(), analysis.bound
    columns.append(bound)
    rows: list[tuple[str, Sequence[int]]] = [
        (str(category), [column.get(category, 0) for column in columns])
        for category in Category
        if any(column.get(category, 0) for column in columns)
    ]
    none = [0] * len(analysis.views)
    if proof.taken_over_bytes:
        rows.append(("saved by in-place writes", [*none, -proof.taken_over_bytes]))
    if more := analysis.lower_bound_bytes - proof.bytes:
        rows.append(("bytes every order also needs, as the plan's search proves", [*none, more]))
    sums = [sum(column.values()) for column in columns[:-1]]
    return [*rows, ("sum", [*sums, analysis.lower_bound_bytes])]


@dataclasses.dataclass(frozen=True)
class LoopView:
    """One while loop of a module; sizes in bytes.

    Attributes:
      name: of the HLO instruction. line: the source line that makes it, or "".
      start, stop: half-open steps of the schedule that its body takes, counted for one iteration.
      trips: number of iterations, or None where XLA does not know.
      inside_bytes: the most memory in use while it runs.
      stacks: its results that it fills slice by slice, or that are gradients; largest first.
    """

    name: str
    line: str
    start: int
    stop: int
    trips: int | None
    inside_bytes: int
    stacks: tuple[LiveTensor, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the while loop's fields by name, as a dict for JSON."""
        return {**dataclasses.asdict(self), "stacks": [s.to_dict() for s in self.stacks]}


def loop_views(view: MemoryView) -> tuple[LoopView, ...]:
    """Lists the while loops of the module that `view` is of: as they run, outer loops first."""
    memory, describer = view._occupancy, view._describer
    step = {i: k for k, i in enumerate(memory.instructions) if i is not None}
    in_use = memory.in_use()
    loops = []
    for loop, stop in step.items():
        if loop.opcode != "while":
            continue
        inside = [step[i] for c in loop.called for i in _below(c) if i in step]
        start = min(inside, default=stop)
        stacks = [
            describer.tensor(v, (int(memory.start[k]), int(memory.stop[k])), None)
            for k, v in enumerate(memory.values)
            if v.instruction is loop
            and describer.category(v) in (Category.STACKS, Category.GRADIENTS)
        ]
        loops.append(
            LoopView(
                name=loop.name,
                line=describer.line(loop),
                start=start,
                stop=stop + 1,
                trips=trip_count(loop),
                inside_bytes=int(in_use[start : stop + 1].max(initial=0)),
                stacks=tuple(sorted(stacks, key=lambda t: (-t.bytes, t.name))),
            )
        )
    return tuple(sorted(loops, key=lambda loop: (loop.start, -loop.stop)))


def _below(computation: Computation) -> list[Instruction]:
    """Lists all instructions that a computation runs, with those in computations that it calls."""
    instructions = []
    for i in computation.instructions:
        instructions += [i, *(inner for c in i.called_control for inner in _below(c))]
    return instructions


_Reach = Mapping[tuple[int, ...], int]
"""By index of a result, a bit for each parameter that it is made from, and `_LEARNS`."""

_LEARNS = 1
"""The bit of what is differentiated or a derivative; entry parameter k has bit k + 1."""


@dataclasses.dataclass(frozen=True)
class Untrained:
    """Outputs of a train step that training never changes: total bytes; paths, the largest first.
    They are results equal at every step, such as gradients of what is not trained, and results that
    replace arguments and that no gradient reaches; scalars do not count.
    """

    bytes: int
    paths: tuple[str, ...]


def untrained(module: Module, taken: Sequence[Leaf], returned: Sequence[Leaf]) -> Untrained | None:
    """Finds outputs of a train step that training never changes, as no derivative enters them.
    None if there are none, or the module has no backward pass. `taken`, `returned`: the arrays that
    the function takes and returns.
    """
    if not trains(module):
        return None
    reach = _through(module.entry, {})
    arrays = {leaf.number: leaf for leaf in taken if leaf.number is not None and leaf.shape}
    unchanged = []
    for result in returned:
        index = () if result.number is None else (result.number,)
        index = index if index in reach else ()
        bits = reach.get(index, _LEARNS)
        read = [leaf for number, leaf in arrays.items() if bits >> (number + 1) & 1]
        alike = all(leaf.type == result.type for leaf in read)
        own = not read or any(stands_at(result, leaf) for leaf in read)
        if result.shape and not bits & _LEARNS and alike and own:
            unchanged.append(result)
    paths = tuple(r.path for r in sorted(unchanged, key=lambda r: -r.bytes))
    return Untrained(sum(r.bytes for r in unchanged), paths) if unchanged else None


def _through(computation: Computation, given: Mapping[int, _Reach]) -> _Reach:
    """For each index of a computation's result, a bit mask of what it is computed from.
    Bit k + 1 stands for entry parameter k, bit 0 (`_LEARNS`) for what is differentiated or a
    derivative. `given`: masks of the computation's parameters, by number; {} for the entry's.
    """
    known: dict[Instruction, _Reach] = {}
    for i in computation.instructions:
        if i.opcode == "parameter":
            k = i.parameter_number
            known[i] = given.get(k, {(): 0 if given else 1 << (k + 1)})
            continue
        operands = [known.get(o, {(): _LEARNS}) for o in i.operands]
        if i.opcode == "tuple":
            known[i] = {(k,): _all(o) for k, o in enumerate(operands)}
        elif i.opcode == "get-tuple-element":
            whole = operands[0]
            known[i] = {(): whole.get((i.tuple_index,), _all(whole))}
        elif i.opcode in ("fusion", "call"):
            known[i] = _through(i.called[0], dict(enumerate(operands)))
        else:
            bits = 0
            for operand in operands:
                bits |= _all(operand)
            known[i] = {(): bits | _learns(i)}
    root = computation.root
    return {(): _LEARNS} if root is None else known[root]


def _learns(i: Instruction) -> int:
    """Returns the bit `_LEARNS` if an instruction with operands is, by op names of it or what it
    calls (except broadcasts), of the differentiated function or its derivative; else 0.
    """
    inside = [k for c in i.called for k in c.instructions]
    phases = {phase_of(k.op_name) for k in (i, *inside) if k.opcode != "broadcast"}
    return _LEARNS if phases & DERIVATIVE and i.operands else 0


def _all(reach: _Reach) -> int:
    mask = 0
    for bits in reach.values():
        mask |= bits
    return mask
