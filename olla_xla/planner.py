"""Plans a whole module: candidates from every method compete on the predicted assigned total."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hlo.assignment import value_name
from hlo.module import Computation, HloError, Module, module_from_bytes
from hlo.rewrite import with_schedule
from hlo.sharing import sharing
from hlo.values import analyse
from olla_xla import schedule
from olla_xla.assigned import Assignment, AssignmentModel
from olla_xla.bounds import forced_live_bound
from olla_xla.check import check_placement, check_schedule
from olla_xla.errors import InputError, ModuleFormatError, PlanMismatchError
from olla_xla.lifetimes import GraphArrays, peak_bytes
from olla_xla.lower import LoweredComputation, lower
from olla_xla.mincut import least_live
from olla_xla.options import PlanOptions
from olla_xla.problem import Plan, TensorGraph

__all__ = ["PlannedModule", "apply_plan", "graphs", "module_order", "plan_module"]

Progress = Callable[[str], None]

_NESTED_SHARE = 0.2
"""Part of the time limit that bodies of loops and branches may use together."""


class PlannedModule:
    """A module lowered to graphs, with the simulation of its buffer assignment.

    Args:
      module: a serialized, scheduled HloModuleProto. target: "cpu" or "cuda".

    Raises:
      ModuleFormatError: not a module, or one without a schedule.
    """

    def __init__(self, module: bytes, target: str) -> None:
        if target not in ("cpu", "cuda"):
            raise InputError(f"target={target!r} is not known; use 'cpu' or 'cuda'")
        try:
            self.module: Module = module_from_bytes(module)
        except HloError as error:
            raise ModuleFormatError(str(error)) from error
        if not self.module.is_scheduled:
            raise ModuleFormatError(
                f"HLO module {self.module.name} has no schedule; dump it after scheduling "
                "(xla_dump_hlo_as_proto, *after_optimizations*)"
            )
        self.target = target
        self.dataflow = analyse(self.module, target)
        self.pairs = sharing(self.dataflow, target)
        self.model = AssignmentModel(self.dataflow, target, self.pairs)
        self.peaks: dict[Computation, int] = {}
        self.orders = {c: tuple(c.schedule or ()) for c in self.module.control_computations}

    def lowered(self, computation: Computation) -> LoweredComputation:
        """The graph of one computation; its callees must have been charged in `peaks`."""
        result = lower(self.dataflow, computation, self.pairs, self.peaks)
        result.graph.validate()
        return result

    def simulate(self) -> Assignment:
        """XLA's buffer assignment, as predicted for the current orders."""
        return self.model.simulate(self.orders)


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The order chosen for one computation; see `Plan` for the fields."""

    order: np.ndarray
    source: str
    peak: int
    least: int
    bound: int
    candidates: Mapping[str, tuple[int, int]]
    steps: int
    stopped_by: str


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
    view = module_from_bytes(module)
    return {
        c.name: tuple(i.name for i in c.schedule)
        for c in view.control_computations
        if c.schedule is not None
    }


def plan_module(
    module: bytes,
    options: PlanOptions,
    *,
    target: str,
    xla_bytes: int | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Finds an order for every computation of a scheduled module.

    Args:
      module: serialized HloModuleProto as XLA scheduled it.
      options: limits and seed.
      target: "cpu" or "cuda".
      xla_bytes: XLA's own assigned total when it is known, for the report.
      progress: called with one line at each improvement.

    Returns:
      A plan that the referee has accepted and whose predicted total is never above XLA's order's.

    Raises:
      ModuleFormatError: `module` cannot be read or has no schedule.
      CheckError: the referee rejected the result (a bug).
    """
    started = time.monotonic()
    planned = PlannedModule(module, target)
    xla = planned.simulate()
    bounds: dict[Computation, int] = {}
    computations = planned.module.control_computations
    choice: _Choice | None = None
    graph: TensorGraph | None = None
    for computation in computations:
        last = computation is planned.module.entry
        lowered = planned.lowered(computation)
        bounded = _with_bounds(planned, computation, bounds)
        budget = options.time_limit - (time.monotonic() - started)
        if not last:
            budget = min(budget, options.time_limit * _NESTED_SHARE / len(computations))
        choice = _choose(planned, lowered, bounded, options, max(budget, 0.01), progress)
        check_schedule(lowered.graph, choice.order.tolist(), choice.peak)
        planned.orders[computation] = tuple(lowered.instructions[k] for k in choice.order)
        planned.peaks[computation] = choice.peak
        bounds[computation] = choice.bound
        graph = lowered.graph
    assert choice is not None and graph is not None
    final = planned.simulate()
    offsets = _offsets(planned, final)
    check_placement(graph, choice.order.tolist(), offsets)
    changed = any(planned.orders[c] != tuple(c.schedule or ()) for c in computations)
    return Plan(
        module=planned.module.name,
        fingerprint=planned.module.fingerprint,
        target=target,
        order={c.name: tuple(i.name for i in planned.orders[c]) for c in computations},
        offsets=offsets,
        xla_bytes=xla.total_bytes if xla_bytes is None else xla_bytes,
        xla_predicted_bytes=xla.total_bytes,
        predicted_bytes=final.total_bytes,
        peak_bytes=choice.peak,
        least_peak_bytes=choice.least,
        lower_bound_bytes=choice.bound,
        status=_status(final.total_bytes, choice.bound, options.tolerance, changed),
        stopped_by=choice.stopped_by,
        source=choice.source,
        candidates=choice.candidates,
        seconds=time.monotonic() - started,
        steps=choice.steps,
        seed=options.seed,
        time_limit=options.time_limit,
        step_limit=options.step_limit,
        tolerance=options.tolerance,
    )


def _status(total: int, bound: int, tolerance: float, changed: bool) -> str:
    if total <= bound * (1 + tolerance):
        return "optimal"
    return "feasible" if changed else "xla"


def _with_bounds(
    planned: PlannedModule, computation: Computation, bounds: Mapping[Computation, int]
) -> TensorGraph:
    """The graph with callees charged their lower bounds, for a bound that holds for all orders."""
    return lower(planned.dataflow, computation, planned.pairs, bounds).graph


def _choose(
    planned: PlannedModule,
    lowered: LoweredComputation,
    bounded: TensorGraph,
    options: PlanOptions,
    time_limit: float,
    progress: Progress | None,
) -> _Choice:
    """Lets the candidates and the search compete; ties keep XLA's order."""
    graph = lowered.graph
    orders = dict(planned.orders)

    def assigned(order: Sequence[int] | np.ndarray) -> int:
        orders[lowered.computation] = tuple(lowered.instructions[k] for k in order)
        return planned.model.simulate(orders).total_bytes

    starts = {"xla": np.arange(len(graph.operators)), **schedule.candidates(graph)}
    found = schedule.search(
        graph,
        starts,
        objective=planned.model.estimator(lowered.computation, planned.orders),
        time_limit=time_limit,
        step_limit=options.step_limit,
        seed=options.seed,
        bound_bytes=forced_live_bound(graph)[0],
        tolerance=options.tolerance,
        progress=progress,
    )
    starts |= {"lifetimes": found.lifetime_order, "search": found.order}
    scores = {name: (assigned(o), peak_bytes(graph, o)) for name, o in starts.items()}
    best = min(starts, key=lambda name: (*scores[name], name != "xla"))
    stopped_by = found.stopped_by
    if scores[best][0] >= scores["xla"][0]:
        best, stopped_by = "xla", stopped_by if found.steps else "no_gain"
    bound = _bound(graph, bounded, found)
    least = min(found.least_peak_bytes, *(peak for _, peak in scores.values()))
    return _Choice(
        starts[best], best, scores[best][1], least, bound, scores, found.steps, stopped_by
    )


def _bound(graph: TensorGraph, bounded: TensorGraph, found: schedule.SearchResult) -> int:
    """The certified bound, with callees at their own bounds where the search had their peaks."""
    if bounded == graph:
        return found.bound_bytes
    bound = forced_live_bound(bounded)[0]
    if found.bound_at >= 0:
        bound = max(bound, least_live(GraphArrays.of(bounded), found.bound_at).bytes)
    return min(bound, found.least_peak_bytes)


def _offsets(planned: PlannedModule, assignment: Assignment) -> dict[str, tuple[int, int]]:
    """Every value's predicted place in one arena: XLA's allocations laid end to end."""
    alignment = planned.model.alignment
    sizes = assignment.sizes
    bases = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(-(-sizes // alignment) * alignment, out=bases[1:])
    return {
        value_name(v.instruction.name, v.index): (
            int(bases[assignment.allocation[v.id]] + assignment.offset[v.id]),
            v.bytes,
        )
        for v in planned.dataflow.values
        if not v.shape.is_tuple and v.instruction.opcode != "constant"
    }


def apply_plan(module: bytes, plan: Plan) -> bytes:
    """Writes the plan's schedule into the module, and its step and bytes on each instruction.

    Raises:
      PlanMismatchError: the plan was made for another module.
    """
    view = module_from_bytes(module)
    if view.fingerprint != plan.fingerprint:
        raise PlanMismatchError(
            f"the plan for {plan.module} does not fit module {view.name}; plan it again"
        )
    sizes: dict[str, int] = {}
    for name, (_, size) in plan.offsets.items():
        instruction = name.split("{")[0]
        sizes[instruction] = sizes.get(instruction, 0) + size
    attributes = {
        name: {"olla_xla.step": str(step), "olla_xla.bytes": str(sizes.get(name, 0))}
        for order in plan.order.values()
        for step, name in enumerate(order)
    }
    try:
        return with_schedule(module, plan.order, attributes)
    except HloError as error:
        raise PlanMismatchError(str(error)) from error
