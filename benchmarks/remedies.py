"""Checks that the remedies that `analyze` names give the totals that it states."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

import jax

import olla_xla
from benchmarks.remedy_steps import Step
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.capture import capture
from olla_xla.memory.analysis.remedy import Trial

__all__ = ["Row", "tried"]


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
            trial.setting or "olla_xla.plan",
            trial.bytes,
            _done(step, trial, options),
            remedy.sentence(),
        )
        for trial in remedy.helpful
    ]


def _done(step: Step, trial: Trial, options: dict[str, Any]) -> int:
    """XLA's total with the remedy written into the program."""
    name, _, value = trial.setting.partition("=")
    given = {name: ast.literal_eval(value)} if name else {}
    if name == "donate_argnums":
        more = given[name] if isinstance(given[name], tuple) else (given[name],)
        jitted = jax.jit(step.function, donate_argnums=tuple({*step.donated, *more}))
        return capture(jitted.lower(*step.arguments)).assigned_bytes
    planned = olla_xla.plan(step.function, donate_argnums=step.donated, **given, **options)
    return assigned_bytes(planned.lower(*step.arguments).compile().stage)
