"""A planned function's executable, with its buffers at offsets that we chose.

The instructions and their order are unchanged; results are the same bit for bit. If the executable
holds something unknown, or nothing is gained, the planned executable is used unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.relocation.executable import CpuExecutable
from benchmarks.relocation.reload import reloaded
from benchmarks.relocation.slices import Relocation, relocate
from hlo.module import HloError
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.planned_function import PlannedFunction
from olla_xla.errors import CheckError, InputError, OllaError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.planner.effort import Timing, effort
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.schedule import candidates
from olla_xla.schedule.search.phases import search

__all__ = ["OffsetsCompiled", "compile_with_offsets"]


@dataclasses.dataclass(frozen=True)
class OffsetsCompiled:
    """A compiled function whose buffers lie where we put them; sizes in bytes.

    Attributes:
      compiled: JAX's compiled stage; calls of this object run it.
      planned: the stage with the same order or a better one for XLA's own rule, buffers where XLA
        put them. It is the same as `compiled` if nothing was gained.
      total_bytes: arguments + outputs - aliases + temp of `compiled`. planned_bytes: of `planned`.
      order: "planned", or "lifetimes" for the order with the least lifetime peak.
      relocation: what was moved; None if nothing was gained.
      reason: why not, or "".
    """

    compiled: jax.stages.Compiled
    planned: jax.stages.Compiled
    total_bytes: int
    planned_bytes: int
    order: str = "planned"
    relocation: Relocation | None = None
    reason: str = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function."""
        return self.compiled(*args, **kwargs)

    def verify(self, *args: Any, steps: int = 1, **kwargs: Any) -> None:
        """Runs both executables on copies of the arguments and compares all outputs bit for bit.

        Args:
          *args, **kwargs: as for a call; nothing is donated.
          steps: how often each is run, on the same arguments.

        Raises:
          CheckError: an output differs.
        """
        for step in range(steps):
            expected = self.planned(*_copied(args), **_copied(kwargs))
            got = self.compiled(*_copied(args), **_copied(kwargs))
            pairs = zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(got), strict=True)
            for (path, a), b in pairs:
                if _bytes(a) != _bytes(b):
                    name = jax.tree_util.keystr(path)
                    raise CheckError(f"run {step}: output {name} differs; use the planned function")


def compile_with_offsets(
    function: PlannedFunction, *args: Any, time_limit: float = 10.0, **kwargs: Any
) -> OffsetsCompiled:
    """Compiles a planned function for these arguments and places its buffers anew. CPU only.

    Two orders compete: the plan's, and the one with the least lifetime peak, which XLA's own rule
    may serve worse but which leaves more to gain.

    Args:
      function: what `olla_xla.plan` returned.
      *args, **kwargs: arguments or their shapes, as for `lower`.
      time_limit: seconds of search for places, for each order.

    Returns:
      An executable never larger than the planned one.

    Raises:
      InputError: `function` is no planned function.

    Examples:
      >>> step = olla_xla.plan(train_step, donate_argnums=0)
      >>> step = compile_with_offsets(step, state, batch)
      >>> state, loss = step(state, batch)
    """
    if not isinstance(function, PlannedFunction):
        raise InputError("compile_with_offsets takes a function made by olla_xla.plan")
    lowered = function.lower(*args, **kwargs)
    stage = lowered.compile()
    planned: jax.stages.Compiled = stage._stage
    total = assigned_bytes(planned)
    best = OffsetsCompiled(planned, planned, total, total)
    reasons: list[str] = []
    for order, compiled in _orders(lowered._stage, planned, stage.plan, function._options):
        try:
            moved, relocation = _relocated(compiled, time_limit)
        except (OllaError, HloError) as error:
            reasons.append(str(error))
            continue
        if assigned_bytes(moved) < best.total_bytes:
            best = OffsetsCompiled(moved, planned, assigned_bytes(moved), total, order, relocation)
    if best.relocation is None:
        reason = "; ".join(dict.fromkeys(reasons)) or "no placement takes less"
        best = dataclasses.replace(best, reason=reason)
    return best


def _relocated(
    compiled: jax.stages.Compiled, time_limit: float
) -> tuple[jax.stages.Compiled, Relocation]:
    """The executable with its buffers elsewhere, loaded."""
    found: list[Relocation] = []

    def rewrite(data: bytes) -> bytes:
        found.append(relocate(CpuExecutable(data), time_limit=time_limit))
        return found[-1].executable

    executable = compiled.runtime_executable()
    if executable is None or executable.client.platform != "cpu":
        raise InputError("only executables for the CPU can be read")
    if len(executable.local_devices()) != 1:
        raise InputError("only executables for one device can be moved")
    moved = reloaded(compiled, rewrite)
    gain = found[0].xla_temp_bytes - found[0].temp_bytes
    if assigned_bytes(compiled) - assigned_bytes(moved) != gain:
        raise CheckError(f"XLA counts {assigned_bytes(moved)} bytes after {gain} were saved")
    return moved, found[0]


def _orders(
    lowered: jax.stages.Lowered,
    planned: jax.stages.Compiled,
    plan: Plan | None,
    options: PlanOptions,
) -> Iterator[tuple[str, jax.stages.Compiled]]:
    """Executables to place the buffers of, by the name of their order."""
    yield "planned", planned
    if (
        plan is None
        or plan.clones
        or plan.loops
        or plan.sunk
        or plan.joined
        or plan.target != "cpu"
    ):
        return
    # With options, even none, JAX does not serve the executable that it keeps for calls.
    compiles = Compiles(lowered, {}, {})
    try:
        other = _least_peak(compiles.capture().module, plan, options)
        if other is not None:
            yield "lifetimes", compiles.apply(other)[0]
    finally:
        compiles.forget()


def _least_peak(module: bytes, plan: Plan, options: PlanOptions) -> Plan | None:
    """The plan with the least lifetime peak; None if the plan has that already."""
    planned = PlannedModule(scheduled_module(module), plan.target)
    entry = planned.module.entry
    if len(planned.computations) > 1:  # loops and branches keep their places anyway
        return None
    lowered = planned.lowered(entry)
    arrays = GraphArrays.of(lowered.graph)
    found = search(
        arrays,
        candidates(arrays),
        time_limit=effort(options, Timing(), 0, 0).seconds,
        step_limit=options.step_limit,
        seed=options.seed,
        bound_bytes=forced_live_bound(arrays)[0],
        tolerance=options.tolerance,
    )
    peak = peak_bytes(arrays, found.lifetime_order)
    if peak >= plan.peak_bytes:
        return None
    order = tuple(lowered.instructions[k].name for k in found.lifetime_order)
    # XLA's total is compared later, with the buffers in their new places: nothing is rejected here.
    return dataclasses.replace(
        plan,
        order={entry.name: order},
        aliases={},
        offsets={},
        peak_bytes=peak,
        xla_bytes=2**62,
        source="lifetimes",
    )


def _copied(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.copy() if isinstance(leaf, jax.Array | np.ndarray) else leaf, tree
    )


def _bytes(leaf: Any) -> bytes:
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()
