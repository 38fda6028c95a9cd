"""Runs a train step planned and unplanned and measures both: outputs, memory, time.

What recomputation costs is measured apart. An order alone changes the step time too, so a plan with
clones is run in turns with the same plan without them: noise of the machine meets both alike.

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
import math
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

__all__ = [
    "Comparison",
    "Measured",
    "Recomputation",
    "Request",
    "Variant",
    "compare",
    "measure",
    "measure_one",
]

Progress = Callable[[str], None]

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Request:
    """What one process is to run.

    Attributes:
      model, batch_size, optimizer: which step; see `olla_xla.models`.
      steps: how many, at least 2; 0 only compiles.
      planned: through `olla_xla.plan`, else through `jax.jit`.
      turns: if not 0, runs that many steps of the plan and of the plan without its clones in turns.
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
    turns: int = 0


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
      predicted_seconds: of a step, by the cost model; None where it was not asked (GPU).
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
    predicted_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Median step time."""
        return statistics.median(self.step_seconds)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One of two executables that were run in turns.

    Attributes:
      assigned_bytes: XLA's total. predicted_seconds: of a step, by the cost model.
      step_seconds: measured, by turn. digests: of each leaf after one step from the same arguments.
    """

    assigned_bytes: int
    predicted_seconds: float
    step_seconds: tuple[float, ...]
    digests: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Median step time."""
        return statistics.median(self.step_seconds)


@dataclasses.dataclass(frozen=True)
class Recomputation:
    """A plan with and without its clones, the order otherwise the same, run in turns.

    Attributes:
      kept: without clones. again: with them.
      planned: time that the clones add as the plan predicts it, as a part of the step's: that of
        the operators that run again.
    """

    kept: Variant
    again: Variant
    planned: float

    @property
    def _overheads(self) -> list[float]:
        """Measured time that the clones add as a part of a step without, by turn, ascending."""
        pairs = zip(self.again.step_seconds, self.kept.step_seconds, strict=True)
        return sorted(again / kept - 1 for again, kept in pairs)

    @property
    def overhead(self) -> float:
        """Measured time that the clones add, as a part of a step without: median over turns."""
        return statistics.median(self._overheads)

    @property
    def interval(self) -> tuple[float, float]:
        """Where that median lies, with a confidence of 95 % or the most that so few turns give.

        Of n independent turns, the k-th least and the k-th most enclose the median unless fewer
        than k fall to one side of it: a matter of tossing n coins, however times are distributed.
        """
        found = self._overheads
        turns = len(found)
        k, outside = 0, math.comb(turns, 0) / 2**turns
        while k < (turns - 1) // 2 and 2 * outside <= 1 - _CONFIDENCE:
            k += 1
            outside += math.comb(turns, k) / 2**turns
        k = max(k - 1, 0)
        return found[k], found[-1 - k]

    @property
    def predicted(self) -> float:
        """As `planned`, by what both executables run and the temporaries that they ask for.

        A smaller temporary takes less time to get from the system, and what XLA drops because the
        clones made it useless does not run.
        """
        return self.again.predicted_seconds / self.kept.predicted_seconds - 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A step planned and unplanned.

    Attributes:
      planned, unplanned: what was measured.
      difference: "" if every leaf of every step is identical bit for bit, else the first that is
        not.
      recomputation: of the plan's clones; None if it has none.
    """

    planned: Measured
    unplanned: Measured
    difference: str
    recomputation: Recomputation | None = None

    @property
    def time_ratio(self) -> float:
        """Median step time, planned over unplanned."""
        return self.planned.seconds / self.unplanned.seconds


def measure(request: Request, progress: Progress, turns: int = 40) -> Comparison:
    """Measures a request planned and unplanned, one after the other.

    Args:
      request: what to run; its `planned` is overridden.
      progress: called with one line at each stage.
      turns: steps with and without clones, where the plan has any; at least 2.

    Raises:
      InputError: the model cannot be built or traced.
      OllaError: a process failed.
    """
    if request.steps < 2:
        raise InputError(f"steps={request.steps} must be at least 2: the first is not timed")
    with tempfile.TemporaryDirectory() as cache:
        unplanned = _measure(dataclasses.replace(request, planned=False), progress, cache)
        request = dataclasses.replace(request, planned=True)
        planned = _measure(request, progress, cache)
        recomputation = None
        if planned.clones:
            progress(f"with and without clones: {turns} steps of each in turns")
            fields = _spawn(dataclasses.replace(request, turns=turns), cache)
            recomputation = _recomputation(fields)
    difference = compare(planned, unplanned)
    if recomputation and recomputation.kept.digests != recomputation.again.digests:
        difference = difference or "the plan without its clones gives other outputs"
    return Comparison(planned, unplanned, difference, recomputation)


def measure_one(request: Request, progress: Progress) -> Measured:
    """Measures a request as it is; see `measure`."""
    with tempfile.TemporaryDirectory() as cache:
        return _measure(request, progress, cache)


def _measure(request: Request, progress: Progress, cache: str) -> Measured:
    what = "planned" if request.planned else "unplanned"
    progress(f"{what}: compiling")
    _spawn(dataclasses.replace(request, steps=0), cache)
    progress(f"{what}: running {request.steps} steps")
    return _measured(_spawn(request, cache))


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


def _variant(fields: dict[str, Any]) -> Variant:
    fields["step_seconds"] = tuple(fields["step_seconds"])
    fields["digests"] = tuple(fields["digests"])
    return Variant(**fields)


def _recomputation(fields: dict[str, Any]) -> Recomputation:
    return Recomputation(_variant(fields["kept"]), _variant(fields["again"]), fields["planned"])


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
    process_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    plan = getattr(compiled, "plan", None)
    return Measured(
        planned=bool(getattr(compiled, "planned", False)),
        reason=reason,
        leaves=names,
        digests=tuple(digests),
        step_seconds=tuple(times[1:]),
        assigned_bytes=assigned_bytes(compiled),
        xla_bytes=None if plan is None else plan.xla_bytes,
        process_peak_bytes=process_peak,
        steps_peak_bytes=peak - resident if can_reset and peak and resident else None,
        device_peak_bytes=None
        if device_peak is None or before is None or held is None or device_peak <= before
        else device_peak - held,
        cached=cached,
        device=device.device_kind,
        clones=0 if plan is None else len(plan.clones),
        overhead=0.0 if plan is None else plan.overhead,
        predicted_seconds=_predicted(compiled) if request.steps else None,
    )


def _run_in_turns(request: Request) -> Recomputation:
    """A plan and the same plan without its clones, step by step in turns."""
    import jax

    from olla_xla import models
    from olla_xla.apply import assigned_bytes, compile_without_clones

    model = models.build(request.model, batch_size=request.batch_size, optimizer=request.optimizer)
    _, again, _ = _compiled(model, request)
    with models.tracing(model.name):
        lowered = jax.jit(model.step, **model.jit_options).lower(*model.arguments)
    planned = again.plan.overhead
    executables = (compile_without_clones(lowered, again.plan), again)
    device = jax.devices()[0]
    digests = []
    arguments: Any = None
    for executable in executables:
        arguments = None  # those of the other are in nobody's way
        arguments = _arguments(model, request.seed, device)
        outputs = jax.block_until_ready(executable(*arguments))
        digests.append(tuple(map(_digest, jax.tree.leaves(outputs))))
        arguments = _next_arguments(outputs, arguments, model, request, device)
        del outputs
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(request.turns):
        for k in (turn % 2, 1 - turn % 2):
            started = time.perf_counter()
            outputs = jax.block_until_ready(executables[k](*arguments))
            times[k].append(time.perf_counter() - started)
            arguments = _next_arguments(outputs, arguments, model, request, device)
            del outputs
    kept, again = (
        Variant(
            assigned_bytes=assigned_bytes(executables[k]),
            predicted_seconds=_predicted(executables[k]) or 0.0,
            step_seconds=tuple(times[k]),
            digests=digests[k],
        )
        for k in range(2)
    )
    return Recomputation(kept, again, planned)


def _predicted(compiled: Any) -> float | None:
    """Seconds of a step by the cost model; None on GPU, where the card at hand is not priced."""
    import jax

    from hlo.module import module_from_bytes
    from olla_xla.accounting import final_module
    from olla_xla.remat.cost import CostModel
    from olla_xla.remat.devices import device

    if jax.devices()[0].platform != "cpu":
        return None
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    module = module_from_bytes(final_module(compiled))
    return CostModel(device("cpu"), "cpu").run_seconds(module, temporaries)


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
        arguments = _next_arguments(outputs, arguments, model, request, device)
        del outputs
    return names, digests, times


def _next_arguments(outputs: Any, arguments: Any, model: Any, request: Request, device: Any) -> Any:
    """What the next step gets: the state that was returned, else the same or the like."""
    import jax

    if isinstance(outputs, tuple) and _same_shapes(outputs[0], arguments[0]):
        return (outputs[0], *arguments[1:])
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if _is_array(leaf)):
        return _arguments(model, request.seed, device)
    return arguments


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
        result = _run_in_turns(request) if request.turns else _run(request)
        print(json.dumps(dataclasses.asdict(result)))
    except OllaError as error:
        print(json.dumps({"error": str(error), "misuse": isinstance(error, InputError)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
