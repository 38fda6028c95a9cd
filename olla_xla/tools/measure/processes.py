"""Measures a train step planned and unplanned.

Every figure comes from a fresh process (one_process.py) that got plan and executable from a
cache that another process filled, so that neither compiling nor planning is in its memory.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec

from olla_xla.errors import InputError, OllaError
from olla_xla.tools.child import run_module
from olla_xla.tools.measure.records import Comparison, Measured, Recomputation, RunRequest, compare

Progress = Callable[[str], None]


_FIND_GPU = (
    "import jax; print(next((d.device_kind for d in jax.devices() if d.platform == 'gpu'), ''))"
)


def gpu_kind() -> str:
    """Asks a fresh process for the kind of the GPU that JAX finds; "" for none, or if it fails."""
    run = subprocess.run(
        [sys.executable, "-c", _FIND_GPU],
        env={**os.environ, **_device_environment("gpu")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = run.stdout.splitlines()
    return lines[-1].strip() if run.returncode == 0 and lines else ""


def measure(request: RunRequest, progress: Progress, turns: int = 40) -> Comparison:
    """Measures a step planned and unplanned, in fresh processes: outputs, memory and time.
    Raises InputError if the model cannot be built or traced, or runs less than two steps; OllaError
    if a process failed.

    Args:
      request: what to run; its `planned` is overridden.
      progress: called with one line at each stage.
      turns: if the plan recomputes, steps of it and of XLA's own executable to time; at least 2.
    """
    if request.steps < 2:
        raise InputError(f"steps={request.steps} must be at least 2, as the first is not timed")
    with tempfile.TemporaryDirectory() as cache:
        unplanned = measure_one(dataclasses.replace(request, planned=False), progress, cache)
        request = dataclasses.replace(request, planned=True)
        planned = measure_one(request, progress, cache)
        recomputation = None
        if planned.clones or planned.stacks:
            progress(f"timing {turns} steps of XLA's own order and as many of the plan")
            fields = _spawn(dataclasses.replace(request, turns=turns), cache)
            recomputation = msgspec.convert(fields, Recomputation)
    difference = compare(planned, unplanned)
    if recomputation and recomputation.kept.digests != recomputation.again.digests:
        difference = difference or "the plan's outputs differ from XLA's in the timed runs"
    return Comparison(planned, unplanned, difference, recomputation)


def measure_one(request: RunRequest, progress: Progress, cache: str) -> Measured:
    """Runs a step, planned or not as the request says, in a fresh process; returns measurements.
    Another process compiles first, into the folder `cache`. Raises InputError or OllaError.
    """
    what = "planned" if request.planned else "unplanned"
    progress(f"{what}: compiling")
    _spawn(dataclasses.replace(request, steps=0), cache)
    progress(f"{what}: running {request.steps} steps")
    return msgspec.convert(_spawn(request, cache), Measured)


def _spawn(request: RunRequest, cache: str) -> dict[str, Any]:
    """Runs a request in a fresh process; returns the fields of its result.
    Raises InputError or OllaError with the process's message if it failed.
    """
    text = json.dumps(dataclasses.asdict(request))
    environment = _environment(request, cache)
    child = run_module("olla_xla.tools.measure.one_process", text, environment)
    if (fields := child.answer) is not None:
        return fields
    if child.last.startswith('{"error"'):
        failure = json.loads(child.last)
        raise (InputError if failure["misuse"] else OllaError)(failure["error"])
    what = "planned" if request.planned else "unplanned"
    raise OllaError(f"the {what} process failed with exit code {child.code}: {child.error}")


def _environment(request: RunRequest, cache: str) -> dict[str, str]:
    return {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        **_device_environment(request.platform, request.xla_flags),
    }


def _device_environment(platform: str, more: str = "") -> dict[str, str]:
    """Returns environment variables with which each run of JAX gives results with the same bits.
    `platform` is "cpu" or "gpu"; `more` has further XLA flags.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {more}".strip()
    if platform == "cpu":
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    for flag in ("--xla_gpu_autotune_level=0", "--xla_gpu_deterministic_ops=true"):
        # Kernels that are chosen by timing, or add in any order, differ from run to run.
        if flag.split("=")[0] not in flags:
            flags += f" {flag}"
    return {
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_FLAGS": flags.strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
