"""Choices of what to compute again, each a set of evictions, from little to much.

The targets are peaks that fall by a fixed ratio from that of the module's order. For each of them
the greedy search finds evictions. The budget or allowance only selects among these, so that more
budget never costs more time.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hlo.backend import platform
from hlo.cpu_code import one_function
from hlo.module import Computation, Instruction, Module
from hlo.rewrite.clones import Clone, add_clones
from hlo.rewrite.edit import Edit
from hlo.rounding import may_depend_on_others
from hlo.trip_count import trip_count
from olla_xla.memory import clock
from olla_xla.memory.kernels import Pattern
from olla_xla.memory.lifetimes import timeline
from olla_xla.memory.lower import LoweredComputation
from olla_xla.memory.module_state import PlannedModule
from olla_xla.problem.plan import Plan
from olla_xla.remat import extensions
from olla_xla.remat.clones import clones
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.evictions import expand
from olla_xla.remat.graph import RematGraph, remat_graph
from olla_xla.remat.greedy import Point, Selector

_STEP = 0.98  # each target of the front is this part of the one before
_LAST = 400  # number of the last target, 0.03% of the first
_FIRST = 8  # the first target tried
_LEAST_PART = 1 / 16  # of a step: bisection between two targets ends here
_ABOVE_ALLOWANCE = (
    1.5  # times the allowance at which a choice is given up; taking back evictions saves some
)
_PATIENCE = 4  # targets in a row that are all more expensive than allowed before the walk ends
_GRACE = 3  # times the walk's seconds, by which a choice that is begun may overrun
_LEAST_SOLVING = 0.25  # seconds; a solver is loaded and begun in less, and finds nothing
_SOME_GAIN, _CLEAR_GAIN = 0.02, 0.1
"""Parts of XLA's total that an order must save to be tried, and to be tried instead of XLA's."""


class Front:
    """Sets of evictions (points) for one computation in one order, each for a lower target peak. An
    eviction drops a tensor, which is recomputed for its next reader (`remat.evictions`).

    Attributes:
      body: the loop body or branch whose tensors are evicted; None: the entry computation.
      arguments_stay: whether the graph is one with arguments held (`with_arguments_held`).

    Args:
      module: a scheduled one. target: "cpu", "cuda" or "tpu". cost: prices operators.
      seconds: for the search of all points; a point that is begun may take three times that more.
      kernels: kernel name -> which of its arrays must share memory (memory.kernels).
    """

    def __init__(
        self,
        module: Module,
        target: str,
        cost: CostModel,
        seconds: float,
        kernels: Mapping[str, Pattern],
    ) -> None:
        self.arguments_stay = False
        self.module = module
        self.target = target
        self.planned = PlannedModule(module, target, kept=kernels)
        self._cost = cost
        self._seconds = seconds
        self._choose_in(self.planned.charge_all(), None)

    def _choose_in(self, lowered: LoweredComputation, body: PeakBody | None) -> None:
        kept, runs = self.planned.kept, 1 if body is None else body.runs
        self.body = body
        self._begin(remat_graph(self.planned.dataflow, lowered, self._cost, kept, runs))

    def _begin(self, graph: RematGraph) -> None:
        self.graph = graph
        self._deadline = math.inf  # until the walk begins
        self.selector = Selector(self.graph, math.inf)
        self.start = self.selector.point(np.zeros((0, 2), np.int64))
        self._points: dict[int, Point] = {}  # by target

    def if_arguments_stay(self) -> Front | None:
        """Makes a search for evictions (Front) like this one, but with arguments that keep their
        memory to the end; None if that changes no step's live bytes.
        """
        front = copy.copy(self)
        front.arguments_stay = True
        front._begin(self.graph.with_arguments_held())
        none = np.zeros((0, 2), np.int64)
        same = np.array_equal(expand(front.graph, none).live, expand(self.graph, none).live)
        return None if same else front

    def bodies(self) -> list[Front]:
        """Makes Fronts (searches for evictions) for the loop bodies and branches that run at the
        module's peak. They and this one, which is changed, get equal shares of its search time.
        """
        inner = []
        for body in bodies_at_peak(self.planned):
            front = copy.copy(self)
            front._choose_in(self.planned.lowered(body.computation), body)
            inner.append(front)
        share = self._seconds / (len(inner) + 1)
        for front in (self, *inner):
            front._seconds = share
        return inner

    @property
    def name(self) -> str:
        """The name of the computation whose tensors are dropped and computed again."""
        return (self.planned.module.entry if self.body is None else self.body.computation).name

    @property
    def outside(self) -> int:
        """The module's peak less that of this front's computation, in bytes; 0 for the entry."""
        return 0 if self.body is None else self.body.outside

    @property
    def _floor(self) -> int:
        """The computation's peak, in bytes, below which the module's peak falls no further."""
        return 0 if self.body is None else max(self.body.elsewhere - self.body.outside, 0)

    @property
    def points(self) -> list[Point]:
        """The sets of evictions (Points) that were searched so far."""
        return list(self._points.values())

    def target_bytes(self, k: float) -> int:
        """Returns target number `k` for the lifetime peak, in bytes; it falls as `k` rises."""
        return max(int(self.start.peak * _STEP**k), self._floor)

    def point(self, k: float, seconds: float = math.inf) -> Point:
        """Searches the set of evictions for target number `k`: a peak of at most `target_bytes(k)`,
        which is 0.98**k of the peak without evictions, but no less than can help the module. The
        first call starts the search's clock; a target that was searched is not searched again.

        Args:
          k: at least 0, may be a fraction; a larger `k` is a lower target.
          seconds: of added time; the search may stop, unfinished, above 1.5 times that.

        Returns:
          The Point (evictions, peak, time); its peak is above the target if none lower was found.
        """
        if self._deadline == math.inf:
            self._deadline = clock.now() + self._seconds
            self.selector.deadline = self._deadline + _GRACE * self._seconds
        target = self.target_bytes(k)
        if target not in self._points:
            self._points[target] = self.selector.reduce(
                self.start.evictions, target, _ABOVE_ALLOWANCE * seconds
            )
        return self._points[target]

    def _late(self) -> bool:
        return clock.now() >= self._deadline

    def below(self, peak: int) -> list[Point]:
        """Searches sets of evictions (Points) whose peak is at most `peak` bytes; returns them
        cheapest first, without those that another one beats in both seconds and peak.

        The search ends where no lower peak is reached, after four points in a row that add over
        1.25 times the seconds of the cheapest, or when its time is up.
        """
        first = max(0, math.ceil(math.log(max(peak, 1) / self.start.peak) / math.log(_STEP)))
        reached: list[Point] = []
        rising = 0
        for k in range(first, max(first, _LAST)):
            point = self.point(k)
            if point.peak <= peak:
                reached.append(point)
            if point.peak > self.target_bytes(k):
                break  # nothing lower can be reached
            cheapest = min((p.seconds for p in reached), default=math.inf)
            rising = rising + 1 if point.seconds > 1.25 * cheapest else 0
            if rising >= _PATIENCE or self._late():
                break
        return _undominated(reached)

    def within(self, seconds: float) -> list[Point]:
        """Searches sets of evictions (Points) that add at most `seconds`; returns them by rising
        peak.

        Targets are peaks, lower for higher numbers. One is met if its Point reaches it within
        `seconds`. Numbers are about doubled until one is not met, then bisected between the last
        that is and the first that is not, down to 1/16. A few higher ones are tried too, as they
        may be cheaper. When time is up, what was found so far is returned, always with the Point
        without evictions.
        """
        low, high = self._halved(0.0, float(_LAST), 1.0, seconds)
        last = int(high)
        if low:
            low, high = self._halved(low, high, 0.5, seconds)
        for k in range(last + 1, last + _PATIENCE):  # a lower target may be cheaper
            if self._late():
                break
            self.point(k, seconds)
        self._halved(low, high, _LEAST_PART, seconds)
        searched = [self.start, *self._points.values()]
        affordable = (p for p in searched if p.seconds <= seconds)
        return sorted(affordable, key=lambda p: (max(p.peak, self._floor), p.seconds))

    def _halved(self, low: float, high: float, part: float, seconds: float) -> tuple[float, float]:
        """Bisects target numbers from `low`, of a target that is met, or 0, to `high`, of one that
        is not. A target is a peak, lower for higher numbers; it is met if evictions that add at
        most `seconds` reach it. Returns (the last number met, the first not met): at most `part`
        apart, unless time has passed and one was met.
        """
        while high - low > part and not (low and self._late()):
            doubles = high == _LAST and high - low > 1  # no target was missed yet
            k = min(2 * low + _FIRST, high - 1) if doubles else (low + high) / 2
            k = float(round(k)) if high - low > 1 else k
            point = self.point(k, seconds)
            lower = point.seconds <= seconds and point.peak <= self.target_bytes(k)
            low, high = (k, high) if lower else (low, k)
        return low, high

    def least(self) -> Point:
        """Searches the lowest target; returns the Point of least peak, whatever time that adds."""
        self.point(_LAST)
        return min(self._points.values(), key=lambda p: (p.peak, p.seconds))

    def next_target(self, peak: int) -> int:
        """Returns the lowest of this front's target peaks that is not below `peak`, in bytes."""
        k = math.floor(math.log(max(peak, 1) / self.start.peak) / math.log(_STEP) + 1e-9)
        return max(self.target_bytes(k), peak)

    def refined(self, point: Point, target: int, seconds: float) -> tuple[Point, float]:
        """Makes a set of evictions cheaper by an integer program: (Point, bound on its seconds).

        The program (`remat.extensions`), for a peak of at most `target` bytes, is solved within
        `seconds`. If it finds nothing cheaper, or `seconds` is too short, `point` is returned. No
        evictions add less time than the bound. It is 0 if none is known, as where transfers are
        repeated (`repeats`), which the program does not model.
        """
        if seconds < _LEAST_SOLVING:
            return point, 0.0
        evictions, bound = extensions.evictions(self.graph.without_repeats(), target, seconds)
        if evictions is not None:
            trial = self.selector.point(self.selector.thin(evictions, target))
            feasible = expand(self.graph, trial.evictions).feasible
            if feasible and trial.peak <= target and trial.seconds < point.seconds:
                point = trial
        if self.graph.repeats:
            return point, 0.0
        # Greedy search may use longer chains than the program, and fall below its optimum.
        return point, max(min(bound, point.seconds), 0.0)

    def write(self, point: Point) -> tuple[Module, tuple[Clone, ...]]:
        """Writes the clones that a Point's evictions need into a new module: (module, clones)."""
        expansion = expand(self.graph, point.evictions)
        made = clones(self.planned.dataflow, self.graph, expansion)
        return Edit(self.module).rewrite(add_clones, made).module(), made


def _undominated(points: Sequence[Point]) -> list[Point]:
    """Selects sets of evictions (drops of tensors) that no other one beats in both seconds and
    peak; the cheapest comes first.
    """
    kept: list[Point] = []
    for p in sorted(points, key=lambda p: (p.seconds, p.peak)):
        if not kept or p.peak < kept[-1].peak:
            kept.append(p)
    return kept


def fronts(module: Module, base: Plan, cost: CostModel, seconds: float) -> list[Front]:
    """Makes the searches for evictions, drops of tensors, in XLA's order, the plan's, or both.

    The plan's is taken if it saves 2 % of XLA's total, XLA's unless the plan's saves 10 %: an order
    that saves little may have moved readers away from what they read, and recomputation costs more.
    Of each order there are two fronts: one where other tensors may use the memory of arguments that
    are no longer read, and, if it differs, one where none may. XLA's total is between the two.
    `base`: the module's plan without recomputation. `seconds`: of search, for all fronts together.
    """
    saved = 1 - base.predicted_bytes / base.xla_predicted_bytes
    orders = []
    if saved < _CLEAR_GAIN:
        orders.append(module)
    if saved >= _SOME_GAIN:
        names = [i.name for c in module.computations for i in c.instructions]
        known = set(names)
        order = {name: [i for i in kept if i in known] for name, kept in base.order.items()}
        orders.append(Edit(module).schedule(order).module())
    each = seconds / (2 * len(orders))
    reusing = [Front(ordered, base.target, cost, each, base.kernels) for ordered in orders]
    others = (front.if_arguments_stay() for front in reusing)
    return [*reusing, *(front for front in others if front is not None)]


# Loop bodies and branches that hold a module's peak: how often they run, and what they could
# save.
#
# A computation that a loop runs is charged to its caller with its own lifetime peak. Where the
# entry computation's peak is that of a loop, only what lives in the loop's body, or across the
# loop, can lower it.


_RUNS = frozenset({"call", "conditional", "while"})


@dataclasses.dataclass(frozen=True, eq=False)
class PeakBody:
    """A loop body or branch that is running when the module reaches its lifetime peak.

    Attributes:
      computation: the body or branch. runs: how often it runs in a step.
      peak: its lifetime peak, in bytes. outside: the module's peak less that.
      elsewhere: the module's peak if `computation` took no memory: no change in it can reach less.
    """

    computation: Computation
    runs: int
    peak: int
    outside: int
    elsewhere: int


def bodies_at_peak(planned: PlannedModule) -> list[PeakBody]:
    """The loop bodies and branches that run at the module's peak, outermost first.

    The list ends before the first one whose number of runs is not known, without which the module's
    peak would be as high, or which a CPU compiles in one function with others: adding to it may
    change how that function's code rounds. `planned`: with `peaks` of all computations, in the
    orders that the module comes with.
    """
    bodies: list[PeakBody] = []
    if len(planned.module.control_computations) == 1:
        return bodies
    now = planned.module.entry
    peak = planned.peaks[now]
    joins = platform(planned.target).joins_calls
    together = one_function(planned.module) if joins else {}
    while (inside := _run_at_peak(planned, now)) is not None:
        runs = _runs(planned.module.entry, inside)
        own = planned.peaks[inside]
        elsewhere = _module_peak(planned, inside, 0)
        if runs is None or elsewhere >= peak:
            break
        if inside in together and may_depend_on_others(together[inside]):
            break
        bodies.append(PeakBody(inside, runs, own, peak - own, elsewhere))
        now = inside
    return bodies


def _run_at_peak(planned: PlannedModule, computation: Computation) -> Computation | None:
    """Of the computations that are called where `computation` has its lifetime peak, the one with
    the largest peak of its own; None if none is called there.
    """
    lowered = planned.lowered(computation)
    count = len(lowered.graph.operators)
    if not count:
        return None
    step = int(timeline(lowered.graph, np.arange(count)).argmax())
    runs = lowered.instructions[step]
    called = runs.called_control if runs.opcode in _RUNS else ()
    return max(called, key=lambda c: planned.peaks[c], default=None)


def _module_peak(planned: PlannedModule, computation: Computation, peak: int) -> int:
    """The lifetime peak of the entry, in bytes, if that of `computation` were `peak`."""
    before = dict(planned.peaks)
    try:
        planned.peaks[computation] = peak
        changed = {computation}
        for caller in planned.module.control_computations:  # callees first
            calls = (c for i in caller.instructions for c in i.called_control)
            if caller not in changed and not changed.isdisjoint(calls):
                changed.add(caller)
                planned.charge(caller)
        return planned.peaks[planned.module.entry]
    finally:
        planned.peaks.clear()
        planned.peaks.update(before)


def _runs(computation: Computation, inside: Computation) -> int | None:
    """How often one run of `computation` runs `inside`; None if a trip count is not known."""
    total = 0
    for i in computation.instructions:
        for called in i.called_control:
            runs = 1 if called is inside else _runs(called, inside)
            times = _times(i) if runs else 1
            if runs is None or times is None:
                return None
            total += runs * times
    return total


def _times(i: Instruction) -> int | None:
    return trip_count(i) if i.opcode == "while" else 1
