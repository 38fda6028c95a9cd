"""The ledger of gains: for each step the least total that this project ever reached.

`benchmarks/gains.toml` has a row a step. Plans are made with a step limit and no clock, and on a
CPU without recomputation, whose price is measured there: so the same code gives the same totals.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import olla_xla
from benchmarks import gain_steps
from olla_xla import targets
from olla_xla.errors import InputError
from olla_xla.tools import models

LEDGER = Path(__file__).with_name("gains.toml")

_ABOVE = 0.003
"""Part of the best total by which a plan may lie above it."""

_LONGER = 0.002
"""Part of a step's predicted time by which a plan may take longer than the best one did."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A step, how it is planned, and the best that was reached.

    Attributes:
      step: a model by its name or package.module:function, "remedy: NAME" of `remedy_steps`, or
        "fsdp", which is `gain_steps.fsdp_transformer`.
      batch, optimizer: as models take them. target, devices: what it is compiled for.
      overhead: `max_overhead`; 0 for an order alone. steps: of the search, at most.
      compiler: options for XLA's compiler. quick: whether `--quick` plans it.
      xla_mb: XLA's total. best_mb: the least total; MB of 2**20 bytes, 0 where nothing is known.
      time: predicted time that the best plan added, as a part of the step's.
      date, commit: when it was reached, and on what.
      reason: why the plan may be worse now; "" where it may not.
    """

    step: str
    batch: int = 4
    optimizer: str = "adam"
    target: str = "h100"
    devices: int = 1
    overhead: float = 0.0
    steps: int = 2000
    compiler: dict[str, Any] = dataclasses.field(default_factory=dict)
    quick: bool = False
    xla_mb: float = 0.0
    best_mb: float = 0.0
    time: float = 0.0
    date: str = ""
    commit: str = ""
    reason: str = ""

    @property
    def name(self) -> str:
        """For tables: step, batch, target and what may be added."""
        return f"{self.step}/{self.batch}/{self.target} {100 * self.overhead:g} %"


@dataclasses.dataclass(frozen=True)
class Found:
    """What a row's plan takes now.

    Attributes:
      xla_mb, mb: assigned totals, of XLA's own order and of what runs. time: as in `Row`.
      proposed, refused: choices that were handed to the referee, and those not accepted.
    """

    xla_mb: float
    mb: float
    time: float
    proposed: int = 0
    refused: int = 0


def read(path: Path = LEDGER) -> list[Row]:
    """The rows. Raises InputError where one has an unknown field."""
    try:
        return [Row(**row) for row in tomllib.loads(path.read_text("utf-8"))["rows"]]
    except TypeError as error:
        raise InputError(f"{path}: {error}") from error


def write(rows: Sequence[Row], path: Path = LEDGER) -> None:
    """Writes the rows, a line each, without fields that have their defaults."""
    lines = ["# The least totals ever reached; `python -m benchmarks gains` holds plans to them.\n"]
    lines += ['# A row that may be worse now says why: reason = "...".\n', "rows = [\n"]
    for row in rows:
        fields = [
            f"{field.name} = {_text(getattr(row, field.name))}"
            for field in dataclasses.fields(row)
            if field.name == "step" or getattr(row, field.name) not in (field.default, {})
        ]
        lines.append(f"  {{ {', '.join(fields)} }},\n")
    path.write_text("".join([*lines, "]\n"]), "utf-8")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_text(v)}' for name, v in value.items())} }}"
    return json.dumps(value)


def planned(row: Row) -> Found:
    """Plans and compiles a row's step.

    Raises:
      InputError: there is no such step, or nothing here compiles for its target.
    """
    targets.prepare_environment(row.target, row.devices)
    target = targets.target(row.target, row.devices)
    step, arguments, options = _built(row, target)
    function = olla_xla.plan(
        step,
        step_limit=row.steps,
        time_limit=3600.0,
        max_overhead=row.overhead or None,
        compiler_options=row.compiler or None,
        **options,
    )
    compiled = function.lower(*target.place(arguments)).compile()
    plan = compiled.plan
    if plan is None:
        raise InputError(f"{row.name} was not planned: {compiled.reason}")
    total = plan.assigned_bytes if compiled.planned else plan.xla_bytes
    time = plan.overhead if compiled.planned else 0.0
    xla, mb = (round(size / 2**20, 3) for size in (plan.xla_bytes, total or 0))
    return Found(xla, mb, round(time, 5), plan.proposed, plan.refused)


def _built(row: Row, target: targets.Target) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    if row.step == "fsdp":
        return gain_steps.fsdp_transformer(target.devices)
    if row.step.startswith("remedy: "):
        return gain_steps.remedy_step(row.step.removeprefix("remedy: "))
    model = models.build(row.step, batch_size=row.batch, optimizer=row.optimizer)
    return model.step, model.arguments, dict(model.jit_options)


def faults(row: Row, found: Found) -> list[str]:
    """What is worse than the ledger has it, a line each; nothing where the row gives a reason.

    A refused choice is a fault whatever the row says.
    """
    wrong = []
    if found.refused:
        wrong.append(f"{found.refused} of {found.proposed} choices refused by the check")
    if row.reason or not row.best_mb:
        return wrong
    if found.mb > (1 + _ABOVE) * row.best_mb:
        wrong.append(f"{found.mb:,.1f} MB, {row.best_mb:,.1f} on {row.date} ({row.commit})")
    elif found.time > row.time + _LONGER and found.mb > (1 - _ABOVE) * row.best_mb:
        wrong.append(f"{100 * found.time:.1f} % more time, {100 * row.time:.1f} on {row.date}")
    return wrong


def improved(row: Row, found: Found) -> Row:
    """The row with a better total, its date and commit; as it was where there is none.

    Nothing is written for what has a fault: it would be excused the next time.
    """
    row = row if row.xla_mb else dataclasses.replace(row, xla_mb=found.xla_mb)
    if faults(row, found) or (row.best_mb and found.mb >= row.best_mb):
        return row
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=LEDGER.parent, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return dataclasses.replace(
        row, xla_mb=found.xla_mb, best_mb=found.mb, time=found.time, date=today, commit=commit
    )
