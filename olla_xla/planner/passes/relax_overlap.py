"""Orders in which transfers overlap with less work, to save memory.

By default what XLA runs between the start of a transfer and its done stays there, though it may
need memory at the peak. Where it may move, the predicted time that a run takes longer on a device's
streams counts as added time, as in every other pass. Work that runs after a transfer has ended does
not overlap with it.
"""

import dataclasses
import itertools
import logging
import math
from collections.abc import Mapping, Sequence

from hlo.module import Computation, Module
from olla_xla.errors import KernelError
from olla_xla.planner.effort import Timing
from olla_xla.planner.orders import plan_order
from olla_xla.planner.state import WORTH, ModuleState
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.path import path_seconds
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import run_work, trips

_TRIES = 5  # choices of transfers that are ordered anew
_LESS = 0.25  # part of the time of what was found that the next choice may take

_logger = logging.getLogger("olla_xla")


def run(state: ModuleState) -> ModuleState:
    """The planner's pass that lets asynchronous transfers overlap with less work, to save memory.
    It adds at most the rest of the time allowance. Returns `state` where that saves too little,
    without an allowance, or under a budget, which was met at less cost.
    """
    request, allowance = state.request, state.allowance_left
    if request.options.budget_bytes is not None or math.isinf(allowance):
        return state
    left = state.seconds_left
    timing = Timing(request.schedule_seconds, left)
    after = _relaxed(state, allowance, request.limited(left), timing)
    return after if after.ordered.predicted_bytes < state.least_worth else state


def to_fit(state: ModuleState) -> ModuleState:
    """Lets asynchronous transfers overlap with less work if a step only then fits the device's
    memory. It may take any time, unless the options limit that. Returns `state` in all other cases.
    """
    request = state.request
    limit, options = request.device_bytes, request.options
    if limit is None or state.ordered.predicted_bytes <= limit or options.max_overhead is not None:
        return state
    after = _relaxed(state, math.inf, options, Timing(request.schedule_seconds))
    if after.ordered.predicted_bytes > limit:
        return state
    _logger.info("%.3f ms of transfers wait, to save memory", 1e3 * after.edits.exposed_seconds)
    return after


def _relaxed(
    state: ModuleState, allowance: float, options: PlanOptions, timing: Timing
) -> ModuleState:
    other = relaxed(state.module, state.ordered, state.request.cost, allowance, options, timing)
    if other is None:
        return state
    plan, seconds = other
    edits = dataclasses.replace(
        state.edits,
        added_seconds=state.edits.added_seconds + seconds,
        exposed_seconds=state.edits.exposed_seconds + seconds,
        sources=(*state.edits.sources, state.ordered.source),
    )
    plan = dataclasses.replace(plan, source=f"{plan.source} overlapping less")
    return dataclasses.replace(state, plan=plan, edits=edits)


def relaxed(
    module: Module,
    base: Plan,
    cost: CostModel,
    allowance: float,
    options: PlanOptions,
    timing: Timing | None = None,
) -> tuple[Plan, float] | None:
    """Finds the plan of least total in which asynchronous transfers may overlap with less work. At
    first all transfers may. Then those whose loss costs least and fits the allowance together. Once
    a plan fits it, the allowance becomes a part of its time, and this ends where the total grows.

    Args:
      module: a scheduled one. base: its plan so far. options, timing: of each order.
      cost: predicts operators' times. allowance: predicted seconds that may be added.

    Returns:
      The plan and the seconds it adds; None where none is better than `base` within the allowance.
    """
    starts = {n for n, s in hidden_seconds(module, base.order, cost).items() if s > 0}
    before = path_seconds(module, cost, base.order) if starts else 0.0
    best: tuple[Plan, float] | None = None
    for _ in range(_TRIES):
        if not starts:
            break
        try:
            plan = plan_order(
                module,
                options,
                base.target,
                timing=timing,
                released=frozenset(starts),
                kept=base.kernels,
            )
        except KernelError as error:
            _logger.info("transfers keep their overlap with computation: %s", error)
            break
        most = base.predicted_bytes - 1 if best is None else best[0].predicted_bytes / WORTH
        if plan.predicted_bytes > most:
            break
        lost = exposed(module, base, plan, cost)
        seconds = max(path_seconds(module, cost, plan.order) - before, 0.0)
        # Scaled to the run's time: several transfers may have overlapped with the same work.
        part = seconds / max(sum(lost.values()), seconds) if seconds else 1.0
        if seconds <= allowance:
            best = plan, seconds
            allowance = _LESS * seconds
        starts = _cheapest({name: part * s for name, s in lost.items()}, starts, allowance)
    return best


def exposed(module: Module, base: Plan, plan: Plan, cost: CostModel) -> dict[str, float]:
    """Start's name -> seconds of work that overlap with its transfer in `base` and not in `plan`.
    `module`: that both plans are for, with their loops and clones in it.
    """
    before, after = (hidden_seconds(module, p.order, cost) for p in (base, plan))
    return {name: max(seconds - after.get(name, 0.0), 0.0) for name, seconds in before.items()}


def hidden_seconds(
    module: Module, order: Mapping[str, Sequence[str]], cost: CostModel
) -> dict[str, float]:
    """Returns an asynchronous start's name -> predicted seconds of the work between it and its
    done. The sum is over one run of a module. Other transfers use the same link and hide nothing:
    only their memory traffic counts.

    Args:
      module: the module. cost: predicts operators' times.
      order: computation name -> instruction names in execution order; unknown ones are skipped.
    """
    hidden: dict[str, float] = {}

    def visit(computation: Computation, times: int) -> None:
        for name, seconds in _hidden(computation, order.get(computation.name, ()), cost).items():
            hidden[name] = hidden.get(name, 0.0) + times * seconds
        for i in computation.instructions:
            for called in i.called_control:
                visit(called, times * trips(i))

    visit(module.entry, 1)
    return hidden


def _hidden(computation: Computation, names: Sequence[str], cost: CostModel) -> dict[str, float]:
    """Start's name -> seconds of work between it and its done, in one run of a computation."""
    own = {i.name: i for i in computation.instructions}
    sequence = [own[name] for name in names if name in own]
    dones = [i for i in sequence if i.opcode.endswith("-done")]
    if not dones:
        return {}
    works = run_work(computation, cost.work)
    work = {i: dataclasses.replace(w, exchanged=0) for i, w in works.items()}
    until = [0.0, *itertools.accumulate(cost.device.seconds(work[i]) for i in sequence)]
    step = {i: k for k, i in enumerate(sequence)}
    return {
        start.name: until[step[done]] - until[step[start] + 1]
        for done in dones
        if (start := done.operands[0]) in step
    }


def _cheapest(lost: dict[str, float], starts: set[str], allowance: float) -> set[str]:
    """Names in `starts` with least seconds in `lost` that fit `allowance` together; never all."""
    kept: set[str] = set()
    for name in sorted(starts, key=lambda name: (lost[name], name)):
        allowance -= lost[name]
        if allowance < 0 or len(kept) == len(starts) - 1:
            break
        kept.add(name)
    return kept
