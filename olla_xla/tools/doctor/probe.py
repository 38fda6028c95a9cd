"""One check of a machine, in a process of its own.

`python -m olla_xla.tools.doctor.probe NAME`; prints a line of JSON: passed, and what was seen.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from hlo.files import own_folder
from hlo.gpu_executable import read_gpu_executable
from hlo.invariant_loads import invariant_loads
from hlo.module import HloError
from olla_xla import targets
from olla_xla.compile import decorator
from olla_xla.compile.accounting import final_module
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.compile.plan_store import stored_folder
from olla_xla.errors import OllaError
from olla_xla.memory.snappy import unsnapped
from olla_xla.planner.warm_up import loaded
from olla_xla.problem.whole_file import user_cache
from olla_xla.tools.measure.records import Comparison

Seen = tuple[bool | None, str]

_CARD = "h100"
"""The absent card whose executables are read."""


def _step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """A step for the checks, of matrix products, that needs less memory in another order."""
    hidden = [jnp.tanh(x @ w) for w in weights]
    return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden, strict=True)]


def _device() -> Seen:
    """Finds JAX's GPU: (True, its kind, memory and version), or (None, why there is none)."""
    try:
        gpu = next((d for d in jax.devices() if d.platform == "gpu"), None)
    except RuntimeError as error:
        return None, str(error).splitlines()[0]
    if gpu is None:
        return None, "JAX finds no GPU here"
    limit = (gpu.memory_stats() or {}).get("bytes_limit")
    size = "" if limit is None else f", {limit / 2**20:,.0f} MB for arrays"
    return True, f"{gpu.device_kind}{size}, {gpu.client.platform_version}"


def _targets() -> Seen:
    """Lists the targets to compile for here, without a card: (True, or None if only one; text)."""
    here, missing = [], {}
    for name in targets.TARGETS:
        targets.prepare_environment(name)
        try:
            targets.target(name)
            here.append(name)
        except OllaError as error:
            missing.setdefault(str(error).partition("; ")[2], []).append(name)
    text = f"compile for {', '.join(here)}"
    for hint, names in missing.items():
        text += f"; not for {', '.join(names)}: {hint}"
    return (True if len(here) > 1 else None), text


def _executable() -> Seen:
    """Plans a step for an absent GPU, reads its executable, and checks that against the plan.
    Returns (whether all is well, or None if it cannot be compiled for that GPU; what was seen).
    """
    targets.prepare_environment(_CARD)
    try:
        target = targets.target(_CARD)
    except OllaError as error:
        return None, str(error)
    weights = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 6
    shapes = target.place((weights, weights[0]))
    compiled = decorator.plan(_step, step_limit=2000, time_limit=60).lower(*shapes).compile()
    if not compiled.planned or compiled.plan is None:
        return False, f"a step for {target.kind} is not planned: {compiled.reason}"
    try:
        executable = read_gpu_executable(serialized_executable(compiled.stage), unsnapped)
    except HloError as error:
        return False, f"the executable of a step for {target.kind} cannot be read: {error}"
    if executable.unknown_kinds:
        return False, f"it has thunks of unknown kinds: {', '.join(executable.unknown_kinds)}"
    report, plan = compiled.check(), compiled.plan
    wrong = len(invariant_loads(final_module(compiled.stage), executable).wrong)
    return not wrong, (
        f"a step for {target.kind} is planned, {plan.predicted_bytes / 2**20:.1f} MB instead of "
        f"{plan.xla_predicted_bytes / 2**20:.1f}; all {report.thunks} thunks agree with the "
        f"module; the predicted time of a run changes by {100 * plan.slowdown:+.2f} %; "
        f"{wrong} fusions would read memory with invariant loads while a kernel writes it"
    )


def _bits() -> Seen:
    """Runs a step on this CPU planned and by `jax.jit`: (whether bits are equal, text and time)."""
    began = time.perf_counter()
    loaded()  # a small step may do without the loops
    planned = decorator.plan(_step, step_limit=2000, time_limit=60, donate_argnums=0)
    made = [jax.random.normal(jax.random.key(k), (512, 512)) for k in range(7)]
    expected = jax.jit(_step)(made[:6], made[6])
    outputs = jax.block_until_ready(planned(made[:6], made[6]))
    took = time.perf_counter() - began
    same = all(bool((a == b).all()) for a, b in zip(outputs, expected, strict=True))
    loops = "compiled now" if "numba" in sys.modules else "on disk"
    bits = f"{'the same' if same else 'not the same'} bits as with jax.jit"
    where = "planned" if planned.plans and not planned.plans[-1].keeps_xla else "in XLA's order"
    return same, (
        f"a step on this CPU, {where}, gives {bits}; planning and running took {took:.1f} s; "
        f"the planner's machine code was {loops}"
    )


def _cache() -> Seen:
    """Checks that the cache folder can be written: (whether it can, where plans are stored)."""
    try:
        folder = user_cache()
        own_folder(folder)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:
        return False, f"the cache folder cannot be written: {error}; set XDG_CACHE_HOME"
    plans = stored_folder()
    kept = "plans are not stored" if plans is None else f"plans are stored in {plans}"
    return True, f"{folder} can be written; {kept}"


PROBES: dict[str, Callable[[], Seen]] = {
    "device": _device,
    "targets": _targets,
    "executable": _executable,
    "bits": _bits,
    "cache": _cache,
}
"""By name."""


def main(arguments: Sequence[str]) -> int:
    """Runs the check that `arguments[0]` names; prints its result as JSON; returns 0."""
    passed, seen = PROBES[arguments[0]]()
    print(json.dumps({"passed": passed, "seen": seen}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check of a machine.

    Attributes:
      name: of the check. seen: what was found, as text.
      passed: None where it could not be made here.
    """

    name: str
    passed: bool | None
    seen: str


@dataclasses.dataclass(frozen=True)
class ModelRow:
    """A model's step to run planned and unplanned.
    max_overhead: time that recomputation may add, as a fraction; None: the planner's default.
    """

    model: str
    batch_size: int
    optimizer: str
    max_overhead: float | None = None

    @property
    def name(self) -> str:
        """A name for reports: model, batch size, optimizer, and the time that may be added."""
        more = "" if self.max_overhead is None else f", {100 * self.max_overhead:g} % allowed"
        return f"{self.model}, batch {self.batch_size}, {self.optimizer}{more}"


ROWS = (
    ModelRow("resnet50", 4, "adam"),
    ModelRow("vgg11", 4, "adam"),
    ModelRow("efficientnet_b0", 4, "adam"),
    ModelRow("gpt", 4, "adam"),
    ModelRow("resnet50", 32, "momentum", 0.05),
    ModelRow("llama_scan_saved", 8, "adam"),
    ModelRow("llama_scan_saved", 8, "adam", 0.05),
)
"""Of the zoo; the scans test recomputation in loops, which may round otherwise."""


@dataclasses.dataclass(frozen=True)
class RunRow:
    """The outcome of running one ModelRow planned and unplanned.

    Attributes:
      row: the step. commands: whether XLA made command buffers; None where it makes none.
      comparison: of both runs; None where a process failed, and `error` says why.
    """

    row: ModelRow
    commands: bool | None
    comparison: Comparison | None
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether the step ran planned and unplanned, and outputs were the same bit for bit."""
        return self.comparison is not None and not self.comparison.difference


@dataclasses.dataclass(frozen=True)
class Examination:
    """All results of `olla_xla doctor`: versions, checks of the machine, and runs of models.

    Attributes:
      made: when, in UTC. versions: of Python and packages. machine: system, processor, cores, GPU.
      environment: variables that JAX, XLA and this package read.
      device: kind of the device that models ran on; "" where there is none, so that none ran.
      checks: what was looked at. runs: models' steps (`ROWS`) run planned and unplanned.
      left: those that did not run.
    """

    made: str
    versions: Mapping[str, str]
    machine: Mapping[str, str]
    environment: Mapping[str, str]
    device: str
    checks: tuple[Check, ...]
    runs: tuple[RunRow, ...]
    left: tuple[ModelRow, ...]

    @property
    def passed(self) -> bool:
        """Whether no check of the machine failed, and all models that ran gave the same bits."""
        failed = any(check.passed is False for check in self.checks)
        return not failed and all(run.passed for run in self.runs)
