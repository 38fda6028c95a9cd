"""Plans one computation: least lifetime peak first, then in-place results, then the module's total.

The least peak is found by the search, or by the integer program, which starts from the search's.
Candidates from every method compete on the predicted assigned total of the whole module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import olla_xla.schedule as schedule
from hlo.backend import platform
from hlo.exchange import is_transfer
from olla_xla.memory import clock
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.planner.effort import Effort
from olla_xla.planner.in_place import with_all, with_chains
from olla_xla.planner.work import Candidates, Solved
from olla_xla.problem import extensions
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import Proof, StopReason
from olla_xla.schedule import early
from olla_xla.schedule.search import phases
from olla_xla.schedule.search.run import SearchResult

Progress = Callable[[str], None]
AlternativeOrders = Callable[[], Mapping[str, Sequence[str]]]

_NESTED_SHARE = 0.4
"""Part of the time limit that bodies of loops and branches may use together; each of them half of
what is left of it."""

_ILP_START, _ILP, _ILP_OF_SOME = 0.25, 0.7, 0.2
"""Part of the time for the order that the integer program starts from; of the rest, for itself; and
for itself where values may be recomputed, so that there is another order to find."""

_SMALL, _NEAR = 1 << 16, 1e-3
"""Bytes of results that come early on a TPU, and by which part of it that may raise the total."""

_HOSTS = 0.05
"""Arguments of at least this part of the lifetime peak are read early: others may lie in them."""

_MORE = 0.01  # a total this much above the bound is worth asking another scheduler


@dataclasses.dataclass(frozen=True, eq=False)
class SearchLimits:
    """Limits and callbacks of the search for orders of all of a module's computations.

    Attributes:
      options: of the whole plan. effort: seconds, and the total bytes that are enough to stop.
      started: when the search began, on `memory.clock`. is_over: whether a time limit that counts
        all of planning has passed already.
      progress: called with one line at each improvement.
      alternative_orders: gives orders of another scheduler, for the entry computation; called only
        where the total is still far above the lower bound. more_seconds: how long that call takes.
    """

    options: PlanOptions
    effort: Effort
    started: float
    is_over: bool = False
    progress: Progress | None = None
    alternative_orders: AlternativeOrders | None = None
    more_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds left of the time for the search for orders; negative once it is over."""
        return self.effort.seconds - (clock.now() - self.started)

    def nested(self) -> float:
        """Returns seconds for the next loop body or branch: half of what is left for these; may be
        negative.
        """
        return (self.seconds - (1 - _NESTED_SHARE) * self.effort.seconds) / 2

    def tolerance(self, bound: int) -> float:
        """Returns by what part of a bound (bytes) the total may exceed it when the search ends."""
        return max(self.options.tolerance, self.effort.enough_bytes / max(bound, 1))


def solve(work: Candidates, limits: SearchLimits, seconds: float) -> Solved:
    """Finds an order and in-place results for one computation; its callees keep their orders.

    Args:
      work: the computation, whose module has callees' peaks and bounds; gets candidate orders.
      limits: of all computations. seconds: of search for this one.

    Returns:
      A solution, written into its module. Its total, or peak ("own"), is not above XLA's order's.
    """
    options, began = limits.options, clock.now()
    deadline = began + max(seconds, 0.01)

    def worth(total: int) -> float:
        """The clock time until which to search if the best total so far is so many bytes."""
        return limits.effort.until(total, began, clock.now())

    work.add({"xla": np.arange(work.arrays.n), "program": _program(work)})
    work.add(schedule.candidates(work.arrays))
    least, proof = _least_peak(work, deadline, limits, worth)
    own = "lifetimes" if proof is None else "ilp"
    lifetimes_count = options.placement == "own"
    work.add({own: least.lifetime_order})
    work.add({f"lifetimes{k}": order for k, order in enumerate(least.near_orders, start=2)})
    bound = work.certified(least)
    # Bindings take some ten simulations of the module. They are left out once a time limit, of the
    # options or of what the module is worth, has passed.
    limited = options.time_limit is not None or work.is_entry
    binds = options.in_place and not (limited and clock.now() > deadline)
    ours, aliases = work, {}
    if binds:
        ours, aliases = (with_all if lifetimes_count else with_chains)(work, options.tolerance, own)
    steps = None if options.step_limit is None else max(options.step_limit - least.steps, 1)
    if lifetimes_count:
        searched = dataclasses.replace(least, steps=0)
    elif options.time_limit is not None and clock.now() > deadline:
        searched = dataclasses.replace(least, steps=0, stopped_by=StopReason.TIME_LIMIT)
    else:
        searched = _towards_the_total(ours, bound, deadline, steps, limits, worth)
    ranks = (1, 0) if lifetimes_count else (0, 1)
    name = min(ours.scores, key=lambda n: (*(ours.scores[n][k] for k in ranks), n != "xla"))
    if name != "xla" and platform(ours.planned.target).places_as_they_come:
        name = _small_first(ours, name)
    if lifetimes_count and ours.is_entry:
        name = _arguments_first(ours, name)
    stopped_by = searched.stopped_by
    gain = work.scores["xla"][ranks[0]] - ours.scores[name][ranks[0]]
    # A callee's lower peak may serve its caller even if it alone lowers no total.
    if gain < 0 or (gain == 0 and work.is_entry):
        ours, name, aliases = work, "xla", {}
        if not searched.steps and stopped_by is not StopReason.TIME_LIMIT:
            stopped_by = StopReason.NO_GAIN
    return ours.solved(
        name,
        aliases,
        least=work.least_peak(least, searched),
        bound=bound,
        steps=least.steps + searched.steps,
        stopped_by=stopped_by,
        candidates={**ours.scores, **work.scores}
        if ours is work
        else {**work.scores, **ours.scores},
        proof=proof,
    )


def _least_peak(
    work: Candidates, deadline: float, limits: SearchLimits, worth: Callable[[int], float]
) -> tuple[SearchResult, Proof | None]:
    """Searches for the order of least lifetime peak for a part of the time until `deadline`; with
    method "ilp" an integer program goes on from there. Returns the search's result with the best
    order, and the program's proof if it ran. `worth`: best peak so far (bytes) -> clock time until
    which to search the entry computation.
    """
    options = limits.options
    by_ilp = options.method == "ilp"
    searched = phases.search(
        work.arrays,
        work.starts,
        time_limit=max(deadline - clock.now(), 0.01) * (_ILP_START if by_ilp else 0.5),
        step_limit=options.step_limit,
        seed=options.seed,
        bound_bytes=forced_live_bound(work.arrays)[0],
        tolerance=limits.tolerance(work.bound),
        deadline=worth if work.is_entry else None,
        progress=limits.progress,
    )
    if by_ilp:
        part = _ILP_OF_SOME if options.recomputes else _ILP
        return _by_ilp(work, searched, (deadline - clock.now()) * part, limits)
    return searched, None


def _by_ilp(
    work: Candidates, start: SearchResult, seconds: float, limits: SearchLimits
) -> tuple[SearchResult, Proof]:
    """Runs the integer program for the least lifetime peak from the search's best order, for at
    most `seconds`. Returns the search's result `start` with the program's order, peak and lower
    bound in place of its own, and the program's proof.
    """
    order, proof = extensions.order_by_ilp(
        work.graph, start.lifetime_order, start.least_peak_bytes, start.bound_bytes,
        limits.options, seconds, limits.progress,
    )  # fmt: skip
    improved = dataclasses.replace(
        start,
        order=order,
        peak_bytes=proof.peak_bytes,
        objective_bytes=proof.peak_bytes,
        lifetime_order=order,
        least_peak_bytes=proof.peak_bytes,
        bound_bytes=proof.bound_bytes,
    )
    return improved, proof


def _small_first(ours: Candidates, name: str) -> str:
    """Adds to the candidate orders `ours` one called "small": the order called `name`, but with
    operators of small results (up to 64 KB) as early as can be. Returns "small" if its total is at
    most 0.1 % higher, else `name`. XLA:TPU moves values to VMEM after its scheduler, so it does not
    find the gaps for small ones that a prediction has.
    """
    instructions = ours.lowered.instructions
    movable = np.array([not i.called_control and not is_transfer(i) for i in instructions])
    order = early.small_first(ours.arrays, ours.starts[name], movable, _SMALL)
    ours.add({"small": order})
    return "small" if ours.scores["small"][0] <= (1 + _NEAR) * ours.scores[name][0] else name


def _arguments_first(ours: Candidates, name: str) -> str:
    """Adds to the candidate orders `ours` one called "arguments": the order called `name`, but with
    large arguments read for the last time early, so that other values fit into their memory.
    Returns "arguments" if its lifetime peak is no higher, else `name`.
    """
    peak = ours.scores[name][1]
    ours.add({"arguments": early.arguments_first(ours.arrays, ours.starts[name], _HOSTS * peak)})
    return "arguments" if ours.scores["arguments"][1] <= peak else name


def _towards_the_total(
    ours: Candidates,
    bound: int,
    deadline: float,
    steps: int | None,
    limits: SearchLimits,
    worth: Callable[[int], float],
) -> SearchResult:
    """Searches from all candidate orders in `ours` for the least predicted total of the module,
    until the clock time `deadline`; adds the best order to `ours` as "search"; returns the result.
    For the entry computation, if its total is far above `bound` (bytes), it asks for another
    scheduler's order, and searches again from that if it is better.
    """
    options, computation = limits.options, ours.lowered.computation
    excess = 0 if ours.is_entry else min(total - peak for total, peak in ours.scores.values())
    objective = ours.planned.model.estimator(computation, ours.planned.orders)

    def search(starts: Mapping[str, NDArray[np.int64]], steps: int | None) -> SearchResult:
        return phases.search(
            ours.arrays,
            starts,
            objective=objective,
            exact=ours.total,
            excess=excess,
            time_limit=max(deadline - clock.now(), 0.01),
            step_limit=steps,
            seed=options.seed,
            bound_bytes=bound,
            tolerance=limits.tolerance(bound),
            deadline=worth if ours.is_entry else None,
            progress=limits.progress,
        )

    best = search(ours.starts, steps)
    ours.add({"search": best.order})
    wide = best.objective_bytes > bound * (1 + _MORE)
    in_time = clock.now() + limits.more_seconds < min(worth(best.objective_bytes), deadline)
    if ours.is_entry and limits.alternative_orders is not None and wide and in_time:
        other = ours.named(limits.alternative_orders().get(computation.name, ()))
        ours.add(other)
        if other and min(ours.scores[name] for name in other) < ours.scores["search"]:
            left = None if steps is None else max(steps - best.steps, 1)
            best = _both(best, search(other, left))
            ours.add({"search": best.order})
    return best


def _both(first: SearchResult, second: SearchResult) -> SearchResult:
    """The second search's result, with the lower of both least lifetime peaks and all steps."""
    least = min(first, second, key=lambda f: f.least_peak_bytes)
    return dataclasses.replace(
        second,
        lifetime_order=least.lifetime_order,
        least_peak_bytes=least.least_peak_bytes,
        steps=first.steps + second.steps,
    )


def _program(work: Candidates) -> NDArray[np.int64]:
    """Operators as the computation lists them, not as scheduled; moved where edges demand it."""
    position = {i: k for k, i in enumerate(work.lowered.computation.instructions)}
    priority = [position[i] for i in work.lowered.instructions]
    return schedule.by_priority(work.arrays, np.array(priority, np.int64))
