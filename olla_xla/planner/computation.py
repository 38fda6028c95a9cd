"""Plans one computation: least lifetime peak first, then in-place chains, then the total.

The least peak is the search's, or, begun there, the integer program's.

Candidates from every method compete on the predicted assigned total of the whole module.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import olla_xla.planner.in_place as in_place
from hlo.module import Computation, Instruction
from hlo.rewrite.aliases import Alias
from olla_xla import schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.lower import LoweredComputation
from olla_xla.memory.mincut import least_live
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.proof import Proof
from olla_xla.problem.stop_reason import StopReason
from olla_xla.schedule.search import phases
from olla_xla.schedule.search.result import SearchResult

__all__ = ["Limits", "Look", "MoreOrders", "Solved", "solve", "unchanged"]

Progress = Callable[[str], None]
MoreOrders = Callable[[], Mapping[str, Sequence[str]]]

_ILP_START, _ILP = 0.25, 0.7
"""Parts of the time for the order with which the integer program begins, and of the rest for it."""

_MORE = 0.01  # a total this much above the bound is worth asking another scheduler


@dataclasses.dataclass(frozen=True)
class Solved:
    """The order chosen for one computation; see `Plan` for the fields not named here.

    Attributes:
      module: the module with the order, its peak and its bound in it; rewritten if there are
        aliases. graph: of the computation in that module. order: of the graph's operators.
      aliases: fusion name -> results bound to operands.
      proof: what a solver proved, where one was asked.
    """

    module: PlannedModule
    graph: TensorGraph
    order: np.ndarray
    aliases: Mapping[str, tuple[Alias, ...]]
    source: str
    peak: int
    least: int
    bound: int
    candidates: Mapping[str, tuple[int, int]]
    steps: int
    stopped_by: StopReason
    proof: Proof | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of the search for one computation.

    Attributes:
      options: of the whole plan. seconds: how long it may take.
      enough_bytes: the search ends when the total is no more than this above the bound.
      deadline: gives the time of the monotonic clock up to which searching is worth it where the
        best total so far is so many bytes; None for no such limit.
      more_seconds: what asking another scheduler takes.
    """

    options: PlanOptions
    seconds: float
    enough_bytes: int = 0
    deadline: Callable[[int], float] | None = None
    more_seconds: float = 0.0

    def tolerance(self, bound: int) -> float:
        """The part of the bound that the total may lie above it."""
        return max(self.options.tolerance, self.enough_bytes / max(bound, 1))


@dataclasses.dataclass(frozen=True)
class Look:
    """A computation in XLA's order, before any search.

    Attributes:
      work: its graph, with XLA's order. peak: lifetime peak of that, in bytes.
      bound: no order has a smaller one, in bytes.
      charged: what the module's computations were charged with when it was made.
    """

    work: _Work
    peak: int
    bound: int
    charged: Mapping[Computation, int]

    @staticmethod
    def at(planned: PlannedModule, computation: Computation) -> Look:
        """Looks at a computation; its callees must have been looked at or solved."""
        work = _Work(planned, planned.lowered(computation))
        charged = dict(planned.peaks)
        peak = peak_bytes(work.arrays, np.arange(work.arrays.n))
        bound = min(_forced_live(work), peak)
        planned.peaks[computation] = planned.leasts[computation] = peak
        planned.bounds[computation] = bound
        return Look(work, peak, bound, charged)

    def holds(self, planned: PlannedModule) -> bool:
        """Whether nothing has changed since that it depends on."""
        return planned is self.work.planned and self.is_charged(planned)

    def is_charged(self, planned: PlannedModule) -> bool:
        """Whether its callees' peaks are still what it was charged with."""
        called = {c for i in self.work.lowered.instructions for c in i.called_control}
        return all(planned.peaks[planned.computations[c.name]] == self.charged[c] for c in called)


def unchanged(look: Look, total: int) -> Solved:
    """XLA's own order as the answer; `total` is the module's predicted one."""
    work = look.work
    work.starts["xla"] = np.arange(work.arrays.n)
    work.scores["xla"] = (total, look.peak)
    return work.solved(
        "xla",
        {},
        least=look.peak,
        bound=look.bound,
        steps=0,
        stopped_by=StopReason.NO_GAIN,
        candidates=dict(work.scores),
    )


def solve(
    look: Look, limits: Limits, progress: Progress | None, more: MoreOrders | None = None
) -> Solved:
    """Finds an order for one computation, given those of its callees.

    Args:
      look: the computation; callees' peaks and bounds are in its module.
      limits: of the search.
      progress: called with one line at each improvement.
      more: gives orders of another scheduler, for the entry computation; asked for if need be.

    Returns:
      A solution whose predicted total is never above that of XLA's order.
    """
    work, options = look.work, limits.options
    deadline = time.monotonic() + limits.seconds
    work.add({"xla": np.arange(work.arrays.n), "program": _program(work)})
    work.add(schedule.candidates(work.arrays))
    by_ilp = options.method == "ilp"
    least = phases.search(
        work.arrays,
        work.starts,
        time_limit=max(deadline - time.monotonic(), 0.01) * (_ILP_START if by_ilp else 0.5),
        step_limit=options.step_limit,
        seed=options.seed,
        bound_bytes=forced_live_bound(work.arrays)[0],
        tolerance=limits.tolerance(look.bound),
        deadline=limits.deadline,
        progress=progress,
    )
    proof = None
    if by_ilp:
        from olla_xla.planner.ilp import order_by_ilp  # its models take as long to load as all else

        seconds = (deadline - time.monotonic()) * _ILP
        least, proof = order_by_ilp(work.graph, least, options, seconds, progress)
    own = "ilp" if by_ilp else "lifetimes"
    work.add({own: least.lifetime_order})
    work.add({f"lifetimes{k}": order for k, order in enumerate(least.near_orders, start=2)})
    bound = _bound(work, least)
    # Bindings take some ten simulations of the module, which a limit that has passed forbids: one
    # that was asked for, or what the whole is worth.
    limited = options.time_limit is not None or limits.deadline is not None
    late = limited and time.monotonic() > deadline
    binds = options.in_place and not late
    ours, aliases = work.with_chains(options.tolerance, own) if binds else (work, {})
    steps = None if options.step_limit is None else max(options.step_limit - least.steps, 1)
    found = _towards_the_total(ours, bound, deadline, steps, limits, progress, more)
    name = min(ours.scores, key=lambda n: (*ours.scores[n], n != "xla"))
    stopped_by = found.stopped_by
    gain = work.scores["xla"][0] - ours.scores[name][0]
    # A callee's lower peak may serve its caller even if it alone lowers no total.
    if gain < 0 or (gain == 0 and work.is_entry):
        ours, name, aliases = work, "xla", {}
        stopped_by = stopped_by if found.steps else StopReason.NO_GAIN
    return ours.solved(
        name,
        aliases,
        least=_least(work, least, found),
        bound=bound,
        steps=least.steps + found.steps,
        stopped_by=stopped_by,
        candidates={**ours.scores, **work.scores}
        if ours is work
        else {**work.scores, **ours.scores},
        proof=proof,
    )


def _towards_the_total(
    ours: _Work,
    bound: int,
    deadline: float,
    steps: int | None,
    limits: Limits,
    progress: Progress | None,
    more: MoreOrders | None,
) -> SearchResult:
    """Searches for the least total of the module, from all orders met so far."""
    options, computation = limits.options, ours.lowered.computation
    excess = 0 if ours.is_entry else min(total - peak for total, peak in ours.scores.values())
    objective = ours.planned.model.estimator(computation, ours.planned.orders)

    def search(starts: Mapping[str, np.ndarray], steps: int | None) -> SearchResult:
        return phases.search(
            ours.arrays,
            starts,
            objective=objective,
            exact=ours.total,
            excess=excess,
            time_limit=max(deadline - time.monotonic(), 0.01),
            step_limit=steps,
            seed=options.seed,
            bound_bytes=bound,
            tolerance=limits.tolerance(bound),
            deadline=limits.deadline,
            progress=progress,
        )

    found = search(ours.starts, steps)
    ours.add({"search": found.order})
    wide = found.objective_bytes > bound * (1 + _MORE)
    ends = deadline if limits.deadline is None else limits.deadline(found.objective_bytes)
    in_time = time.monotonic() + limits.more_seconds < min(ends, deadline)
    if ours.is_entry and more is not None and wide and in_time:
        other = ours.named(more().get(computation.name, ()))
        ours.add(other)
        if other and min(ours.scores[name] for name in other) < ours.scores["search"]:
            left = None if steps is None else max(steps - found.steps, 1)
            found = _both(found, search(other, left))
            ours.add({"search": found.order})
    return found


class _Work:
    """One computation of one module: its graph, and the orders met so far with their scores."""

    def __init__(self, planned: PlannedModule, lowered: LoweredComputation) -> None:
        self.planned = planned
        self.lowered = lowered
        self.graph = lowered.graph
        self.arrays = GraphArrays.of(lowered.graph)
        self.starts: dict[str, np.ndarray] = {}
        self.scores: dict[str, tuple[int, int]] = {}
        """By name: (predicted total of the module, lifetime peak)."""
        self._totals: dict[bytes, int] = {}
        """By digest of an order, the former; callees' orders do not change meanwhile."""

    @property
    def is_entry(self) -> bool:
        """Whether it is the module's entry computation."""
        return self.lowered.computation is self.planned.module.entry

    def add(self, orders: Mapping[str, np.ndarray]) -> None:
        """Scores orders of the graph; one that breaks its precedence is repaired first."""
        for name, order in orders.items():
            order = self._legal(order)
            total = self.total(order)
            self.starts[name] = order
            self.scores[name] = (total, peak_bytes(self.arrays, order))

    def _legal(self, order: np.ndarray) -> np.ndarray:
        """The order itself, or the legal one that follows it most closely."""
        g = self.arrays
        steps = g.positions(order)
        before = np.repeat(np.arange(g.n), np.diff(g.succ_ptr))
        if (steps[before] < steps[g.succ_idx]).all():
            return order
        return schedule.by_priority(g, steps)

    def total(self, order: np.ndarray) -> int:
        """The predicted total of the module with an order; asked again, it is remembered."""
        key = hashlib.blake2b(order.tobytes(), digest_size=16).digest()
        if key not in self._totals:
            self._totals[key] = self.planned.model.simulate(self.whole(order)).total_bytes
        return self._totals[key]

    def whole(
        self, order: Sequence[int] | np.ndarray
    ) -> dict[Computation, tuple[Instruction, ...]]:
        """The orders of all computations, with this one's as given."""
        chosen = tuple(self.lowered.instructions[k] for k in order)
        return {**self.planned.orders, self.lowered.computation: chosen}

    def named(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Another scheduler's order, as a start; nothing if it is not one of these instructions.

        It knows nothing of the edges that are added here (collectives, callbacks, bindings).
        """
        step = {i: k for k, i in enumerate(self.lowered.instructions)}
        own = {i.name: i for i in step}
        if not own.keys() >= set(names) or not names:
            return {}
        whole = self.planned.translated([own[n] for n in names], self.lowered.computation)
        if len(whole) != len(own):
            return {}
        return {"xla_memory": self._legal(np.array([step[i] for i in whole]))}

    def with_chains(
        self, tolerance: float, own: str
    ) -> tuple[_Work, Mapping[str, tuple[Alias, ...]]]:
        """The same with results bound to operands where that lowers the total; else itself.

        Bindings are looked for under the order of least total, under that of a rule that has the
        least, and under the one named `own`.
        """
        model = self.planned.model
        best, *_ = ranked = sorted(self.scores, key=lambda name: self.scores[name])
        by_rule = next(name for name in ranked if not name.startswith(own))
        limit = self.scores[best][0] * (1 - tolerance)
        chosen: list[tuple[int, str, list[in_place.Binding]]] = []
        for name in dict.fromkeys((best, by_rule, own)):
            orders = self.whole(self.starts[name])
            found = in_place.bindings(
                self.planned.dataflow,
                self.lowered,
                self.arrays,
                self.starts[name],
                self.planned.kept,
            )
            kept, total = in_place.choose(
                found,
                lambda pairs, o=orders: model.merged(pairs).simulate(o).total_bytes,
                self.arrays.n,
            )
            if kept and total < limit:
                chosen.append((total, name, kept))
        if not chosen:
            return self, {}
        # What is about as good so far may be told apart by the orders that follow from it.
        least = min(total for total, *_ in chosen)
        ways = [
            self._with_bindings(name, kept, own)
            for total, name, kept in chosen
            if total <= least * (1 + tolerance)
        ]
        return min(ways, key=lambda way: min(way[0].scores.values()))

    def _with_bindings(
        self, name: str, kept: list[in_place.Binding], own: str
    ) -> tuple[_Work, Mapping[str, tuple[Alias, ...]]]:
        """The computation with bindings that were chosen under the order of that name."""
        aliases = in_place.aliases(kept)
        planned = self.planned.rewritten(aliases, self.whole(self.starts[name]))
        computation = planned.computations[self.lowered.computation.name]
        other = _Work(planned, planned.lowered(computation))
        other.add({name: np.arange(other.arrays.n)})
        other.add({f"{n}+": o for n, o in schedule.candidates(other.arrays).items()})
        other.add({f"{n}+": o for n, o in self._orders_for(other, own).items()})
        return other, aliases

    def _orders_for(self, other: _Work, own: str) -> dict[str, np.ndarray]:
        """The orders whose names begin with `own`, of the operators of a rewritten module."""
        step = {i.name: k for k, i in enumerate(other.lowered.instructions)}
        names = [i.name for i in self.lowered.instructions]
        if step.keys() != set(names):
            return {}
        moved = np.array([step[name] for name in names])
        return {name: moved[o] for name, o in self.starts.items() if name.startswith(own)}

    def solved(self, name: str, aliases: Mapping[str, tuple[Alias, ...]], **facts) -> Solved:
        """The solution with the order of that name."""
        order, peak = self.starts[name], self.scores[name][1]
        computation = self.lowered.computation
        bound = min(facts.pop("bound"), peak)
        self.planned.orders[computation] = self.whole(order)[computation]
        self.planned.peaks[computation] = peak
        least = min(facts.pop("least"), peak)
        self.planned.leasts[computation] = least
        self.planned.bounds[computation] = bound
        return Solved(
            module=self.planned,
            graph=self.graph,
            order=order,
            aliases=aliases,
            source=name,
            peak=peak,
            least=least,
            bound=bound,
            **facts,
        )


def _both(first: SearchResult, second: SearchResult) -> SearchResult:
    """The second search's order, with what is known from both."""
    least = min(first, second, key=lambda f: f.least_peak_bytes)
    return dataclasses.replace(
        second,
        lifetime_order=least.lifetime_order,
        least_peak_bytes=least.least_peak_bytes,
        steps=first.steps + second.steps,
    )


def _program(work: _Work) -> np.ndarray:
    """The order in which the module lists its instructions, as far as it is legal."""
    position = {i: k for k, i in enumerate(work.lowered.computation.instructions)}
    priority = [position[i] for i in work.lowered.instructions]
    return schedule.by_priority(work.arrays, np.array(priority, np.int64))


def _least(work: _Work, *found: SearchResult) -> int:
    """The least lifetime peak found, with callees in their orders of least peak."""
    least = min(result.least_peak_bytes for result in found)
    planned = work.planned
    called = {c for i in work.lowered.instructions for c in i.called_control}
    if all(planned.leasts[c] == planned.peaks[c] for c in called):
        return least
    relaxed = GraphArrays.of(planned.relaxed(work.lowered.computation).graph)
    return min(least, peak_bytes(relaxed, found[0].lifetime_order))


def _forced_live(work: _Work) -> int:
    """The forced-live bound, with callees at their own bounds."""
    planned = work.planned
    called = {c for i in work.lowered.instructions for c in i.called_control}
    if all(planned.bounds[c] == planned.peaks[c] for c in called):
        return forced_live_bound(work.arrays)[0]
    return forced_live_bound(planned.bounded(work.lowered.computation).graph)[0]


def _bound(work: _Work, found: SearchResult) -> int:
    """The certified bound, with callees at their own bounds where the search had their peaks."""
    planned, computation = work.planned, work.lowered.computation
    called = {c for i in work.lowered.instructions for c in i.called_control}
    if all(planned.bounds[c] == planned.peaks[c] for c in called):
        return found.bound_bytes
    bounded = GraphArrays.of(planned.bounded(computation).graph)
    bound = forced_live_bound(bounded)[0]
    if found.bound_at >= 0:
        bound = max(bound, least_live(bounded, found.bound_at).bytes)
    return min(bound, found.least_peak_bytes)
