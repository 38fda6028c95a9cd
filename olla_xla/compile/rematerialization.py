"""XLA:GPU's own rematerialization, which runs after our hook, and compiles without it.
It acts where the peak that it estimates is above (80 % of the memory - arguments - outputs) x
`xla_gpu_memory_limit_slop_factor` (HloRematerialization, GetSchedulerMemoryLimit). Its estimate
counts a result that overwrites an operand a second time, so that it also acts on what fits. What
fits by XLA's own buffer assignment is compiled with that pass off.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax

from hlo.backend import platform
from hlo.backend.cuda import CUDA
from hlo.module import Computation, Instruction, Module, module_from_bytes
from olla_xla.compile.accounting import assigned_bytes, scratch_peak, temporary_bytes
from olla_xla.compile.jax_private import device_bytes, options_of
from olla_xla.compile.order import AGAIN, IDLE
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.path import alone_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import trips

_PASS, _OFF = "rematerialization", "xla_disable_hlo_passes"

_PART, _PERCENT = 0.8, 95
"""XLA's: of a device that is not present, the part that a program may take; and of what arguments
and outputs leave of it."""

_NEAR = 0.99
"""Part of the limit from which on the pass may act: its estimate and ours differ by 0.1 %."""


def without_pass(lowered: jax.stages.Lowered, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns compiler options with XLA's rematerialization added to `xla_disable_hlo_passes`."""
    off = str(_option(_OFF, lowered, options) or "").split(",")
    passes = dict.fromkeys((*filter(None, map(str.strip, off)), _PASS))
    return {**(options or {}), _OFF: ",".join(passes)}


def acts_on(final: bytes, plan: Plan) -> bool:
    """Whether XLA's rematerialization added instructions to an executable's module (serialized).
    `plan`: its order names the instructions that were scheduled.
    """
    module = _with_clones(final, plan)
    return module is not None and bool(ran_again(module, _names(plan)))


def _with_clones(final: bytes, plan: Plan) -> Module | None:
    """Parses a serialized module if it may have instructions that XLA's rematerialization added.
    Returns None if not, as on a platform where XLA has no such pass with a memory limit.
    """
    if not platform(plan.target).memory_limit_flag or b".remat" not in final:
        return None
    return module_from_bytes(final)


def _names(plan: Plan) -> set[str]:
    return {name for order in plan.order.values() for name in order}


def added_work(final: bytes, plan: Plan, cost: CostModel) -> str:
    """Says what XLA's rematerialization added to a module, and its predicted time; or "".
    `final`: the executable's module. `plan`: its order names the instructions that were scheduled.
    """
    module = _with_clones(final, plan)
    again = [] if module is None else ran_again(module, _names(plan))
    if module is None or not again:
        return ""
    return in_words(len(again), seconds_of(again, module, cost))


def in_words(instructions: int, seconds: float) -> str:
    """Says that XLA recomputes so many instructions, and their time in milliseconds."""
    many = "instruction" if instructions == 1 else "instructions"
    return f"XLA recomputes {instructions:,} {many}, which takes {1e3 * seconds:.1f} ms"


def ran_again(module: Module, known: Collection[str] = ()) -> list[Instruction]:
    """Returns the instructions of a final module that XLA's rematerialization added and that are
    not idle (`IDLE`). `module`: what an executable runs. `known`: names that its scheduled module
    had already.
    """
    instructions = (i for c in module.control_computations for i in c.instructions)
    return [
        i
        for i in instructions
        if i.name not in known and AGAIN.match(i.name) and i.opcode not in IDLE
    ]


def seconds_of(again: Iterable[Instruction], module: Module, cost: CostModel) -> float:
    """Predicts the seconds of the instructions `again` in one run of the module, loops included."""
    times: collections.Counter[Computation] = collections.Counter({module.entry: 1})
    for caller in reversed(module.control_computations):
        for i in caller.instructions:
            for callee in i.called_control:
                times[callee] += times[caller] * trips(i)
    return sum(times[i.computation] * alone_seconds(i, cost) for i in again)


def limit(
    lowered: jax.stages.Lowered, options: Mapping[str, Any] | None, compiled: jax.stages.Compiled
) -> int | None:
    """Returns the bytes of temporaries up to which XLA:GPU does not rematerialize; None if unknown.
    For a device that is present, the memory counted is what JAX's allocator has. `options`: the
    compiler options. `compiled`: any executable of the stage.
    """
    memory = device_bytes(lowered, _PART)
    if memory is None:
        return None
    percent = _option(CUDA.memory_limit_flag, lowered, options)
    kept = assigned_bytes(compiled) - temporary_bytes(compiled)
    return (memory - kept) * int(_PERCENT if percent is None else percent) // 100


def may_act(
    view: Module,
    lowered: jax.stages.Lowered,
    options: Mapping[str, Any] | None,
    compiled: jax.stages.Compiled,
) -> bool:
    """Whether XLA may rematerialize in a module as it scheduled it: its estimate is near or above
    the limit; False where that is not known. `options`: the compiler options. `compiled`: any
    executable of the stage.
    """
    most = limit(lowered, options, compiled)
    return most is not None and scratch_peak(view, with_results=False) > _NEAR * most


def why_it_must(
    lowered: jax.stages.Lowered,
    options: Mapping[str, Any] | None,
    compiled: jax.stages.Compiled,
    total: int,
) -> str:
    """Says why XLA's rematerialization must stay on for `total` bytes of arguments, outputs and
    temporaries; "" where they fit. `options`: the compiler options. `compiled`: any executable of
    the stage, which has the same arguments and outputs.
    """
    most = limit(lowered, options, compiled)
    if most is None:
        return "how much memory the device has is not known"
    over = total - (assigned_bytes(compiled) - temporary_bytes(compiled)) - most
    return f"the step exceeds XLA's memory limit by {over / 2**20:,.1f} MB" if over > 0 else ""


def _option(name: str, lowered: jax.stages.Lowered, options: Mapping[str, Any] | None) -> Any:
    """Returns a compiler option's value: as given, as jitted, or of XLA_FLAGS; None if not set."""
    given = {**options_of(lowered), **(options or {})}
    flags = re.findall(rf"--{name}=['\"]?([^\s'\"]+)", os.environ.get("XLA_FLAGS", ""))
    return given.get(name, flags[-1] if flags else None)
