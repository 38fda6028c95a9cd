"""Finds an order for each computation of a module in which much can be saved, callees first."""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hlo.gc_pause import without_collection
from hlo.module import Computation, Module
from hlo.rewrite.aliases import Alias
from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.errors import GraphError, KernelError
from olla_xla.memory import clock
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.assignment.model import Assignment
from olla_xla.memory.kernels import Pattern, overwritten
from olla_xla.memory.module_state import PlannedModule
from olla_xla.planner.computation import AlternativeOrders, Progress, SearchLimits, solve
from olla_xla.planner.effort import Timing, effort
from olla_xla.planner.kernels import in_order, keep_kernels
from olla_xla.planner.work import Candidates, Solved
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import PlanStatus, Proof, StopReason
from olla_xla.schedule import by_priority

_AFTER, _MOST_AFTER = 2.0, 1.0
"""Time to write a plan and check its executable, as a multiple of the time to read the module; and
the most seconds of it that are taken off a time limit of the options."""


_IN_A_CIRCLE = "a kernel would have to run before an operator whose result it reads: {}"


@dataclasses.dataclass
class _Orders:
    """What the search has found so far for a module's computations; `add` changes it.

    Attributes:
      planned: the module with the orders found. xla_bytes: predicted total of XLA's order.
      entry: the result for the last computation planned; in the end, the entry computation.
      out_of_time: whether more time might have found a better order of some computation.
    """

    planned: PlannedModule
    xla_bytes: int
    entry: Solved | None = None
    aliases: dict[str, tuple[Alias, ...]] = dataclasses.field(default_factory=dict)
    proofs: tuple[Proof, ...] = ()
    out_of_time: bool = False

    def add(self, solved: Solved) -> None:
        """Takes over the result for one computation, once its order passes the check; else raises
        CheckError.
        """
        check_schedule(solved.graph, solved.order.tolist(), solved.peak)
        self.planned, self.entry = solved.module, solved
        self.aliases |= solved.aliases
        self.proofs += () if solved.proof is None else (solved.proof,)
        self.out_of_time |= solved.stopped_by is StopReason.TIME_LIMIT


def _solve_all(orders: _Orders, estimates: dict[str, Candidates], limits: SearchLimits) -> Solved:
    """Plans the computations that may gain enough, callees first, into `orders`; returns the
    entry's result. Plans none if the total is near its bound already, or the time is over.
    """
    entry, total = orders.planned.module.entry.name, orders.xla_bytes
    # The entry's bound includes those of all that it calls.
    met = total <= estimates[entry].bound + limits.effort.enough_bytes
    if limits.is_over or (met and limits.options.method == "search"):
        orders.out_of_time = limits.is_over and not met
        orders.entry = estimates[entry].unchanged(total)
        return orders.entry
    negligible = limits.effort.negligible(total)
    for key in orders.planned.computations:
        planned = orders.planned
        computation, estimate = planned.computations[key], estimates[key]
        seconds = limits.seconds
        if key != entry:
            seconds = limits.nested()
            gain = estimate.peak - estimate.bound
            orders.out_of_time |= seconds <= 0 < gain
            if gain <= negligible or seconds <= 0:
                # Lower peaks of its callees may lower its own, and so its callers'.
                if not estimate.is_charged(planned):
                    Candidates.at(planned, computation)
                continue
        if planned is not estimate.planned or not estimate.is_charged(planned):
            estimate = Candidates.at(planned, computation)
        orders.add(solve(estimate, limits, seconds))
    assert orders.entry is not None
    return orders.entry


@without_collection()
def plan_order(
    module: Module,
    options: PlanOptions,
    target: str,
    *,
    progress: Progress | None = None,
    alternative_orders: AlternativeOrders | None = None,
    timing: Timing | None = None,
    released: frozenset[str] = frozenset(),
    kept: Mapping[str, Pattern] | None = None,
    seen: list[tuple[TensorGraph, NDArray[np.int64]]] | None = None,
    least_gain: int = 0,
) -> Plan:
    """Finds an order for each computation of a module, and results to write over operands.

    Args:
      module: a scheduled one. options: limits and seed. target: "cpu", "cuda" or "tpu".
      progress, alternative_orders: see `planner.plan_module`. timing: limits of time.
      released: names of asynchronous starts that may overlap with less work than in XLA's order.
      kept: kernel name -> which of its arrays must share memory; None: as in XLA's order.
      seen: a list to which (the entry's graph, its order) is appended.
      least_gain: bytes; where orders gain less, XLA's own are kept.

    Returns:
      A plan, checked independently. If the module is XLA's own, its predicted total is never above
      that of XLA's order. Raises KernelError if in no order that was found kernels' arrays can
      share memory as they must.
    """
    timing = timing or Timing()
    started = clock.now() if timing.began is None else timing.began
    planned = PlannedModule(module, target, released, kept)
    xla_orders = _order_names(planned)
    planned = planned if kept is None else _overwriting_last(planned)
    xla_total = planned.facts.total
    if kept is None:
        planned.kept = planned.facts.kernels
    estimates = _estimates(planned, is_own=kept is None)
    bound = estimates[planned.module.entry.name].bound
    limits = _limits(options, timing, started, xla_total, bound)
    limits = dataclasses.replace(limits, progress=progress, alternative_orders=alternative_orders)
    solved = _solve_all(orders := _Orders(planned, xla_total), estimates, limits)
    own_places = options.placement == "own"  # then what XLA's rule takes does not count
    most = math.inf if own_places else xla_total - least_gain
    end = _with_kernels(orders, solved, planned, most, is_own=kept is None)
    final = end.given.simulate()
    offsets = _offsets(end.given, final)
    check_placement(end.graph, end.order.tolist(), offsets)
    if seen is not None:
        seen.append((end.graph, end.order))
    order = _order_names(end.module)
    total = end.peak if own_places else final.total_bytes
    return Plan(
        module=planned.module.name,
        fingerprint=planned.module.fingerprint,
        target=target,
        order=order,
        aliases=end.aliases,
        holds=end.holds,
        kernels=planned.kept,
        offsets=offsets,
        placement=options.placement,
        xla_bytes=xla_total,
        xla_predicted_bytes=xla_total,
        predicted_bytes=total,
        peak_bytes=end.peak,
        least_peak_bytes=solved.least,
        lower_bound_bytes=solved.bound,
        status=_status(total, solved.bound, options.tolerance, order != xla_orders),
        stopped_by=StopReason.TIME_LIMIT if orders.out_of_time else solved.stopped_by,
        source=solved.source,
        candidates=solved.candidates,
        proofs=orders.proofs,
        seconds=clock.now() - started,
        steps=solved.steps,
        seed=options.seed,
        time_limit=limits.effort.seconds if options.time_limit is None else options.time_limit,
        step_limit=options.step_limit,
        tolerance=options.tolerance,
    )


def _overwriting_last(planned: PlannedModule) -> PlannedModule:
    """Returns the module, reordered so that no value is read after a kernel that must overwrite it.
    New instructions stand before their first readers, so their order may differ from that of the
    instructions that they replace. Raises KernelError if there is no such order.
    """
    late = {c for c in planned.computations.values() if _reads_late(planned, c)}
    if not late:
        return planned
    orders = dict(planned.orders)
    try:
        for c in planned.computations.values():
            lowered = planned.charge(c)
            if c in late:
                arrays = GraphArrays.of(lowered.graph)
                order = by_priority(arrays, np.arange(arrays.n))
                orders[c] = tuple(lowered.instructions[k] for k in order)
    except GraphError as error:
        raise KernelError(_IN_A_CIRCLE.format(error)) from error
    return planned.rewritten({}, orders)


def _reads_late(planned: PlannedModule, computation: Computation) -> bool:
    """Whether in its order an instruction reads a value after a kernel that must overwrite it."""
    step = {i: k for k, i in enumerate(planned.orders[computation])}
    return any(
        step.get(use.instruction, -1) > k
        for i, k in step.items()
        for where in overwritten(i, planned.kept)
        for use in planned.dataflow.at[where].uses
    )


def _estimates(planned: PlannedModule, *, is_own: bool) -> dict[str, Candidates]:
    """Computes each computation's lifetime peak in its own order and a lower bound for all orders,
    callees first, and writes them to `planned` too: computation name -> Candidates with these.
    Raises KernelError if edges that let kernels' arrays share memory as they must form a cycle
    (GraphError if `is_own`, the module is XLA's own).
    """
    try:
        return {key: Candidates.at(planned, c) for key, c in planned.computations.items()}
    except GraphError as error:
        if is_own:
            raise
        raise KernelError(_IN_A_CIRCLE.format(error)) from error


def _limits(
    options: PlanOptions, timing: Timing, started: float, total: int, bound: int
) -> SearchLimits:
    """Makes the limits of the search for orders, without callbacks.

    Args:
      options, timing: the caller's limits. started: when planning began, on `memory.clock`.
      total: predicted bytes of XLA's order. bound: no order takes fewer.
    """
    worth = effort(options, timing, total, bound)
    since, is_over = clock.now(), False
    if options.time_limit is not None:
        # A default limits the search alone; a time limit of the options, all of planning.
        after = min(_AFTER * (since - started), _MOST_AFTER)
        worth = dataclasses.replace(worth, seconds=max(worth.seconds - after, 0.01))
        is_over = timing.began is not None and since - started > options.time_limit
        since = started
    more = timing.schedule_seconds or 0.0
    return SearchLimits(options, worth, since, is_over, more_seconds=more)


class _End(NamedTuple):
    """A module's final orders and in-place results; kernels' arrays share memory as they must.

    Attributes:
      module: with the orders. given: the same with the control edges that XLA gets to keep them.
      graph, order: of the entry computation. peak: its lifetime peak in bytes.
      aliases, holds: fusion -> results written over operands; instruction -> operands kept longer.
    """

    module: PlannedModule
    given: PlannedModule
    graph: TensorGraph
    order: NDArray[np.int64]
    peak: int
    aliases: Mapping[str, tuple[Alias, ...]]
    holds: Mapping[str, tuple[int, ...]]


def _with_kernels(
    orders: _Orders, solved: Solved, given: PlannedModule, most: float, *, is_own: bool
) -> _End:
    """Returns the module in its new orders, changed so that each kernel's arrays share memory as
    they must (its pattern). Where that is not possible, or the total is then above `most` bytes,
    the order that the module (`given`) came with is taken instead. Raises KernelError if it is not
    possible there either. `is_own`: whether `given` is XLA's own module.
    """
    planned, aliases, patterned, lowered = orders.planned, dict(orders.aliases), None, None
    same = not aliases and in_order(planned)
    if same or planned.simulate().total_bytes <= most:  # kernels take no less
        patterned = keep_kernels(planned, is_own=is_own and not aliases)
    if patterned is None or (not same and patterned.given.simulate().total_bytes > most):
        fresh = PlannedModule(given.module, given.target, given.released, given.kept)
        lowered = fresh.charge_all()
        patterned, aliases = keep_kernels(fresh, is_own=is_own), {}
    elif patterned.module is planned:
        end = patterned.module, patterned.given, solved.graph, solved.order, solved.peak
        return _End(*end, aliases, {})
    if patterned is None:
        raise KernelError("every plan changes which operands and results of kernels share a buffer")
    for name, new in patterned.aliases.items():
        aliases[name] = (*aliases.get(name, ()), *new)
    if lowered is None or patterned.aliases or patterned.holds:  # not the module that was charged
        lowered = patterned.module.charge_all()
    graph = lowered.graph
    peak = patterned.module.peaks[patterned.module.module.entry]
    end = patterned.module, patterned.given, graph, np.arange(len(graph.operators)), peak
    return _End(*end, aliases, patterned.holds)


def _order_names(planned: PlannedModule) -> dict[str, tuple[str, ...]]:
    """Returns computation name -> instruction names in their order."""
    return {c.name: tuple(i.name for i in o) for c, o in planned.orders.items()}


def _status(total: int, bound: int, tolerance: float, changed: bool) -> PlanStatus:
    if total <= bound * (1 + tolerance):
        return PlanStatus.OPTIMAL
    return PlanStatus.FEASIBLE if changed else PlanStatus.XLA


def _offsets(planned: PlannedModule, assignment: Assignment) -> dict[str, tuple[int, int]]:
    """Name of each array but constants -> (offset, bytes) in one arena: allocations end to end."""
    alignment = planned.model.alignment
    sizes = assignment.sizes
    bases = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(-(-sizes // alignment) * alignment, out=bases[1:])
    return {
        v.name: (int(bases[assignment.allocation[v.id]] + assignment.offset[v.id]), v.bytes)
        for v in planned.dataflow.values
        if not v.shape.is_tuple and v.instruction.opcode != "constant"
    }
