"""Runs one request of `measure.processes` in this process, which is to be a fresh one.

`python -m olla_xla.tools.measure.one_process REQUEST`, with a request and a result in JSON.
"""

import ctypes
import dataclasses
import functools
import gc
import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from hlo.backend import platform as backend
from hlo.backend import platform_of_jax
from hlo.module import module_from_bytes
from olla_xla.compile import decorator, process_memory
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.assignment import check_compiled
from olla_xla.compile.order import compare_orders
from olla_xla.errors import InputError, OllaError
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.tools import models
from olla_xla.tools.measure.records import Measured, Recomputation, RunRequest, Variant
from olla_xla.tools.models import tracing


def _run(request: RunRequest) -> Measured:
    compiles: list[str] = []

    def listener(event: str, **_: str | int) -> None:
        if event.endswith(("/cache_hits", "/cache_misses")):
            compiles.append(event)

    jax.monitoring.register_event_listener(listener)
    model = models.build(request.model, batch_size=request.batch_size, optimizer=request.optimizer)
    function, compiled, reason = _compiled(model, request)
    cached = bool(compiles) and all(event.endswith("hits") for event in compiles)
    device = jax.devices()[0]
    on_device = process_memory.DevicePeak(device)
    arguments = _arguments(model, request.options.seed, device) if request.steps else ()
    gc.collect()
    process_memory.give_memory_back()
    resident = process_memory.status_bytes("VmRSS")
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments) if _is_array(leaf))
    if resident is not None:
        resident -= own
    can_reset = process_memory.reset_peak()
    given = [arguments]
    del arguments  # so that the first step's state is freed once the second has its own
    again = functools.partial(_next_arguments, model=model, request=request, device=device)
    names, digests, times = run_steps(function, given, request.steps, again)
    peak = process_memory.status_bytes("VmHWM")
    device_peak = on_device.bytes() if request.steps else None
    process_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    plan = getattr(compiled, "plan", None)
    profiled = None
    if request.steps and request.platform == "gpu":
        profiled = process_memory.profiled_peak(
            function, lambda: _arguments(model, request.options.seed, device)
        )
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
        device_peak_bytes=device_peak,
        cached=cached,
        device=device.device_kind,
        clones=0 if plan is None else len(plan.clones),
        stacks=0 if plan is None else plan.recomputed_residuals,
        overhead=0.0 if plan is None else plan.overhead,
        predicted_seconds=_predicted(compiled, request.platform) if request.steps else None,
        predicted_bytes=None if plan is None else plan.predicted_bytes,
        xla_predicted_bytes=None if plan is None else plan.xla_predicted_bytes,
        arguments_bytes=own if request.steps else None,
        profiled_bytes=profiled,
    )


def _run_in_turns(request: RunRequest) -> Recomputation:
    """Runs XLA's own executable and a plan that recomputes, alternately, and measures both."""
    model = models.build(request.model, batch_size=request.batch_size, optimizer=request.optimizer)
    _, again, _ = _compiled(model, request)
    overhead = again.plan.overhead
    with models.tracing(model.name):
        kept = jax.jit(model.step, **model.jit_options).lower(*model.arguments).compile()
    executables = (kept, again)
    device = jax.devices()[0]
    digests = []
    arguments: Any = None
    for executable in executables:
        arguments = None  # those of the other executable are freed first
        arguments = _arguments(model, request.options.seed, device)
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
            predicted_seconds=_predicted(executables[k], request.platform),
            step_seconds=tuple(times[k]),
            digests=digests[k],
        )
        for k in range(2)
    )
    return Recomputation(kept, again, overhead)


def _predicted(compiled: Any, platform: str) -> float:
    """Predicts the seconds of an executable's step by the cost model that plans are made with.
    On a GPU allocating temporaries takes no time, and transfers overlap with other work.
    """
    target = platform_of_jax(platform).name
    kind = jax.devices()[0].device_kind
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    module = module_from_bytes(final_module(compiled))
    cost = CostModel(device(target, kind), target)
    if backend(target).runs_beside:
        return path_seconds(module, cost)
    return cost.run_seconds(module, temporaries)


_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _compiled(model: Any, request: RunRequest) -> tuple[Callable[..., Any], Any, str]:
    """Compiles the model's step: (the function to call, its executable, why it is not planned).
    Raises OllaError if planning failed, or the executable does not run the plan.
    """
    with tracing(model.name):
        if not request.planned:
            function = jax.jit(model.step, **model.jit_options)
            return function, function.lower(*model.arguments).compile(), "not asked for"
        settings = dataclasses.asdict(request.options)
        function = decorator.plan(model.step, **settings, **model.jit_options)
        lowered = function.lower(*model.arguments)
    compiled = lowered.compile()
    if compiled.plan is None:
        raise OllaError(f"planning failed: {compiled.reason}")
    if request.platform == "cpu":
        check_compiled(compiled, compiled.plan)
    else:  # the referee has checked bytes and thunks; only the order is compared here
        executable = compiled.runtime_executable()
        assert executable is not None
        module = executable.hlo_modules()[0]
        view = module_from_bytes(module.as_serialized_hlo_module_proto())
        compare_orders(compiled.plan, view)
    return function, compiled, compiled.reason


def _arguments(model: Any, seed: int, device: Any) -> Any:
    """Makes a step's arguments on the device, by way of a CPU, which takes no memory there."""
    if device.platform == "cpu":
        return jax.block_until_ready(model.arrays(seed))
    with jax.default_device(jax.devices("cpu")[0]):
        arguments = jax.block_until_ready(model.arrays(seed))
    return jax.block_until_ready(jax.device_put(arguments, device))


def run_steps(
    function: Callable[..., Any],
    given: list[Any],
    steps: int,
    again: Callable[[Any, Any], Any],
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[float]]:
    """Runs a step several times: (names of output leaves, their digests by step, seconds by step).

    Args:
      function: a step. given: a list of its first arguments only, which are taken out of it, so
        that nothing else holds them. steps: how many.
      again: (outputs, last arguments) -> next arguments.
    """
    digests: list[tuple[str, ...]] = []
    times: list[float] = []
    names: tuple[str, ...] = ()
    arguments = given.pop()
    for _ in range(steps):
        started = time.perf_counter()
        outputs = jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - started)
        leaves = jax.tree_util.tree_leaves_with_path(outputs)
        names = tuple(jax.tree_util.keystr(path) for path, _ in leaves)
        digests.append(tuple(_digest(leaf) for _, leaf in leaves))
        del leaves
        arguments = again(outputs, arguments)
        del outputs
    return names, digests, times


def _next_arguments(
    outputs: Any, arguments: Any, model: Any, request: RunRequest, device: Any
) -> Any:
    """Returns the arguments of the next step, given outputs and arguments of the last one.
    A step that returns its first argument anew, a train state, gets it back; others get the same
    arguments each time, or equal ones if they were donated.
    """
    if isinstance(outputs, tuple) and _same_shapes(outputs[0], arguments[0]):
        return (outputs[0], *arguments[1:])
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if _is_array(leaf)):
        return _arguments(model, request.options.seed, device)
    return arguments


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)


def _same_shapes(a: Any, b: Any) -> bool:
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(
        getattr(x, "shape", None) == getattr(y, "shape", None)
        and getattr(x, "dtype", None) == getattr(y, "dtype", None)
        for x, y in pairs
    )


def _digest(leaf: Any) -> str:
    """Returns a digest, 16 hex digits, of an array's dtype, shape and bytes."""
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


def main(arguments: Sequence[str]) -> int:
    """Program of a child process: runs a request in JSON; prints the result as last line.
    If that raises an OllaError, prints its message in JSON instead, and returns 1.
    """
    request = msgspec.convert(json.loads(arguments[0]), RunRequest)
    try:
        result = _run_in_turns(request) if request.turns else _run(request)
        print(json.dumps(dataclasses.asdict(result)))
    except OllaError as error:
        print(json.dumps({"error": str(error), "misuse": isinstance(error, InputError)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
