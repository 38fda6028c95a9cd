"""What would help a step's memory where little was found, in one line, with computed figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from hlo.module import Module
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.memory_view import MemoryView

__all__ = ["Remedy", "Trial", "by_hand", "described", "most_used"]

_WORTH_WHILE = 0.05
"""Part of the total that a remedy must save at least."""

_STATE = f"{Category.PARAMETERS} and {Category.OPTIMIZER}"

_SWITCHES = (
    ("/maxtext/", "MaxText's remat_policy and param_scan_axis"),
    ("/keras/", "keras.RematScope"),
    ("/equinox/", "equinox.filter_checkpoint"),
    ("/haiku/", "hk.remat"),
    ("/flax/nnx/", "nnx.remat"),
    ("/flax/linen/", "nn.remat"),
)
"""Folders of libraries' sources, in lower case, and their switches; frameworks come first."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A remedy that was tried.

    Attributes:
      setting: what to write, such as "max_overhead=0.2"; "" for an order alone.
      bytes: the total with it. assigned: whether that is XLA's own; otherwise it is predicted.
      overhead: the predicted time that it adds, as a part of the step's. allowed: that it might.
      when: under which condition, such as "if the caller is done with it"; or "".
    """

    setting: str
    bytes: int
    assigned: bool
    overhead: float = 0.0
    allowed: float = 0.0
    when: str = ""

    def helps(self, total: int) -> bool:
        """Whether it saves a twentieth of a total or more."""
        return self.bytes <= (1 - _WORTH_WHILE) * total

    def left(self) -> str:
        """What remains with it, for a trial that does not help."""
        what = self.setting
        if self.allowed:
            what = f"computing things again for up to {100 * self.allowed:.0f} % more time"
        return f"{what} leaves {_mb(self.bytes)} MB"

    def sentence(self) -> str:
        """What to write, and what comes of it."""
        kind = "assigned" if self.assigned else "predicted"
        if not self.setting:
            return f"olla_xla.plan plans {_mb(self.bytes)} MB ({kind}, nothing computed again)"
        if self.allowed:
            more = f"{100 * self.overhead:.1f} % more time"
            return f"{self.setting} plans {_mb(self.bytes)} MB ({kind}, {more})"
        when = f", {self.when}" if self.when else ""
        return f"{self.setting} takes {_mb(self.bytes)} MB ({kind}){when}"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What would help a step, and what was tried.

    Attributes:
      what: what most of the memory at the peak is used for. what_bytes: of it.
      is_state: whether that is what the step's arguments hold, which nothing makes again.
      total_bytes: of the step as it is.
      trials: what was tried, the least total first.
      by_hand: the switch for recomputation of the library that the step is written in, or "".
    """

    what: str
    what_bytes: int
    is_state: bool
    total_bytes: int
    trials: tuple[Trial, ...]
    by_hand: str = ""

    @property
    def helpful(self) -> tuple[Trial, ...]:
        """The trials that save a twentieth or more."""
        return tuple(trial for trial in self.trials if trial.helps(self.total_bytes))

    def sentence(self) -> str:
        """What most of the memory is, what helps, and what is left where nothing does."""
        most = f"{_mb(self.what_bytes)} of {_mb(self.total_bytes)} MB at the peak are {self.what}"
        if found := self.helpful:
            said = "; ".join(trial.sentence() for trial in found)
            again = any(trial.allowed and trial.setting for trial in found)
            library = f"; by hand: {self.by_hand}" if self.by_hand and again else ""
            return f"What would help: {most}; {said}{library}."
        left = "a smaller batch, or another model"
        if self.is_state:
            left = "to shard them over devices, or to keep fewer bytes of each"
        tried = ", ".join(trial.left() for trial in self.trials)
        return f"Little would help: {most}; {tried}. What is left is {left}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; every field by name."""
        return dataclasses.asdict(self)


def described(view: MemoryView, total: int, trials: Iterable[Trial], switch: str) -> Remedy | None:
    """What was tried, beside what most of the memory is; None where nothing was.

    Args:
      view: of the memory as it is. total: of it. trials: what was tried.
      switch: as `by_hand` has it.
    """
    tried = tuple(sorted(trials, key=lambda trial: trial.bytes))
    if not tried:
        return None
    return Remedy(*most_used(view), total, tried, switch)


def most_used(view: MemoryView) -> tuple[str, int, bool]:
    """What most of the memory at the peak is used for, its bytes, and whether it is arguments."""
    sums = {str(category): size for category, size in view.by_category().items()}
    sums[_STATE] = sums.pop(Category.PARAMETERS, 0) + sums.pop(Category.OPTIMIZER, 0)
    what = max(sums, key=lambda name: sums[name])
    return what, sums[what], what in (_STATE, Category.BATCH, Category.ARGUMENTS)


def by_hand(module: Module) -> str:
    """The switch for recomputation of the library whose layers a module was traced from, or ""."""
    files: set[str] = set()
    for computation in module.control_computations:
        for i in computation.instructions:
            files |= {frame.file for frame in module.stack(i)}
    found = "\n".join(files).lower()
    return next((switch for folder, switch in _SWITCHES if folder in found), "")


def _mb(size: int) -> str:
    return f"{size / 2**20:,.1f}"
