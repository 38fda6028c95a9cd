"""Plans a whole module: candidates from every method compete on the predicted assigned total."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from hlo.module import HloError, Module, module_from_bytes
from hlo.rewrite.barriers import without_barriers
from hlo.rewrite.clones import Clone
from hlo.rewrite.edit import Edit
from hlo.rewrite.guards import with_guards
from olla_xla.errors import BudgetError, KernelError, ModuleFormatError, PlanMismatchError
from olla_xla.memory.kernels import Pattern, inherited
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.module_state import PlannedModule
from olla_xla.planner.computation import MoreOrders
from olla_xla.planner.effort import LONGEST, Timing, recomputation_limit
from olla_xla.planner.orders import Progress, plan_order
from olla_xla.planner.overlap import released
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan, PlanStatus
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel, module_work
from olla_xla.remat.fit import fit
from olla_xla.remat.loops.climb import climb, free
from olla_xla.remat.loops.ladder import Ladder, Rung
from olla_xla.remat.loops.moves import without_moves
from olla_xla.remat.loops.recipe import edits

__all__ = ["apply_plan", "graphs", "least_overlap", "module_order", "plan_module"]

_logger = logging.getLogger("olla_xla")

_ORDER_SHARE = 0.4
"""Part of the time limit for an order without recomputation, where that is allowed too."""


def graphs(module: bytes, target: str) -> list[TensorGraph]:
    """The tensor graphs of a scheduled module, callees first, the entry last (XLA's orders)."""
    planned = PlannedModule(module, target)
    result = []
    for computation in planned.module.control_computations:
        graph = planned.lowered(computation).graph
        planned.peaks[computation] = peak_bytes(graph, np.arange(len(graph.operators)))
        result.append(graph)
    return result


def module_order(module: bytes) -> dict[str, tuple[str, ...]]:
    """Computation name -> instruction names in schedule, for all control computations."""
    return module_from_bytes(module).order


def plan_module(
    module: bytes,
    options: PlanOptions,
    *,
    target: str,
    xla_bytes: int | None = None,
    more: MoreOrders | None = None,
    progress: Progress | None = None,
    schedule_seconds: float | None = None,
    device_kind: str = "",
    device_bytes: int | None = None,
) -> Plan:
    """Finds an order for every computation of a scheduled module.

    Loops that stack what a later one reads do without such stacks as cost more time than they save
    (olla_xla.remat.loops). Where the options have a memory budget that no order meets, or allow an
    overhead, more stacks go, and instructions of the entry computation are computed again
    (olla_xla.remat).

    Args:
      module: serialized HloModuleProto as XLA scheduled it.
      options: limits and seed.
      target: "cpu" or "cuda".
      xla_bytes: XLA's own assigned total when it is known, for the report.
      more: gives orders of another scheduler (computation name -> instruction names); it is asked
        if the search leaves a total far above the bound, and there is time left for it, as long as
        XLA took to its schedule.
      progress: called with one line at each improvement.
      schedule_seconds: what XLA took to get to its schedule. Without a limit in the options, the
        search takes a time in proportion to it; where it is None, 20 s at most.
      device_kind: JAX's name of the GPU, for the predicted times of recomputation; "": an H100.
      device_bytes: what a device has. Where the plan would take more, transfers may hide less
        than in XLA's order, if it fits then and no overhead is set. None: any.

    Returns:
      A plan that the referee has accepted and whose predicted total is never above XLA's order's.

    Raises:
      BudgetError: no plan that was found meets the memory budget.
      ModuleFormatError: `module` cannot be read or has no schedule.
      CheckError: the referee rejected the result (a bug).
    """
    module = _read(module)
    cost = CostModel(device(target, device_kind), target)  # measured once on a CPU; no planning
    started = time.monotonic()
    sunk = without_moves(module, target, cost) if options.loops else None
    work = _Work(module, target, cost, options, started, progress, schedule_seconds, device_bytes)
    if sunk is None:
        return _plan(work, xla_bytes, more)
    try:
        plan = _plan(dataclasses.replace(work, module=sunk.data, kernels=sunk.kernels), xla_bytes)
    except KernelError as error:
        _logger.info("what moves arrays for loops stays: %s", error)
        return _plan(work, xla_bytes, more)
    return sunk.plan(plan, xla_bytes, time.monotonic() - started)


@dataclasses.dataclass(frozen=True)
class _Work:
    """What there is to plan.

    Attributes:
      module: serialized. target, options, progress, schedule_seconds, device_bytes: as for
        `plan_module`.
      cost: prices operators. started: when planning began.
      kernels: patterns that kernels are to have, where the module is not XLA's own.
    """

    module: bytes
    target: str
    cost: CostModel
    options: PlanOptions
    started: float
    progress: Progress | None
    schedule_seconds: float | None
    device_bytes: int | None
    kernels: Mapping[str, Pattern] | None = None


def _plan(work: _Work, xla_bytes: int | None, more: MoreOrders | None = None) -> Plan:
    """The plan of a module. Args and Raises as for `plan_module`."""
    module, target, cost, options = work.module, work.target, work.cost, work.options
    first, longest = options, LONGEST
    if options.recomputes:
        # An order alone costs nothing, so it comes first; recomputation has the rest of the time.
        longest *= _ORDER_SHARE
        if options.time_limit is not None:
            first = _limited(options, options.time_limit * _ORDER_SHARE)
    steps = None
    if options.loops:
        steps = Ladder(module, target, cost, work.kernels, collectives=options.collectives)
    loops = None if steps is None else free(steps)

    kernels = work.kernels
    if kernels is None and steps is not None and (loops is not None or options.recomputes):
        kernels = steps.kernels
    elif kernels is None and options.recomputes:
        _, kernels = PlannedModule(module, target).own(every=True)

    def order(choice: Rung | None) -> Plan:
        return plan_order(
            module if choice is None else choice.data,
            first,
            target,
            xla_bytes=xla_bytes if choice is None else None,
            progress=work.progress,
            more=more if choice is None else None,
            timing=Timing(work.schedule_seconds, longest, work.started),
            kept=kernels if choice is None else choice.kernels,
        )

    try:
        plan = order(loops)
    except KernelError as error:
        _logger.info("loops keep their stacks: %s", error)
        loops, plan = None, order(None)
    if steps is not None and loops is not None:
        total = steps.total
        xla = total if xla_bytes is None else xla_bytes, total
        view = module_from_bytes(module)
        plan = _priced(_without_stacks(plan, loops), view, xla, cost, work.started)
    budget = options.budget_bytes
    least = plan.predicted_bytes if xla_bytes is None else min(plan.predicted_bytes, xla_bytes)
    if not options.recomputes:
        if budget is not None and least > budget:
            raise BudgetError(budget, least, "max_overhead=0 allows no recomputation")
    elif least > 0 and (budget is None or least > budget):  # nothing takes less than nothing
        plan = _recompute(work, plan, steps, loops)
    return _fitting(work, plan)


def _fitting(work: _Work, plan: Plan) -> Plan:
    """The plan, or, where that is too much for a device, one whose transfers hide less and is not.

    A step that does not fit cannot run at all, so any time is allowed for it, unless the options
    say how much.
    """
    limit = work.device_bytes
    if limit is None or plan.predicted_bytes <= limit or work.options.max_overhead is not None:
        return plan
    data = _edited(work.module, plan).to_bytes()
    timing = Timing(work.schedule_seconds)
    found = _overlapping_less(data, plan, work.cost, math.inf, work.options, timing)
    if found.predicted_bytes > limit:
        return plan
    _logger.info("transfers hide %.3f ms less, so that it fits", 1e3 * found.exposed_seconds)
    xla = plan.xla_bytes, plan.xla_predicted_bytes
    return _priced(found, module_from_bytes(work.module), xla, work.cost, work.started)


def _overlapping_less(
    data: bytes,
    base: Plan,
    cost: CostModel,
    allowance: float,
    options: PlanOptions,
    timing: Timing | None = None,
) -> Plan:
    """The plan where transfers hide less, if that is better and adds no more than allowed.

    Args:
      data: the module with the loops and clones of `base`. cost: prices operators.
      allowance: predicted seconds that may be added. options, timing: of an order.
    """

    def plan(starts: frozenset[str]) -> Plan:
        return plan_order(
            data, options, base.target, timing=timing, released=starts, kept=base.kernels
        )

    try:
        found = released(module_from_bytes(data), base, cost, allowance, plan)
    except KernelError as error:
        _logger.info("transfers hide what they hid: %s", error)
        found = None
    if found is None:
        return base
    other, seconds = found
    return dataclasses.replace(
        other,
        clones=base.clones,
        loops=base.loops,
        least_stack_bytes=base.least_stack_bytes,
        least_added_seconds=base.least_added_seconds,
        added_seconds=base.added_seconds + seconds,
        exposed_seconds=seconds,
        added_moved_bytes=base.added_moved_bytes,
        source=f"{base.source}+{other.source} overlapping less",
        status=_changed_status(other.status),
    )


def least_overlap(
    module: bytes, plan: Plan, options: PlanOptions, device_kind: str = ""
) -> tuple[int, float]:
    """What giving up all that transfers hide would save.

    Args:
      module: serialized, scheduled module, that `plan` is for. plan: one that keeps it.
      options: limits of the search. device_kind: as for `plan_module`.

    Returns:
      Predicted bytes and predicted seconds added, at most; the plan's own bytes and 0 where it
      would save nothing.
    """
    cost = CostModel(device(plan.target, device_kind), plan.target)
    data = _edited(_read(module), plan).to_bytes()
    found = _overlapping_less(data, plan, cost, math.inf, options)
    return found.predicted_bytes, found.exposed_seconds


def _read(module: bytes) -> bytes:
    """The module that a plan is for: without optimization barriers.

    Raises:
      ModuleFormatError: it is none.
    """
    try:
        return without_barriers(module)
    except HloError as error:
        raise ModuleFormatError(str(error)) from error


def _limited(options: PlanOptions, seconds: float) -> PlanOptions:
    """The options for part of the work: with that part of the time limit, if there is one."""
    if options.time_limit is None:
        return options
    return dataclasses.replace(options, time_limit=max(seconds, 0.01))


def _without_stacks(plan: Plan, rung: Rung) -> Plan:
    """The plan of a module whose loops do without stacks, with what they do without."""
    return dataclasses.replace(
        plan,
        loops=rung.records,
        least_stack_bytes=rung.least_stack_bytes,
        added_seconds=rung.seconds,
        added_moved_bytes=rung.moved,
        source=f"loops+{plan.source}",
        status=_changed_status(plan.status),
    )


def _priced(
    plan: Plan, view: Module, xla: tuple[int, int], cost: CostModel, started: float
) -> Plan:
    """The plan of a changed module as one for the module as it is, with its time.

    Args:
      plan: of the changed one. view: the module. xla: its `xla_bytes` and `xla_predicted_bytes`.
      cost: prices operators. started: when planning began.
    """
    return dataclasses.replace(
        plan,
        fingerprint=view.fingerprint,
        xla_bytes=xla[0],
        xla_predicted_bytes=xla[1],
        step_seconds=cost.step_seconds(view),
        moved_bytes=module_work(view, plan.target).bytes,
        seconds=time.monotonic() - started,
    )


def _recompute(work: _Work, base: Plan, steps: Ladder | None, loops: Rung | None) -> Plan:
    """The plan with recomputation that the options ask for; `base` where that is no better.

    First loops do without stacks (`remat.loops`), then what is left of the allowance goes to clones
    (`remat.fit`). `steps` are the choices for loops, `loops` is that of `base`.
    """
    module, cost, options = work.module, work.cost, work.options
    view, xla = module_from_bytes(module), (base.xla_bytes, base.xla_predicted_bytes)
    arguments = sum(p.shape.bytes for p in view.entry.parameters)
    spent = time.monotonic() - work.started
    limit = recomputation_limit(
        options, work.schedule_seconds, spent, base.predicted_bytes, arguments
    )
    budget = options.budget_bytes
    allowance = None
    if options.max_overhead is not None:
        allowance = options.max_overhead * cost.step_seconds(view)

    def plan(data: bytes, kernels: Mapping[str, Pattern], seconds: float) -> Plan | None:
        try:
            return plan_order(
                data,
                _limited(options, seconds),
                base.target,
                progress=work.progress,
                timing=Timing(work.schedule_seconds, seconds),
                kept=kernels,
            )
        except KernelError as error:
            _logger.info("a choice of what to compute again is left: %s", error)
            return None

    def with_loops(rung: Rung, seconds: float) -> Plan | None:
        return plan(rung.data, rung.kernels, seconds)

    def with_clones(data: bytes, made: Sequence[Clone], seconds: float) -> Plan | None:
        return plan(data, inherited(base.kernels, ((c.name, c.original) for c in made)), seconds)

    def left() -> float:
        return max(limit - (time.monotonic() - work.started), 0.1)

    data = module if loops is None else loops.data
    if steps is not None:
        chosen = climb(
            steps, base, budget=budget, allowance=allowance, seconds=left(), plan=with_loops
        )
        if chosen is not None:
            base, data = _without_stacks(chosen.plan, chosen.rung), chosen.rung.data
    if allowance is not None:
        allowance -= base.added_seconds
    found = None
    if budget is None or base.predicted_bytes > budget:
        found = fit(
            data, base, cost, budget=budget, allowance=allowance, seconds=left(), plan=with_clones
        )
    if found is not None:
        base = dataclasses.replace(
            found.plan,
            clones=tuple((c.name, c.original, c.operands, c.readers) for c in found.clones),
            loops=base.loops,
            least_stack_bytes=base.least_stack_bytes,
            least_added_seconds=found.bound,
            added_seconds=base.added_seconds + found.seconds,
            added_moved_bytes=base.added_moved_bytes + found.moved,
            source=f"{'loops+' if base.loops else ''}remat+{found.plan.source}",
            status=_changed_status(found.plan.status),
        )
        data, allowance = found.data, None if allowance is None else allowance - found.seconds
    if budget is None and allowance is not None:
        limited, timing = _limited(options, left()), Timing(work.schedule_seconds, left())
        base = _overlapping_less(data, base, cost, allowance, limited, timing)
    return dataclasses.replace(_priced(base, view, xla, cost, work.started), time_limit=limit)


def _changed_status(status: PlanStatus) -> PlanStatus:
    """The status of a changed module's plan: XLA's order of that is no order of XLA's own."""
    return PlanStatus.FEASIBLE if status is PlanStatus.XLA else status


def apply_plan(module: bytes, plan: Plan, mark: str = "") -> bytes:
    """Writes the plan's schedule and in-place results into the module, and notes on instructions.

    Each instruction gets as frontend attributes its step, the bytes it defines, and, where it
    defines any, the planned offsets of its values in order, separated by commas; the first and the
    last of each computation also `mark`, if there is one.

    Raises:
      PlanMismatchError: the plan was made for another module.
    """
    module = _read(module)
    view = module_from_bytes(module)
    if view.fingerprint != plan.fingerprint:
        raise PlanMismatchError(
            f"the plan for {plan.module} does not fit module {view.name}; plan it again"
        )
    sizes: dict[str, int] = {}
    offsets: dict[str, list[str]] = {}
    for name, (offset, size) in plan.offsets.items():
        instruction = name.split("{")[0]
        sizes[instruction] = sizes.get(instruction, 0) + size
        offsets.setdefault(instruction, []).append(str(offset))
    attributes = {
        name: {"olla_xla.step": str(step), "olla_xla.bytes": str(sizes.get(name, 0))}
        for order in plan.order.values()
        for step, name in enumerate(order)
    }
    for names in plan.order.values():
        for name in (*names[:1], *names[-1:]) if mark else ():
            attributes[name]["olla_xla.plan"] = mark
    for name, found in offsets.items():
        if name in attributes:
            attributes[name]["olla_xla.offset"] = ",".join(found)
    try:
        edit = _edited(module, plan).hold(plan.holds).alias(plan.aliases)
        planned = edit.schedule(plan.order, attributes).to_bytes()
        # XLA's GPU backend may compute things again after its scheduler.
        return with_guards(planned, plan.target) if plan.target == "cuda" else planned
    except HloError as error:
        raise PlanMismatchError(str(error)) from error


def _edited(module: bytes, plan: Plan) -> Edit:
    """A module with a plan's loops and clones in it. Raises HloError."""
    edit = Edit(module)
    edit.sink(plan.sunk, plan.target)
    if plan.loops:
        view = module_from_bytes(edit.to_bytes() if plan.sunk else module)
        edit.change_loops(edits(view, plan.loops, plan.target))
    edit.clone([Clone(*record) for record in plan.clones])
    return edit
