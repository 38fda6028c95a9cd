"""Executables of plain `jax.jit`, compiled and audited one by one."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from benchmarks.audit.functions import FUNCTIONS
from benchmarks.thunks.steps import Step, steps
from olla_xla import targets
from olla_xla.tools.audit.audit import audit_compiled
from olla_xla.tools.audit.report import Audit


@dataclasses.dataclass(frozen=True)
class Row:
    """One executable.

    Attributes:
      case: the step. target: what it was compiled for.
      compile_seconds: of XLA, of all its threads. seconds: of the audit.
      findings: what it says is wrong. followed, trusted, left, doubts: as `Audit` has them.
    """

    case: str
    target: str
    compile_seconds: float
    seconds: float
    findings: tuple[str, ...]
    followed: Mapping[str, int]
    trusted: Mapping[str, int]
    left: tuple[str, ...]
    doubts: tuple[str, ...]


def chosen(names: Sequence[str], target: str, seed: int) -> Iterator[Step]:
    """The steps of names.

    Args:
      names: "functions", all of `FUNCTIONS`; one of them as "function:NAME"; else as of `benchmarks
        thunks`. target: what they are compiled for. seed: of random programs.
    """
    for name in names:
        if name == "functions":
            yield from (_function(one, target) for one in FUNCTIONS)
        elif name.startswith("function:"):
            yield _function(name.partition(":")[2], target)
        else:
            yield from steps([name], [1], target, seed)


def _function(name: str, target: str) -> Step:
    def make() -> Any:
        function, shapes, donated = FUNCTIONS[name]
        placed = targets.target(target).place(shapes)
        return lambda _: jax.jit(function, donate_argnums=donated).lower(*placed)

    return Step(name, make)


def audited(step: Step, target: str) -> tuple[Row, Audit]:
    """Compiles a step, and audits the executable."""
    with step.context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        lowered = step.make()(None)
        began = time.process_time()
        compiled = lowered.compile()
        took = time.process_time() - began
        began = time.thread_time()
        report = audit_compiled(compiled, lowered.compiler_ir())
        seconds = time.thread_time() - began
    findings = tuple(f"{f.check}: {f.message}" for f in report.findings)
    counts = report.followed, report.trusted, report.left, report.doubts
    return Row(step.name, target, took, seconds, findings, *counts), report
