"""What a plan must not make worse on a GPU: predicted time, and loads wrongly taken for invariant.
Both are computed from the final module and executable, after XLA's passes behind the scheduler.
XLA's own order is compiled for comparison only if the plan may be worse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from hlo import invariant_loads
from hlo.module import module_from_bytes
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import LONGEST_PATH
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import CostModel

if TYPE_CHECKING:
    from hlo.gpu_executable import GpuExecutable


class Ran(NamedTuple):
    """What a GPU runs: the final module, serialized, and the executable, parsed, or None."""

    module: bytes
    executable: GpuExecutable | None


def reason_of_plan(plan: Plan) -> str:
    """Says why not to compile a plan: its predicted time of a run is too long; or ""."""
    if not plan.xla_path_seconds or not plan.is_longer(plan.path_seconds):
        return ""
    return _longer(plan.path_seconds, plan.xla_path_seconds)


def worse(plan: Plan, ran: Ran, own: Callable[[], Ran], cost: CostModel, *, as_it_is: bool) -> str:
    """Says by what a plan's executable is worse than XLA's own: time, or invalid loads; or "".
    Such loads are cached as read-only while a kernel that runs at the same time writes the memory.
    `ran`: what runs the plan; `own` returns what runs XLA's own order, and is called only if the
    plan may be worse. `as_it_is`: whether the final module is the planned one, unchanged.
    """
    seconds = plan.path_seconds
    if not as_it_is and plan.xla_path_seconds:
        seconds = path_seconds(module_from_bytes(ran.module), cost)
    if plan.xla_path_seconds and plan.is_longer(seconds):
        before = path_seconds(module_from_bytes(own().module), cost)
        if seconds > LONGEST_PATH * before:
            return _longer(seconds, before)
    if ran.executable is None:
        return ""
    wrong = invariant_loads.invariant_loads(ran.module, ran.executable).wrong
    if not wrong:
        return ""
    other = own()
    before = 0
    if other.executable is not None:
        before = len(invariant_loads.invariant_loads(other.module, other.executable).wrong)
    if len(wrong) <= before:
        return ""
    return (
        f"{len(wrong)} fusions would read memory with invariant loads while a kernel writes it "
        f"({before} fusions in XLA's own order); the first is {wrong[0][0]}"
    )


def _longer(seconds: float, before: float) -> str:
    return (
        f"the plan is predicted to take {100 * (seconds / before - 1):.1f} % longer, "
        f"{1e3 * seconds:.3f} ms instead of {1e3 * before:.3f}; max_overhead= can allow that"
    )
