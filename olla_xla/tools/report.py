"""`olla_xla.report`: one table of all functions that this process planned."""

import collections
import dataclasses
import html
import textwrap

from olla_xla.analysis.text_table import megabytes, text_table
from olla_xla.compile import events
from olla_xla.compile.plan_event import PlanEvent
from olla_xla.problem.summary import of_refusals

_SHOWN = 40
"""Rows of a table at most."""

_HELP = 5
"""Functions at most of which it is said what would help."""

_HEADINGS = ("function:", "XLA, MB", "planned", "less %", "time +%", "seconds")
_NAME = 34
"""Characters of a function's name in a row, so that rows have at most 80."""


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """The outcomes of all functions planned in this process; it prints as a table.

    Attributes:
      events: one for each function and shapes of its arguments, in order; the last thousand.
    """

    events: tuple[PlanEvent, ...]

    def __repr__(self) -> str:
        """A row for each function and argument shapes, at most 40, what saves most first; sums."""
        if not self.events:
            return "nothing was planned in this process"
        ordered = sorted(self.events, key=lambda e: -((e.xla_bytes or 0) - (e.bytes or 0)))
        lines = [text_table(_HEADINGS, [_row(event) for event in ordered[:_SHOWN]])]
        if more := len(ordered) - _SHOWN:
            lines += [f"and {more:,} more"] if more > 0 else []
        planned = sum(event.planned for event in self.events)
        seconds = sum(event.seconds for event in self.events)
        lines.append(
            f"{planned:,} of {len(self.events):,} signatures of "
            f"{len({e.function for e in self.events}):,} functions use a plan; compiling "
            f"took {seconds:,.1f} s"
        )
        if refused := sum(event.refused for event in self.events):
            lines.append(of_refusals(refused, sum(event.proposed for event in self.events)))
        help = [f"{e.function}: {e.host}" for e in ordered if e.host]
        help += [f"{e.function}: what would help: {e.help}" for e in ordered if e.help]
        for text in list(dict.fromkeys(help))[:_HELP]:
            lines += _wrapped(text)
        reasons = collections.Counter(e.reason for e in self.events if not e.planned)
        for why, count in reasons.most_common(5):
            lines += _wrapped(f"not planned, {count:,}: {why}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The table for notebooks, as HTML in a monospaced font."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 80, break_long_words=False)


def _row(event: PlanEvent) -> tuple[str, ...]:
    name = event.function
    name = name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
    if event.bytes is None or event.xla_bytes is None:
        return name, "-", "-", "-", "-", f"{event.seconds:.1f}"
    return (
        name,
        megabytes(event.xla_bytes),
        megabytes(event.bytes),
        f"{100 * event.saved:.1f}",
        f"{100 * (event.overhead or 0):.1f}",
        f"{event.seconds:.1f}",
    )


def report() -> Report:
    """Returns a table of all functions that this process planned: MB before and after, time.
    With OLLA_XLA_REPORT=1 it is also written to standard error at the end of the program.

    Examples:
      >>> print(olla_xla.report())
    """
    return Report(events.recent_events())
