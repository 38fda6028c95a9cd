"""Examines a machine: facts, checks in separate processes, and models run planned and unplanned."""

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from olla_xla.compile import first_use
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.child import run_module
from olla_xla.tools.doctor.probe import PROBES, Check, Examination, ModelRow, RunRow
from olla_xla.tools.measure.processes import measure
from olla_xla.tools.measure.records import RunRequest
from olla_xla.version import versions

_READ = ("JAX_", "XLA_", "OLLA_XLA_", "CUDA_VISIBLE", "NUMBA_", "XDG_CACHE_HOME")
"""Prefixes of environment variables that affect how programs run; none holds a secret."""

_PACKAGES = ("numpy", "numba", "llvmlite", "jax-cuda13-plugin", "jax-cuda12-plugin", "xprof")

_NO_COMMANDS = "--xla_gpu_enable_command_buffer="
"""Has XLA make no command buffers."""

_SECONDS = 600
"""Time limit of a probe."""


def examine(
    rows: Sequence[ModelRow], steps: int, where: str, progress: Callable[[str], None]
) -> Examination:
    """Examines this machine: makes all checks and runs models, each in separate processes.
    No model is run where `where` is "gpu" and there is none.

    Args:
      rows: models to run. steps: of each run. where: the device that runs them, "gpu" or "cpu".
      progress: called with one line at each stage.
    """
    checks = []
    for name in PROBES:
        progress(name)
        checks.append(_probed(name))
    device = next(c for c in checks if c.name == "device")
    checks.append(_verified())
    kind = device.seen.partition(",")[0] if device.passed else ""
    if where == "cpu":
        kind = "cpu"
    runs = [run for row in rows for run in _runs(row, steps, where, progress)] if kind else []
    return Examination(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={"python": platform.python_version(), **versions(), **_packages()},
        machine={
            "system": platform.platform(),
            "processor": _processor(),
            "cores": str(os.cpu_count()),
            "gpu": device.seen,
        },
        environment={k: v for k, v in sorted(os.environ.items()) if k.startswith(_READ)},
        device=kind,
        checks=tuple(checks),
        runs=tuple(runs),
        left=() if kind else tuple(rows),
    )


def _probed(name: str) -> Check:
    """Runs the check `name` of `probe.PROBES` in a process of its own; returns its result."""
    only = "cuda,cpu" if name == "device" else "cpu"
    environment = {"JAX_PLATFORMS": only, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        child = run_module("olla_xla.tools.doctor.probe", name, environment, _SECONDS)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"no result within {_SECONDS} s")
    answer = child.answer
    return Check(name, False, child.trouble) if answer is None else Check(name, **answer)


def _verified() -> Check:
    """Makes a check of whether plans gave XLA's own results when first used on this machine.
    It did not pass if any stored comparison differs; None where no plan was compared yet.
    """
    known = first_use.verified()
    if not known:
        return Check("first plans", None, "no plan was compared with XLA's results on a GPU yet")
    said = []
    for where, by_kind in sorted(known.items()):
        of_kinds = (f"{kind} {by_kind[kind]}" for kind in first_use.KINDS if kind in by_kind)
        said.append(f"{where}: {', '.join(of_kinds)}")
    different = any(first_use.DIFFERENT in by_kind.values() for by_kind in known.values())
    return Check("first plans", not different, "; ".join(said))


def _runs(row: ModelRow, steps: int, where: str, progress: Callable[[str], None]) -> list[RunRow]:
    """Runs a model planned and unplanned; on a GPU with command buffers, and then without."""
    request = RunRequest(
        model=row.model,
        batch_size=row.batch_size,
        optimizer=row.optimizer,
        steps=steps,
        planned=True,
        platform=where,
        options=PlanOptions(time_limit=20.0, max_overhead=row.max_overhead),
    )
    runs = []
    for commands in (True, False) if where == "gpu" else (None,):
        flags = _NO_COMMANDS if commands is False else ""
        more = {None: "", True: ", command buffers", False: ", no command buffers"}[commands]

        def stage(line: str, more: str = more) -> None:
            progress(f"{row.name}{more}: {line}")

        try:
            comparison = measure(dataclasses.replace(request, xla_flags=flags), stage)
            runs.append(RunRow(row, commands, comparison))
        except OllaError as error:
            runs.append(RunRow(row, commands, None, str(error)))
    return runs


def _packages() -> dict[str, str]:
    installed = {}
    for name in _PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _processor() -> str:
    """Returns the name of this machine's processor, from /proc/cpuinfo where that has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    return next(names, platform.processor())
