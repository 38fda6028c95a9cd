"""Asks of 35 small steps what would help their memory, and tries each remedy that is named.

Exit code 1 where a remedy is missing, where one is named that was not expected, or where it gives
another total than was said.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags

import olla_xla
from benchmarks.driver import Column, Flags, measured, table_of
from benchmarks.remedy_steps import STEPS, Step
from olla_xla.analysis import checkpointed
from olla_xla.analysis.remedy import Trial
from olla_xla.cli import document
from olla_xla.cli.commands import shared
from olla_xla.cli.report.tables import megabytes, percent
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.plan_store import process_store


@dataclasses.dataclass(frozen=True)
class Row:
    """One remedy of a step, or that none was named.

    Attributes:
      step: its name. helped: whether a remedy was expected.
      bytes: the step's total without a remedy. setting: the remedy; "" if none is named.
      said: the total that `analyze` states for the remedy. found: the total that XLA assigns to the
        program with the remedy in it. Both are 0 if no remedy is named.
      line: the whole line that `analyze` prints.
    """

    step: str
    helped: bool
    bytes: int
    setting: str
    said: int
    found: int
    line: str

    @property
    def error(self) -> float:
        """The error of the stated total, as a fraction of the total that was found."""
        return self.said / self.found - 1 if self.found else 0.0


def tried(step: Step, **options: Any) -> list[Row]:
    """Asks which remedies would help a step, and tries each one that is named.

    Args:
      step: to be analysed. **options: of all plans.
    """
    jitted = jax.jit(step.function, donate_argnums=step.donated)
    found = olla_xla.analyze(jitted, *step.arguments, advice=options)
    remedy, total = found.remedy, found.xla.total_bytes
    if remedy is None or not remedy.helpful:
        line = "" if remedy is None else remedy.sentence()
        return [Row(step.name, step.helped, total, "", 0, 0, line)]
    return [
        Row(
            step.name,
            step.helped,
            total,
            trial.setting,
            trial.bytes,
            _done(step, trial, options),
            remedy.sentence(),
        )
        for trial in remedy.helpful
    ]


def _done(step: Step, trial: Trial, options: dict[str, Any]) -> int:
    """XLA's total with the remedy written into the program; no plan is taken from memory."""
    process_store().clear()
    setting, _, where = trial.setting.partition(" around ")
    where, _, policy = where.removesuffix(")").partition(" (")
    name, given = ("jax.checkpoint", {}) if policy else _written(setting)
    function, donated = step.function, set(step.donated)
    if name == "donate_argnums":
        more = given[name]
        donated |= set(more if isinstance(more, tuple) else (more,))
    elif name == "jax.checkpoint":
        function = _within(_CHECKPOINTS[where], policy, function)
    elif name == "fission":
        cut = functools.partial(olla_xla.fission, **given)
        function = _within(checkpointed.wrapped_loss, cut, function) if where else cut(function)
    if name == "plan":
        jitted = olla_xla.plan(function, donate_argnums=tuple(donated), **{**options, **given})
    else:
        jitted = jax.jit(function, donate_argnums=tuple(donated))
    compiled = jitted.lower(*step.arguments).compile()
    return assigned_bytes(getattr(compiled, "stage", compiled))


_CHECKPOINTS = {
    "each scan's body": checkpointed.checkpointed_scans,
    "segments of each scan": checkpointed.checkpointed_segments,
    "the loss": checkpointed.checkpointed_loss,
}


def _within(
    context: Callable[[Any], Any], argument: Any, function: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, traced within `context(argument)`."""

    def step(*arguments: Any) -> Any:
        with context(argument):
            return function(*arguments)

    return step


def _written(setting: str) -> tuple[str, dict[str, Any]]:
    """A setting as the name of what is called, and its keywords; a keyword alone is its name."""
    call = ast.parse(setting if setting.startswith("olla") else f"f({setting})", mode="eval").body
    keywords = call.keywords if isinstance(call, ast.Call) else []
    given = {k.arg: ast.literal_eval(k.value) for k in keywords if k.arg is not None}
    function = call.func if isinstance(call, ast.Call) else call
    return (function.attr if isinstance(function, ast.Attribute) else next(iter(given))), given


_WITHIN = 0.05
"""Part of a total by which what is said may be off."""

_COLUMNS = (
    Column("step:", "step"),
    Column("XLA", lambda row: megabytes(row.bytes, 2)),
    Column("remedy:", lambda row: row.setting or "none named"),
    Column("said", lambda row: megabytes(row.said, 2) if row.setting else None),
    Column("found", lambda row: megabytes(row.found, 2) if row.setting else None),
    Column("error %", lambda row: percent(row.error, 1) if row.setting else None),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("steps", None, "Names of steps; all by default.")
    define.real("time_limit", 30.0, "Of each plan, in seconds.", least=0.1)
    define.whole("step_limit", 5000, "Of each plan.", least=1)


def run(values: flags.FlagValues) -> int:
    """Tries every step and prints the table; 1 also if a step fails."""
    limits = {"time_limit": values.time_limit, "step_limit": values.step_limit}
    found, failed = measured(
        [step for step in STEPS if not values.steps or step.name in values.steps],
        lambda step, _: tried(step, **limits),
        name=lambda step: step.name,
    )
    rows = [row for each in found for row in each]
    document.add(rows=[dataclasses.asdict(row) for row in rows])
    console = shared.console()
    table_of(rows, _COLUMNS, "Totals in MB").print(console)
    console.print(_line(rows), markup=False)
    wrong = [r for r in rows if r.helped != bool(r.setting) or abs(r.error) > _WITHIN]
    return 1 if failed or wrong else 0


def _line(rows: Sequence[Row]) -> str:
    """How many steps got a remedy, and how many remedies gave their figures."""
    expected = {row.step for row in rows if row.helped}
    named = {row.step for row in rows if row.setting}
    right = [row for row in rows if row.setting and abs(row.error) <= _WITHIN]
    return (
        f"{len(expected & named)} of {len(expected)} steps that something helps got a remedy, "
        f"{len(named - expected)} of the others; {len(right)} of "
        f"{sum(bool(row.setting) for row in rows)} remedies gave what was said within "
        f"{percent(_WITHIN, 0)} %."
    )
