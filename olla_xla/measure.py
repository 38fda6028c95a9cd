"""Runs a train step planned and unplanned and measures both: outputs, memory, time.

Every figure comes from a fresh process that got plan and executable from a cache that another
process filled, so that neither compiling nor planning is in its memory. Processes are
`python -m olla_xla.measure REQUEST`, with a request and a result in JSON.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from olla_xla.errors import InputError, OllaError

__all__ = ["Comparison", "Measured", "Request", "compare", "measure"]

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Request:
    """What one process is to run.

    Attributes:
      model, batch_size, optimizer: which step; see `olla_xla.models`.
      steps: how many, at least 2; 0 only compiles.
      planned: through `olla_xla.plan`, else through `jax.jit`.
      platform: "cpu" or "gpu".
      time_limit, step_limit, seed: the planner's; the seed is that of the arguments too.
      memory_budget, max_overhead: as in `PlanOptions`.
    """

    model: str
    batch_size: int
    optimizer: str
    steps: int
    planned: bool
    platform: str = "cpu"
    time_limit: float = 20.0
    step_limit: int | None = None
    seed: int = 0
    memory_budget: int | str | None = None
    max_overhead: float | None = None


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one process measured; sizes in bytes, times in seconds.

    Attributes:
      planned: True when the executable ran another order than XLA's own. reason: why not, or "".
      leaves: names of the output's leaves. digests: of each leaf after each step.
      step_seconds: of each step but the first.
      assigned_bytes: XLA's total for the executable.
      xla_bytes: its total for its own order, where a plan knows it.
      process_peak_bytes: the most that was resident in the whole life of the process.
      steps_peak_bytes: the most that was resident while the steps ran, less what was resident
        before them besides the arguments; None where the system does not say.
      device_peak_bytes: the most that the device's allocator held, less what it held before the
        arguments were made; None on CPU, or where something before the steps took more.
      cached: True when nothing was compiled in the process.
      device: its kind.
      clones: instructions that are computed again. overhead: the time that they were predicted to
        add, as a part of the step's.
    """

    planned: bool
    reason: str
    leaves: tuple[str, ...]
    digests: tuple[tuple[str, ...], ...]
    step_seconds: tuple[float, ...]
    assigned_bytes: int
    xla_bytes: int | None
    process_peak_bytes: int
    steps_peak_bytes: int | None
    device_peak_bytes: int | None
    cached: bool
    device: str
    clones: int = 0
    overhead: float = 0.0


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A step planned and unplanned.

    Attributes:
      planned, unplanned: what was measured.
      difference: "" if every leaf of every step is identical bit for bit, else the first that is
        not.
    """

    planned: Measured
    unplanned: Measured
    difference: str

    @property
    def time_ratio(self) -> float:
        """Median step time, planned over unplanned."""
        return statistics.median(self.planned.step_seconds) / statistics.median(
            self.unplanned.step_seconds
        )


def measure(request: Request, progress: Progress) -> Comparison:
    """Measures a request planned and unplanned, one after the other.

    Args:
      request: what to run; its `planned` is overridden.
      progress: called with one line at each stage.

    Raises:
      InputError: the model cannot be built or traced.
      OllaError: a process failed.
    """
    if request.steps < 2:
        raise InputError(f"steps={request.steps} must be at least 2: the first is not timed")
    results = []
    with tempfile.TemporaryDirectory() as cache:
        for planned in (False, True):
            what = "planned" if planned else "unplanned"
            one = dataclasses.replace(request, planned=planned)
            progress(f"{what}: compiling")
            _spawn(dataclasses.replace(one, steps=0), cache)
            progress(f"{what}: running {request.steps} steps")
            results.append(_measured(_spawn(one, cache)))
    unplanned, planned = results
    return Comparison(planned, unplanned, compare(planned, unplanned))


def compare(planned: Measured, unplanned: Measured) -> str:
    """The first output that differs, or "" if all are identical bit for bit."""
    if planned.leaves != unplanned.leaves:
        return "the outputs have different structures"
    if len(planned.digests) != len(unplanned.digests):
        return f"{len(planned.digests)} steps planned, {len(unplanned.digests)} unplanned"
    for step, (ours, theirs) in enumerate(zip(planned.digests, unplanned.digests, strict=True)):
        for leaf, a, b in zip(planned.leaves, ours, theirs, strict=True):
            if a != b:
                return f"output {leaf} differs after step {step + 1}"
    return ""


def _measured(fields: dict[str, Any]) -> Measured:
    fields["leaves"] = tuple(fields["leaves"])
    fields["digests"] = tuple(map(tuple, fields["digests"]))
    fields["step_seconds"] = tuple(fields["step_seconds"])
    return Measured(**fields)


def _spawn(request: Request, cache: str) -> dict[str, Any]:
    """Runs a request in a fresh process; returns the fields of its result."""
    text = json.dumps(dataclasses.asdict(request))
    run = subprocess.run(
        [sys.executable, "-m", "olla_xla.measure", text],
        env={**os.environ, **_environment(request, cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = run.stdout.splitlines()
    if run.returncode == 0 and lines:
        return json.loads(lines[-1])
    if lines and lines[-1].startswith('{"error"'):
        failure = json.loads(lines[-1])
        raise (InputError if failure["misuse"] else OllaError)(failure["error"])
    last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "")
    what = "planned" if request.planned else "unplanned"
    raise OllaError(f"the {what} process ended with code {run.returncode}: {last}")


def _environment(request: Request, cache: str) -> dict[str, str]:
    paths = [str(Path(__file__).parent.parent), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if request.platform == "cpu":
        return {**variables, "JAX_PLATFORMS": "cpu"}
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in ("--xla_gpu_autotune_level=0", "--xla_gpu_deterministic_ops=true"):
        # Kernels that are chosen by timing, or add in any order, differ from run to run.
        if flag.split("=")[0] not in flags:
            flags += f" {flag}"
    return {
        **variables,
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_FLAGS": flags.strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


# What follows runs in the fresh process.


def _run(request: Request) -> Measured:
    import jax

    from olla_xla import models
    from olla_xla.apply import assigned_bytes

    compiles: list[str] = []

    def listener(event: str, **_: str | int) -> None:
        if event.endswith(("/cache_hits", "/cache_misses")):
            compiles.append(event)

    jax.monitoring.register_event_listener(listener)
    model = models.build(request.model, batch_size=request.batch_size, optimizer=request.optimizer)
    function, compiled, reason = _compiled(model, request)
    cached = bool(compiles) and all(event.endswith("hits") for event in compiles)
    device = jax.devices()[0]
    held = _device_bytes(device, "bytes_in_use")
    arguments = _arguments(model, request.seed, device) if request.steps else ()
    gc.collect()
    _give_memory_back()
    resident = _status_bytes("VmRSS")
    if resident is not None:
        leaves = [leaf for leaf in jax.tree.leaves(arguments) if _is_array(leaf)]
        resident -= sum(leaf.nbytes for leaf in leaves)
    before = _device_bytes(device, "peak_bytes_in_use")
    can_reset = _reset_peak()
    names, digests, times = _steps(function, arguments, model, request, device)
    peak = _status_bytes("VmHWM")
    device_peak = _device_bytes(device, "peak_bytes_in_use")
    plan = getattr(compiled, "plan", None)
    return Measured(
        planned=bool(getattr(compiled, "planned", False)),
        reason=reason,
        leaves=names,
        digests=tuple(digests),
        step_seconds=tuple(times[1:]),
        assigned_bytes=assigned_bytes(compiled),
        xla_bytes=None if plan is None else plan.xla_bytes,
        process_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT,
        steps_peak_bytes=peak - resident if can_reset and peak and resident else None,
        device_peak_bytes=None
        if device_peak is None or before is None or held is None or device_peak <= before
        else device_peak - held,
        cached=cached,
        device=device.device_kind,
        clones=0 if plan is None else len(plan.clones),
        overhead=0.0 if plan is None else plan.overhead,
    )


_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _compiled(model: Any, request: Request) -> tuple[Callable[..., Any], Any, str]:
    """The function to call, its executable, and why it is not planned."""
    import jax

    import olla_xla
    from hlo.module import module_from_bytes
    from olla_xla.check_assignment import check_compiled, compare_orders
    from olla_xla.models import tracing

    with tracing(model.name):
        if not request.planned:
            function = jax.jit(model.step, **model.jit_options)
            return function, function.lower(*model.arguments).compile(), "not asked for"
        function = olla_xla.plan(
            model.step,
            time_limit=request.time_limit,
            step_limit=request.step_limit,
            seed=request.seed,
            memory_budget=request.memory_budget,
            max_overhead=request.max_overhead,
            **model.jit_options,
        )
        lowered = function.lower(*model.arguments)
    compiled = lowered.compile()
    if compiled.plan is None:
        raise OllaError(f"planning failed: {compiled.reason}")
    if request.platform == "cpu":
        check_compiled(compiled, compiled.plan)
    else:  # on a GPU the buffer assignment is known to dumps only
        module = compiled.runtime_executable().hlo_modules()[0]
        view = module_from_bytes(module.as_serialized_hlo_module_proto())
        compare_orders(compiled.plan, view)
    return function, compiled, compiled.reason


def _arguments(model: Any, seed: int, device: Any) -> Any:
    """The arguments on the device, made elsewhere so that making them takes no memory there."""
    import jax

    if device.platform == "cpu":
        return jax.block_until_ready(model.arrays(seed))
    with jax.default_device(jax.devices("cpu")[0]):
        arguments = jax.block_until_ready(model.arrays(seed))
    return jax.block_until_ready(jax.device_put(arguments, device))


def _steps(
    function: Callable[..., Any], arguments: Any, model: Any, request: Request, device: Any
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[float]]:
    """Runs the steps; returns the output's leaf names, digests by step, and seconds by step.

    A step that returns its first argument anew, a train state, gets it back; others get the same
    arguments each time.
    """
    import jax

    digests: list[tuple[str, ...]] = []
    times: list[float] = []
    names: tuple[str, ...] = ()
    for _ in range(request.steps):
        started = time.perf_counter()
        outputs = jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - started)
        leaves = jax.tree_util.tree_leaves_with_path(outputs)
        names = tuple(jax.tree_util.keystr(path) for path, _ in leaves)
        digests.append(tuple(_digest(leaf) for _, leaf in leaves))
        del leaves
        if isinstance(outputs, tuple) and _same_shapes(outputs[0], arguments[0]):
            arguments = (outputs[0], *arguments[1:])
        elif any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if _is_array(leaf)):
            arguments = _arguments(model, request.seed, device)
        del outputs
    return names, digests, times


def _is_array(leaf: Any) -> bool:
    import jax

    return isinstance(leaf, jax.Array)


def _same_shapes(a: Any, b: Any) -> bool:
    import jax

    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(
        getattr(x, "shape", None) == getattr(y, "shape", None)
        and getattr(x, "dtype", None) == getattr(y, "dtype", None)
        for x, y in pairs
    )


def _digest(leaf: Any) -> str:
    """Of a leaf's dtype, shape and bytes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    if _is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    digest = hashlib.sha256(f"{leaf.dtype}{leaf.shape}".encode())
    if _is_array(leaf) and leaf.nbytes and leaf.devices().pop().platform == "cpu":
        # numpy's view of it would stay with the array, and a viewed array cannot be donated.
        view = (ctypes.c_char * leaf.nbytes).from_address(leaf.unsafe_buffer_pointer())
        digest.update(memoryview(view))
    else:
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def _give_memory_back() -> None:
    """Has malloc return what it holds free, else steps would use it and look cheaper."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others do not
    if trim is not None:
        trim(0)


def _reset_peak() -> bool:
    """Resets the peak of resident memory; False where the system does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int | None:
    """A field of /proc/self/status, in bytes; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None


def _device_bytes(device: Any, field: str) -> int | None:
    stats = device.memory_stats()
    return None if not stats else stats.get(field)


def main(arguments: Sequence[str]) -> int:
    """Runs one request; prints a result, or what went wrong, as the last line of stdout."""
    request = Request(**json.loads(arguments[0]))
    try:
        print(json.dumps(dataclasses.asdict(_run(request))))
    except OllaError as error:
        print(json.dumps({"error": str(error), "misuse": isinstance(error, InputError)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
