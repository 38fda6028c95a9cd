"""The memory of a step: predicted, assigned and measured, side by side.

Each measurement is made in a fresh process, which gets the executable and the arguments. So its
memory does not include tracing, compiling and planning.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import PicklingError
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from olla_xla.analysis.text_table import megabytes
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.decorator import plan
from olla_xla.compile.planned_function import PlannedFunction
from olla_xla.errors import InputError
from olla_xla.memory.own_jit import own_jit
from olla_xla.tools.child import run_module


@dataclasses.dataclass(frozen=True)
class MeasuredMemory:
    """Memory of one executable, in bytes; totals on the device, except `arguments`.

    Attributes:
      way: "xla" or "planned".
      predicted: by our model; None where nothing was planned.
      assigned: XLA's total, arguments + outputs - aliases + temp.
      measured: the peak in use while it ran in a fresh process, arguments included: by the device's
        allocator, or resident memory on CPU. None where it was not measured.
      arguments: the arguments' own part of `measured`.
      profiled: the peak that JAX's profiler saw; None without XProf, and on CPU.
      reason: why nothing was measured, or "".
    """

    way: str
    predicted: int | None
    assigned: int
    measured: int | None = None
    arguments: int | None = None
    profiled: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        parts = [f"predicted {megabytes(self.predicted)}", f"assigned {megabytes(self.assigned)}"]
        if self.measured is None:
            parts.append(f"not measured: {self.reason}")
        else:
            parts.append(
                f"measured {megabytes(self.measured)} (arguments {megabytes(self.arguments)})"
            )
        if self.profiled is not None:
            parts.append(f"profiled {megabytes(self.profiled)}")
        return f"{self.way}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The memory of a step run in XLA's own order, and run planned.

    Attributes:
      device: its kind.
      xla: XLA's own executable. planned: the planned one; None where XLA's order is kept.
    """

    device: str
    xla: MeasuredMemory
    planned: MeasuredMemory | None

    def __str__(self) -> str:
        rows = [self.xla] if self.planned is None else [self.xla, self.planned]
        return "\n".join([f"MB of 2^20 bytes, {self.device}", *map(str, rows)])


def measure(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Measurement:
    """Runs a function in XLA's order and planned, each in a fresh process, and measures memory.

    A GPU is shared by these processes and this one, which therefore must not hold most of its
    memory: set XLA_PYTHON_CLIENT_PREALLOCATE=false before JAX starts. Functions on several devices,
    or for a compile-only target (`olla_xla.targets`), are not measured.

    Args:
      fn: planned, jitted or plain; if not planned, it is planned with default options. It must not
        call back to Python, which another process cannot do.
      *args: its arguments; `jax.ShapeDtypeStruct`s stand for zeros. **kwargs: likewise.

    Raises:
      InputError: `fn` cannot be planned, or its executable cannot be serialized for another
        process. If that process fails, `reason` says so.
    """
    planned = fn if isinstance(fn, PlannedFunction) else plan(fn)
    jit_options = planned.jit_options
    compiled = planned.lower(*args, **kwargs).compile()
    own = own_jit(functools.partial(planned.__wrapped__), **jit_options)
    own = own.lower(*args, **kwargs).compile()
    step_plan, leaves = compiled.plan, _leaves(planned.__wrapped__, jit_options, args, kwargs)
    device, reason = _device(own)
    measured = [("xla", own, None if step_plan is None else step_plan.xla_predicted_bytes)]
    if compiled.planned and step_plan is not None:
        measured.append(("planned", compiled.stage, step_plan.predicted_bytes))
    rows = []
    for way, executable, predicted in measured:
        row = MeasuredMemory(way, predicted, assigned_bytes(executable), reason=reason)
        if not reason:
            row = dataclasses.replace(row, **_run(executable, leaves, device.platform))
        rows.append(row)
    return Measurement(device.device_kind, rows[0], rows[1] if len(rows) > 1 else None)


def _device(compiled: jax.stages.Compiled) -> tuple[Any, str]:
    """Returns (an executable's first device, why nothing can be measured on it, or "")."""
    devices = {
        device
        for sharding in jax.tree.leaves(compiled.input_shardings)
        for device in sharding.device_set
    } or {jax.devices()[0]}
    device = min(devices, key=lambda d: d.id)
    if len(devices) > 1:
        return device, f"it runs on {len(devices)} devices"
    try:
        here = device in jax.devices(device.platform)
    except RuntimeError:
        here = False
    return device, "" if here else f"this machine has no {device.device_kind}"


def _leaves(
    fn: Callable[..., Any], jit_options: Mapping[str, Any], args: Any, kwargs: Any
) -> list[Any]:
    """Returns the pytree leaves of a call's arguments that `jit_options` do not make static."""
    numbers = _tuple(jit_options.get("static_argnums"))
    names = set(_tuple(jit_options.get("static_argnames")))
    try:
        positions = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        positions = []
    static = {k + len(args) if k < 0 else k for k in numbers}
    static |= {k for k, name in enumerate(positions) if name in names}
    names |= {positions[k] for k in static if k < len(positions)}
    args = [a for k, a in enumerate(args) if k not in static]
    return jax.tree.leaves((args, {k: v for k, v in kwargs.items() if k not in names}))


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def _run(compiled: jax.stages.Compiled, leaves: list[Any], platform: str) -> dict[str, Any]:
    """Runs an executable in a fresh process; returns fields of `MeasuredMemory`.
    Raises InputError if it cannot be serialized for that process.
    """
    infos = jax.tree.leaves(compiled.args_info)
    if len(infos) != len(leaves):
        raise InputError("measure cannot tell which arguments are static; pass those by position")
    try:
        data, _, outputs = serialize_executable.serialize(compiled)
    except (NotImplementedError, ValueError, AttributeError, TypeError, PicklingError) as error:
        raise InputError(
            f"measure cannot send the function to another process ({error}); it must not call back "
            "to Python or use a jax.new_ref from outside"
        ) from error
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "executable").write_bytes(data)
        kept = [_write(folder / f"leaf{k}", leaf) for k, leaf in enumerate(leaves)]
        request = {"leaves": kept, "outputs": outputs.num_leaves}
        (folder / "request.json").write_text(json.dumps(request))
        environment = {"JAX_PLATFORMS": "cpu"} if platform == "cpu" else {}
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        child = run_module("olla_xla.tools.measure.measured_run", name, environment)
    if (answer := child.answer) is None:
        return {"reason": child.trouble}
    return {
        "measured": answer["measured"],
        "arguments": answer["arguments"],
        "profiled": answer["profiled"],
        "reason": "" if answer["measured"] is not None else "the system reports no memory use",
    }


def _write(path: Path, leaf: Any) -> dict[str, Any]:
    """Writes an argument's bytes, unless it is only a shape; returns shape, dtype, key type."""
    key = ""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        leaf = leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            leaf = jax.random.split(jax.random.key(0), leaf.shape)
        key, leaf = str(jax.random.key_impl(leaf)), jax.random.key_data(leaf)
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        np.asarray(leaf).tofile(path)
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype), "key": key}
