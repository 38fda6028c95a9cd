"""What is in memory at the peak of a step, and why: `Analysis`, and how it is made of a module.

An analysis file is one JSON object: `{"format": "olla_xla.analysis", "version": 1, ...}` with what
`Analysis.to_dict` gives.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlo.buffer_assignment import BufferAssignment
from hlo.gc_pause import without_collection
from olla_xla.errors import InputError
from olla_xla.memory.analysis.bound import BoundView, bound_view
from olla_xla.memory.analysis.donation import DonationAudit, Leaf, audit
from olla_xla.memory.analysis.live_tensor import Describer
from olla_xla.memory.analysis.loops import LoopView, loop_views
from olla_xla.memory.analysis.memory_view import MemoryView, memory_view
from olla_xla.memory.analysis.remedy import Remedy
from olla_xla.memory.analysis.untrained import Untrained, untrained
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.plan import Plan
from olla_xla.problem.whole_file import written_whole
from olla_xla.version import to_install

FORMAT, VERSION = "olla_xla.analysis", 1


class Executable(NamedTuple):
    """A scheduled module, serialized, and XLA's buffer assignment of it, where that is known."""

    module: bytes
    assignment: BufferAssignment | None = None


@dataclasses.dataclass(frozen=True, repr=False)
class Analysis:
    """The memory of a step, in XLA's order and planned, and a bound for every order.

    `print(analysis)` shows its tables, and so does a notebook; `repr` is one line.

    Attributes:
      title: what was analysed. target: "cpu" or "cuda".
      xla: XLA's own order. planned: the plan's, or None where nothing was planned.
      bound: no order of XLA's module needs less, or, where the plan changes its operators, of the
        plan's; with the tensors that prove it.
      lower_bound_bytes: the best bound known: that, or the plan's.
      loops: those of XLA's module.
      donation: what became of donated arguments; None where the arguments are not known.
      plan: the plan, or None.
      remedy: what would help, where that was tried; else None.
      available_bytes: the device's memory, where XLA refused the step in its own order for taking
        more; else None.
      devices: that run the step; all sizes are of one of them.
      untrained: what a train step carries of arrays that it does not train; None: nothing.
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

    @property
    def views(self) -> tuple[MemoryView, ...]:
        """The orders that were looked at, XLA's first."""
        return (self.xla,) if self.planned is None else (self.xla, self.planned)

    @property
    def gap(self) -> float:
        """How far the last of the orders is above the bound, as a part of the bound."""
        bound = self.lower_bound_bytes
        return self.views[-1].total_bytes / bound - 1 if bound else 0.0

    def to_dict(self, timeline: bool = False) -> dict[str, Any]:
        """As JSON takes it. With `timeline`, the bytes of each category at each step too."""
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
        }

    def document(self) -> dict[str, Any]:
        """What an analysis file holds, which `olla_xla diff` reads."""
        return {"format": FORMAT, "version": VERSION, **self.to_dict()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an analysis file, which `olla_xla diff` reads. Raises InputError if it cannot."""
        _write(path, json.dumps(self.document(), indent=1) + "\n")

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes the report: one HTML file that needs nothing else.

        Raises:
          InputError: the file cannot be written, or bokeh is missing.
        """
        _write(path, _optional("html.page", "report").page(self))

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draws memory over the schedule as PNG, SVG or PDF, by the file's suffix.

        Raises:
          InputError: the file cannot be written, or matplotlib is missing.
        """
        _optional("figure", "figures").draw(self, Path(path))

    def __repr__(self) -> str:
        """One line: totals and bound."""
        totals = ", ".join(f"{v.name} {v.total_bytes / 2**20:,.1f} MB" for v in self.views)
        least = f"bound {self.lower_bound_bytes / 2**20:,.1f}"
        return f"<Analysis of {self.title}: {totals}, {least}>"

    def __str__(self) -> str:
        """The tables that the command line prints, within 80 columns."""
        return _terminal().text(self)

    def _repr_html_(self) -> str:
        """For notebooks: the same."""
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
) -> Analysis:
    """Analyses a scheduled module.

    Args:
      executable: in XLA's own order. target: "cpu" or "cuda".
      title: what it is; by default the module's name.
      planned: the same step with a plan. plan: that plan.
      leaves: what the function takes and returns, for the donation audit.
      own_order: what to call the order that the module came with.
      available_bytes: what the device has, where XLA refused the step.
      devices: that run the module.

    Raises:
      ModuleFormatError: it cannot be read or has no schedule.
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
        )


def _terminal() -> Any:
    return importlib.import_module("olla_xla.memory.analysis.terminal")


def _optional(name: str, extra: str) -> Any:
    """A module of this folder that needs a package which is not always there."""
    try:
        return importlib.import_module(f"olla_xla.memory.analysis.{name}")
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is missing; {to_install(extra)}") from error


def _write(path: str | os.PathLike[str], text: str) -> None:
    try:
        with written_whole(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
