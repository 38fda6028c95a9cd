"""Checks that the remedies that `analyze` names give the totals that it states."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

import jax

import olla_xla
from benchmarks.remedy_steps import Step
from olla_xla.analysis.remedy import Trial
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
    name, given = _written(trial.setting)
    function, donated = step.function, set(step.donated)
    if name == "donate_argnums":
        more = given[name]
        donated |= set(more if isinstance(more, tuple) else (more,))
        jitted = jax.jit(function, donate_argnums=tuple(donated))
    elif name == "fission":
        jitted = jax.jit(olla_xla.fission(function, **given), donate_argnums=tuple(donated))
    else:
        jitted = olla_xla.plan(function, donate_argnums=tuple(donated), **{**options, **given})
    compiled = jitted.lower(*step.arguments).compile()
    return assigned_bytes(getattr(compiled, "stage", compiled))


def _written(setting: str) -> tuple[str, dict[str, Any]]:
    """A setting as the name of what is called, and its keywords; a keyword alone is its name."""
    call = ast.parse(setting if setting.startswith("olla") else f"f({setting})", mode="eval").body
    keywords = call.keywords if isinstance(call, ast.Call) else []
    given = {k.arg: ast.literal_eval(k.value) for k in keywords if k.arg is not None}
    function = call.func if isinstance(call, ast.Call) else call
    return (function.attr if isinstance(function, ast.Attribute) else next(iter(given))), given
