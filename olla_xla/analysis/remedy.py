"""What would help a step's memory where little was found, in one line, with XLA's figures."""

import dataclasses
from typing import Any

from hlo.module import Module
from olla_xla.analysis.category import Category
from olla_xla.analysis.memory_view import MemoryView
from olla_xla.analysis.text_table import megabytes

_WORTH_WHILE = 0.05
"""Part of the total that a remedy must save at least."""

_LEFT = ("several of these together", "offloading", "a smaller batch")
_STATE_LEFT = ("more devices", "narrower types", "offloading")
"""What is never tried."""

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
    """One way to save memory that was tried; sizes are of XLA's buffer assignment.

    Attributes:
      setting: what to write, such as "olla_xla.plan(max_overhead=0.2)" or "donate_argnums=0".
      bytes: the step's total with it.
      added: predicted time that it adds, as a fraction of the step's. allowed: the limit for that.
      notes: its effects and conditions, for the report.
      pieces: number of pieces that the step is cut into; 1: it is not cut.
    """

    setting: str
    bytes: int
    added: float = 0.0
    allowed: float = 0.0
    notes: tuple[str, ...] = ()
    pieces: int = 1

    def sentence(self, verb: str = "takes") -> str:
        """Says the setting, `verb`, the total in MB, notes, and the added time if it is limited."""
        time = (f"{100 * self.added:+.1f} % predicted time",) if self.allowed else ()
        notes = ", ".join((*time, *self.notes))
        return f"{self.setting} {verb} {megabytes(self.bytes)} MB{f' ({notes})' if notes else ''}"


@dataclasses.dataclass(frozen=True)
class Remedy:
    """What most of a step's memory is used for, and which remedies were tried.

    Attributes:
      what: the use of most memory at the peak. what_bytes: its size.
      is_state: whether that is arguments (weights, batch), which recomputation cannot save.
      total_bytes: the step's total without a remedy.
      trials: what was tried, the least total first.
      not_tried: names of remedies that were not tried, or failed, with the reason.
    """

    what: str
    what_bytes: int
    is_state: bool
    total_bytes: int
    trials: tuple[Trial, ...]
    not_tried: tuple[str, ...] = ()

    @property
    def helpful(self) -> tuple[Trial, ...]:
        """The trials that save at least 5 % of the bytes, compared with the step without them.
        Of trials of a kind, one that may take more time must save as much beyond the others.
        """
        chosen: list[Trial] = []
        for trial in sorted(self.trials, key=lambda trial: (trial.allowed, trial.bytes)):
            alike = [o.bytes for o in chosen if o.setting[:13] == trial.setting[:13]]
            if helps(trial.bytes, min([self.total_bytes, *alike])):
                chosen.append(trial)
        return tuple(sorted(chosen, key=lambda trial: trial.bytes))

    def sentence(self) -> str:
        """Says what uses most memory, what helps (else all that was tried), what was not tried."""
        most = f"{megabytes(self.what_bytes)} of {megabytes(self.total_bytes)} MB at the peak"
        helpful = self.helpful
        said = "; ".join(trial.sentence() for trial in helpful)
        if not helpful:
            said = ", ".join(trial.sentence("leaves") for trial in self.trials)
            said = f"tried: {said}" if said else "no way to save memory could be tried"
        rest = ", ".join((*self.not_tried, *(_STATE_LEFT if self.is_state else _LEFT)))
        first = f"{'What' if helpful else 'Little'} would help: {most} are {self.what}"
        return f"{first}; {said}. Not tried: {rest}."

    def to_dict(self) -> dict[str, Any]:
        """Returns the remedy's fields by name, as a dict for JSON."""
        return dataclasses.asdict(self)


def helps(size: int, total: int) -> bool:
    """Whether a total of `size` bytes is at least 5 % below the old `total`."""
    return size <= (1 - _WORTH_WHILE) * total


def most_used(view: MemoryView) -> tuple[str, int, bool]:
    """The largest use of memory at the peak: (its name, its bytes, whether it is arguments).
    Parameters and optimizer state count as one use.
    """
    sums = {str(category): size for category, size in view.by_category().items()}
    sums[_STATE] = sums.pop(Category.PARAMETERS, 0) + sums.pop(Category.OPTIMIZER, 0)
    what = max(sums, key=lambda name: sums[name])
    return what, sums[what], what in (_STATE, Category.BATCH, Category.ARGUMENTS)


def by_hand(module: Module) -> str:
    """The call that a user writes to recompute by hand: `jax.checkpoint`, or a library's switch."""
    files: set[str] = set()
    for computation in module.control_computations:
        for i in computation.instructions:
            files |= {frame.file for frame in i.stack}
    paths = "\n".join(files).lower()
    return next((switch for folder, switch in _SWITCHES if folder in paths), "jax.checkpoint")
