"""The event of compiling one signature of a planned function."""

from __future__ import annotations

import dataclasses

from olla_xla.compile.outcomes import NO_GAIN, Outcome
from olla_xla.problem.summary import of_refusals, what_would_help

_EXACT = 1.001
"""Times the bound up to which a total counts as the least."""


@dataclasses.dataclass(frozen=True)
class PlanEvent:
    """What came of planning and compiling a planned function for one signature (shapes, types).

    Attributes:
      function: its name.
      planned: whether it runs another order than XLA's own.
      reason: why it does not, or "".
      fell_back: whether XLA's order is used because something went wrong, not for lack of a gain.
      bytes: XLA's total for what runs. xla_bytes: for its own order, assigned or predicted.
        lower_bound_bytes: no order takes fewer. All per device; None where nothing was planned.
      overhead: predicted time that recomputation adds, as a part of the step's; None where nothing
        was planned.
      seconds: that this process took to plan and to compile.
      search_seconds: that the search for the plan took, maybe in another process or run.
      processes: how many processes agreed on it; 1 where only this one was concerned.
      help: what would help where the plan saves little: recomputation, donation; or "".
      host_bytes: XLA's total in host memory. host_reason: why nothing is spilled there although
        `host_budget` allows it; or "".
      proposed, refused: choices of the planner, and those that the referee refused, as in `Plan`.
    """

    function: str
    planned: bool
    reason: str
    fell_back: bool
    bytes: int | None
    xla_bytes: int | None
    lower_bound_bytes: int | None
    overhead: float | None
    seconds: float
    search_seconds: float
    processes: int
    proposed: int = 0
    refused: int = 0
    help: str = ""
    host_bytes: int = 0
    host_reason: str = ""

    @classmethod
    def of(cls, function: str, outcome: Outcome, seconds: float, hint: str = "") -> PlanEvent:
        """Makes the event from the outcome of planning and compiling a function with this name.
        `seconds`: that this process took for that. `hint`: what could be donated, or ""; added to
        `help`.
        """
        plan = outcome.plan
        more = "" if plan is None else what_would_help(plan)
        return cls(
            function=function,
            planned=outcome.planned,
            reason=outcome.reason,
            fell_back=outcome.fell_back,
            bytes=None if plan is None else plan.assigned_bytes,
            xla_bytes=None if plan is None else plan.xla_bytes,
            lower_bound_bytes=None if plan is None else plan.lower_bound_bytes,
            overhead=None if plan is None else round(plan.overhead, 5),
            seconds=round(seconds, 3),
            search_seconds=0.0 if plan is None else round(plan.seconds, 3),
            processes=max(len(outcome.members), 1),
            proposed=0 if plan is None else plan.proposed,
            refused=0 if plan is None else plan.refused,
            help="; ".join(filter(None, (more, hint))),
            host_bytes=0 if plan is None else plan.host_bytes,
        )

    @property
    def host(self) -> str:
        """How much is in host memory, or why nothing is although allowed; else ""."""
        if self.host_bytes:
            return f"{self.host_bytes / 2**20:,.1f} MB in host memory"
        return f"nothing in host memory: {self.host_reason}" if self.host_reason else ""

    @property
    def saved(self) -> float:
        """The fraction of XLA's own total that the plan saves; 0 where nothing was planned."""
        if self.bytes is None or not self.xla_bytes:
            return 0.0
        return 1 - self.bytes / self.xla_bytes

    def __str__(self) -> str:
        """A line of text for users: function, totals in MB of 2^20 bytes, predicted time, why."""
        together = f" in {self.processes} processes" if self.processes > 1 else ""
        took = f"planned and compiled in {self.seconds:.1f} s"
        took += f"; {of_refusals(self.refused, self.proposed)}" if self.refused else ""
        took += f"; {self.host}" if self.host else ""
        took += f"; what would help: {self.help}" if self.help else ""
        if not self.planned or self.bytes is None or self.xla_bytes is None:
            total = "" if self.bytes is None else f"{self.bytes / 2**20:,.1f} MB, "
            least = self.bytes and self.bytes <= _EXACT * (self.lower_bound_bytes or 0)
            why = "no order needs less" if least and self.reason == NO_GAIN else self.reason
            return f"{self.function}: {total}XLA's own schedule{together}: {why}; {took}"
        return (
            f"{self.function}: {self.xla_bytes / 2**20:,.1f} -> {self.bytes / 2**20:,.1f} MB "
            f"({-100 * self.saved:+.1f} %), {100 * (self.overhead or 0):+.1f} % predicted "
            f"time{together}; {took}"
        )
