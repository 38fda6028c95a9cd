"""The search: prove the least lifetime peak, then look for the least objective near it.

1. Minimum cuts (cuts.py) lower the peak of every start, and bound it from below.
2. Without an objective, if that leaves a gap: local search for the peak, cuts again, branch and
   bound on which operator runs first (branch.py), and flat orders (flatten.py).
3. With an objective: local search for the peak with all argument buffers pinned, then local
   search accepted on the objective itself, from the best of all orders so far.

All limits count steps (settings.py); the clock can only end the search earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.search.branch import branch
from olla_xla.schedule.search.cuts import improve, prove, prove_together
from olla_xla.schedule.search.flatten import flattened
from olla_xla.schedule.search.local import lower_peak, towards_objective
from olla_xla.schedule.search.run import Run, SearchOptions, SearchResult, Stop


def search(
    graph: TensorGraph | GraphArrays,
    starts: Mapping[str, Sequence[int] | NDArray[np.int64]],
    **options: Any,
) -> SearchResult:
    """Looks for the order with the least objective (bytes), starting from legal orders.

    Args:
      graph: the graph. starts: name -> int64 [n], order of all operators; at least one.
      options: fields of SearchOptions.

    Returns:
      The best order met, never worse than the best start.
    """
    run = Run(GraphArrays.of(graph), SearchOptions(**options))
    try:
        _go(run, {name: np.asarray(starts[name], np.int64) for name in sorted(starts)})
    except Stop as stop:
        reason = stop.reason
    else:
        reason = StopReason.PROOF if run.met() else StopReason.STALL
    return run.result(reason)


def _go(run: Run, starts: Mapping[str, NDArray[np.int64]]) -> None:
    """Runs all phases, until a limit raises Stop or nothing improves any more."""
    groups = {}
    for name, order in starts.items():
        groups[name] = run.reduced.contract(order)
        run.score(groups[name], order)
        run.peak(groups[name])
        run.limits.spend(0)  # on large graphs each of them takes a while
    run.limits.spend(run.settings.objective_steps * len(starts))
    assert run.least is not None
    if run.reduced.arrays.n - run.first < 2:
        run.score(run.least.groups)
        return
    try:
        found = _lifetimes(run, groups)
    finally:
        run.score(run.least.groups)
    run.report("lifetimes")
    if run.options.objective is None or run.settled():
        return
    for trial in found:
        run.score(trial)
        run.limits.spend(run.settings.objective_steps)
    towards_objective(run)


def _lifetimes(run: Run, starts: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Lowers the lifetime peak of all starts; returns the orders with a peak near the least."""
    found: list[tuple[int, str, NDArray[np.int64]]] = []

    def offer(groups: NDArray[np.int64], peak: int) -> None:
        run.peak(groups, peak)
        run.spend_cuts()

    by_peak = sorted(starts, key=lambda name: (peak_bytes(run.reduced.arrays, starts[name]), name))
    for name in by_peak:
        groups, peak = improve(run.cuts, starts[name], offer)
        found.append((peak, name, groups))
    assert run.least is not None
    if run.options.objective is None:
        _prove(run)
    if run.options.objective is None and not run.is_near(run.least.peak):
        groups = lower_peak(
            run, run.reduced.arrays, run.least.groups, run.options.seed * 1000, quick=True
        )
        groups, peak = improve(run.cuts, groups, offer)
        run.near.append((peak, groups))
        _prove(run)
        _restart(run, [starts[name] for name in by_peak], offer)
        _branch(run, offer)
        _flatten(run, offer)
        found.append((run.least.peak, "", run.least.groups))
    limit = run.least.peak * run.settings.near_start
    return [groups for peak, _, groups in sorted(found, key=lambda f: f[:2]) if peak <= limit]


def _branch(run: Run, offer: Callable[[NDArray[np.int64], int], None]) -> None:
    """Branch and bound if the gap is wide: raises the bound and may lower the peak."""
    assert run.least is not None
    if _wide(run):
        branch(run.cuts, run.least.groups, offer, run.spend_cuts)


def _flatten(run: Run, offer: Callable[[NDArray[np.int64], int], None]) -> None:
    """Local search for flat orders, which often lowers the peak too."""
    assert run.least is not None
    graph, groups = run.reduced.arrays, run.least.groups
    orders = flattened(
        graph, groups, seed=run.options.seed, first=run.first, spend=run.limits.spend
    )
    fruitless = 0
    while fruitless < run.settings.flat_fruitless and _wide(run):
        before = run.least.peak
        if (flat := next(orders, None)) is None:
            return
        run.peak(flat)
        improve(run.cuts, flat, offer)
        _prove(run)
        fruitless = 0 if run.is_progress(run.least.peak, before) else fruitless + 1


def _wide(run: Run) -> bool:
    """Whether the gap is worth closing by expensive means."""
    assert run.least is not None
    return run.least.peak > run.cuts.bound * (1 + run.settings.wide_gap)


def _restart(
    run: Run,
    starts: Sequence[NDArray[np.int64]],
    offer: Callable[[NDArray[np.int64], int], None],
) -> None:
    """Local search for the peak from one start after another, while the gap is wide.

    What lies near the best order has mostly been searched; another start often leads elsewhere.
    Orders with a peak near the least are kept too: they may have a lower objective.
    """
    assert run.least is not None
    settings, fruitless = run.settings, 0
    for k in range(1, settings.restarts + 1):
        before = run.least.peak
        enough = run.cuts.bound * (1 + settings.restarts_gap)
        if before <= enough or fruitless >= settings.restarts_fruitless:
            return
        seed = run.options.seed * 1000 + settings.restart_seed + k
        groups = lower_peak(run, run.reduced.arrays, starts[(k - 1) % len(starts)], seed)
        groups, peak = improve(run.cuts, groups, offer)
        run.near.append((peak, groups))
        fruitless = 0 if run.is_progress(run.least.peak, before) else fruitless + 1
        _prove(run)


def _prove(run: Run) -> None:
    """Raises the bound on the least peak, unless it is met."""
    assert run.least is not None
    if not run.is_near(run.least.peak):
        prove(run.cuts, run.least.groups, run.spend_cuts)
    if not run.is_near(run.least.peak):
        prove_together(run.cuts, run.spend_cuts)
