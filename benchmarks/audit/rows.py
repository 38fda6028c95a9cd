"""Executables of plain `jax.jit`, compiled and audited one by one."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import library_steps
from benchmarks.audit.functions import FUNCTIONS
from benchmarks.suite import dumps
from benchmarks.thunks.steps import Step, steps
from hlo.dumps.lowered import read_lowered
from olla_xla import targets
from olla_xla.errors import InputError
from olla_xla.tools.audit.audit import audit_compiled
from olla_xla.tools.audit.report import Audit
from olla_xla.tools.dumped import DumpedStage


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
      names: "functions", all of `FUNCTIONS`; one of them as "function:NAME"; "libraries", steps of
        other libraries (`library_steps`); a folder with dumps, as `benchmarks suite` has it; else
        as of `benchmarks thunks`. target: what they are compiled for. seed: of random programs.
    """
    for name in names:
        if name == "functions":
            yield from (_function(one, target) for one in FUNCTIONS)
        elif name.startswith("function:"):
            yield _function(name.partition(":")[2], target)
        elif name == "libraries":
            cases = (f"{c.model}/{c.batch_size}/{c.optimizer}" for c in library_steps.CASES)
            yield from steps(list(cases), [], target, seed)
        elif (folder := Path(name)).is_dir():
            yield from (_dump(path, target) for path in dumps(folder))
        else:
            yield from steps([name], [1], target, seed)


def _function(name: str, target: str) -> Step:
    def make() -> Any:
        function, shapes, donated = FUNCTIONS[name]
        placed = targets.target(target).place(shapes)
        return lambda _: jax.jit(function, donate_argnums=donated).lower(*placed)

    return Step(name, make)


def _dump(path: Path, target: str) -> Step:
    def make() -> Any:
        if (module := read_lowered(path)) is None:
            raise InputError(f"{path.name} has a schedule: olla_xla audit --hlo takes it")
        stage = DumpedStage(module, targets.target(target, module.devices))
        return lambda _: stage.lowered

    return Step(path.name, make)


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
