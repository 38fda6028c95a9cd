"""The search: prove the least lifetime peak, then look for the least objective near it.

1. Minimum cuts (cuts.py) lower the peak of every start, and bound it from below.
2. Without an objective, if that leaves a gap: local search for the peak, cuts again, branch and
   bound on which operator runs first (branch.py), and flat orders (`flattened`).
3. With an objective: local search for the peak with all argument buffers pinned, then local
   search accepted on the objective itself, from the best of all orders so far.

All limits count steps (`SearchSettings`); the clock can only end the search earlier.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.search.branch import branch
from olla_xla.schedule.search.cuts import improve, prove, prove_together
from olla_xla.schedule.search.moves import late_acceptance_search, perturb
from olla_xla.schedule.search.run import Run, Scored, SearchOptions, SearchResult, Stop, rank
from olla_xla.schedule.search.state import evaluate, new_state, with_arguments_pinned


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
    """Runs all phases of the search, until a limit raises Stop or nothing improves any more."""
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
        near = _lifetimes(run, groups)
    finally:
        run.score(run.least.groups)
    run.report("lifetimes")
    if run.options.objective is None or run.settled():
        return
    for trial in near:
        run.score(trial)
        run.limits.spend(run.settings.objective_steps)
    towards_objective(run)


def _lifetimes(run: Run, starts: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Lowers the lifetime peak of all starts; returns the orders with a peak near the least."""
    improved: list[tuple[int, str, NDArray[np.int64]]] = []

    def offer(groups: NDArray[np.int64], peak: int) -> None:
        run.peak(groups, peak)
        run.spend_cuts()

    by_peak = sorted(starts, key=lambda name: (peak_bytes(run.reduced.arrays, starts[name]), name))
    for name in by_peak:
        groups, peak = improve(run.cuts, starts[name], offer)
        improved.append((peak, name, groups))
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
        improved.append((run.least.peak, "", run.least.groups))
    limit = run.least.peak * run.settings.near_start
    return [groups for peak, _, groups in sorted(improved, key=lambda f: f[:2]) if peak <= limit]


def _branch(run: Run, offer: Callable[[NDArray[np.int64], int], None]) -> None:
    """Runs branch and bound if the least peak is far above its lower bound: may change both."""
    assert run.least is not None
    if _wide(run):
        branch(run.cuts, run.least.groups, offer, run.spend_cuts)


def _flatten(run: Run, offer: Callable[[NDArray[np.int64], int], None]) -> None:
    """Searches for orders of which few steps come near the peak, while the least peak is far above
    its lower bound; this often lowers the peak too.
    """
    assert run.least is not None
    graph, groups = run.reduced.arrays, run.least.groups
    flats = flattened(graph, groups, seed=run.options.seed, first=run.first, spend=run.limits.spend)
    fruitless = 0
    while fruitless < run.settings.flat_fruitless and _wide(run):
        before = run.least.peak
        if (flat := next(flats, None)) is None:
            return
        run.peak(flat)
        improve(run.cuts, flat, offer)
        _prove(run)
        fruitless = 0 if run.is_progress(run.least.peak, before) else fruitless + 1


def _wide(run: Run) -> bool:
    """Whether the least peak is so far above its lower bound that expensive means are worth it."""
    assert run.least is not None
    return run.least.peak > run.cuts.bound * (1 + run.settings.wide_gap)


def _restart(
    run: Run, starts: Sequence[NDArray[np.int64]], offer: Callable[[NDArray[np.int64], int], None]
) -> None:
    """Runs local search for a lower peak from one start after another, while the least peak is far
    above its lower bound: another start often leads elsewhere. Orders with a peak near the least
    are kept too: they may have a lower objective.
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
    """Raises the lower bound on the peak by minimum cuts, unless the least peak is near it."""
    assert run.least is not None
    if not run.is_near(run.least.peak):
        prove(run.cuts, run.least.groups, run.spend_cuts)
    if not run.is_near(run.least.peak):
        prove_together(run.cuts, run.spend_cuts)


# Flat orders: their live bytes are far below the peak at almost every step.
#
# Offsets are hard to find where many steps come near the peak, since a packing can leave few gaps
# there. So local search (moves.py) lowers the squared excess over a level well below the peak, and
# lets no step rise above the peak. It often lowers the peak too.


_LEVELS = (0.8, 0.9, 0.5)
"""Levels to get below, from the order's least live bytes (0) to its peak (1)."""

_ROUNDS = 3  # rounds of moves for a level; the search then starts again with the next level

_MOVES, _MOVES_PER_OPERATOR = 100_000, 50
"""Most moves in the first round of a level; each further round has twice as many."""

_HISTORY = 300  # late acceptance: a cost is compared with the one this many moves before
_CHUNK = 20_000  # moves between two checks of the limits


def flattened(
    graph: GraphArrays,
    order: Sequence[int] | NDArray[np.int64],
    *,
    alignment: int = 1,
    seed: int = 0,
    first: int = 0,
    spend: Callable[[int], None] = lambda moves: None,
) -> Iterator[NDArray[np.int64]]:
    """Yields orders found in searches for flat ones, without end; none if fewer than two can move.

    An order is flat if few steps come near its peak. Where arguments are dead before another tensor
    replaces them, rounds alternate: in every second one, their buffers count as occupied at every
    step. An order that is flat by this count needs no tensor in the memory of a dead argument.

    Args:
      graph: the graph. order: operator ids. alignment: sizes are rounded up to it (bytes).
      seed: of the random numbers. first: operators before this step stay where they are.
      spend: called from time to time with the number of moves tried since; may raise to end it.

    Yields:
      Orders; under none is the largest live sum larger than under `order`.
    """
    transient = _rounded(np.maximum(graph.transient, 0), alignment)
    aligned = graph.resized(_rounded(graph.bytes, alignment))._replace(transient=transient)
    if aligned.n - first < 2:
        return
    start = np.asarray(order, np.int64)
    graphs = [aligned, with_arguments_pinned(aligned, replaced=True)]
    true, held = (new_state(g, start, seed) for g in graphs)
    if np.array_equal(true.live, held.live):
        graphs.pop()
    peak = int(true.live.max())
    for k in itertools.count():
        level = _LEVELS[k % len(_LEVELS)]
        runs = [_Run(g, start, level, seed + k) for g in graphs]
        moves = min(_MOVES, _MOVES_PER_OPERATOR * aligned.n)
        for _ in range(_ROUNDS):
            for run in runs:
                true.order[:] = run.round(moves, first, spend)
                if evaluate(aligned, true) <= peak:
                    yield true.order.copy()
            moves *= 2


class _Run:
    """Local search for flat orders on one graph, which goes on round by round: for live bytes that
    exceed a level between the order's least and largest as little as can be.
    """

    def __init__(
        self, graph: GraphArrays, start: NDArray[np.int64], level: float, seed: int
    ) -> None:
        self.graph = graph
        self.state = new_state(graph, start, seed)
        self.best = start.copy()
        self.peak, least = int(self.state.live.max()), int(self.state.live.min())
        self.level = least + int(level * (self.peak - least))

    def round(self, moves: int, first: int, spend: Callable[[int], None]) -> NDArray[np.int64]:
        """Tries `moves` moves of steps from `first` on, in chunks; returns the order of least
        excess in the last chunk, as an array that the next round overwrites.
        """
        history = np.zeros(_HISTORY)
        for begun in range(0, moves, _CHUNK):
            chunk = min(_CHUNK, moves - begun)
            _, done = late_acceptance_search(
                self.graph, self.state, first, self.level, chunk, history, self.best, self.peak
            )
            spend(int(done))
        return self.best


def _rounded(sizes: NDArray[np.int64], alignment: int) -> NDArray[np.int64]:
    return -(-sizes // alignment) * alignment


def lower_peak(
    run: Run, graph: GraphArrays, groups: NDArray[np.int64], seed: int, *, quick: bool = False
) -> NDArray[np.int64]:
    """Local search for a lower peak until it stalls; returns the best order, int64 [groups]. With
    `quick`, chunks are shorter, so that it stalls sooner: another search follows it.
    """
    state = new_state(graph, groups, seed)
    settings = run.settings
    chunk = min(settings.chunk, settings.chunk_work // len(groups))
    if quick:
        chunk = int(settings.quick_part * chunk)
    chunk = max(settings.least_chunk, chunk)
    costs = np.empty(settings.history)
    met = groups.copy()
    best, peak = groups, int(state.live.max())
    idle = 0
    while idle < settings.patience and not run.is_near(peak):
        target = max(run.cuts.bound, int(peak * (1 - settings.gain)))
        steps = run.limits.allowed(chunk)
        least, done = late_acceptance_search(graph, state, run.first, target, steps, costs, met, 0)
        idle += 1
        if least < peak:
            if least < peak * settings.stall:
                idle = 0
            peak, best = int(least), met.copy()
            run.peak(best)
        run.limits.spend(done)
    return best


def towards_objective(run: Run) -> None:
    """Local search, in rounds, for orders with a lower objective; records them in `run`."""
    graphs = [run.reduced.arrays]
    if run.reduced.arrays.live_in.any():
        graphs.append(with_arguments_pinned(run.reduced.arrays))
    assert run.best is not None
    start, fruitless, first = run.best, 0, run.limits.steps
    settings = run.settings
    for k in range(settings.rounds):
        before = run.best.objective
        seed = run.options.seed * 1000 + 1 + 10 * k
        now = start if k % 2 == 0 else run.best
        wide = start.objective > run.expected() * (1 + settings.rounds_gap)
        if len(graphs) > 1 and wide:
            lowered = lower_peak(run, graphs[-1], now.groups, seed, quick=True)
            now = min(now, run.score(lowered), key=rank)
        gap = run.best.objective / max(run.expected(), 1) - 1
        patience = _patience(run, gap, fruitless)
        _polish(run, graphs, now, patience, seed)
        run.report(f"objective, round {k + 1}")
        fruitless = 0 if run.is_progress(run.best.objective, before) else fruitless + 1
        spent = (run.limits.steps - first) * len(start.groups)
        if run.settled() or gap < settings.rounds_gap:
            break
        most = min(settings.most_work, int(settings.work_per_gap * gap))
        if fruitless >= settings.fruitless or spent > max(settings.least_work, most):
            break


def _patience(run: Run, gap: float, fruitless: int) -> int:
    """How many evaluations without progress end a round: fewer for small gaps and large graphs.
    Each of the `fruitless` rounds just before doubles the upper limit, up to `most_patience`.
    """
    settings = run.settings
    most = min(settings.first_patience << fruitless, settings.most_patience)
    most = min(most, settings.patience_work // run.full.n)
    return max(settings.least_patience, min(most, int(settings.patience_per_gap * gap)))


def _polish(run: Run, graphs: Sequence[GraphArrays], now: Scored, patience: int, seed: int) -> None:
    """Perturbs `now` until `patience` evaluations in a row bring no progress. Goes on from orders
    that are no worse than one some evaluations before; `run` records those of lower objective.
    """
    objective = run.options.objective
    assert objective is not None
    states = [new_state(g, now.groups, seed + 1 + k) for k, g in enumerate(graphs)]
    least = now.objective
    history = [now.objective] * run.settings.objective_history
    idle = count = 0
    while idle < patience and not run.settled():
        which = count % len(states)
        graph, state = graphs[which], states[which]
        state.order[:] = now.groups
        # The first state is not evaluated: its moves use live bytes of the order it last held.
        cap = max(evaluate(graph, state) if which else 0, now.objective)
        idle += 1
        if not perturb(graph, state, run.first, cap):
            run.limits.spend(1)
            continue
        slot = count % len(history)
        if not np.array_equal(state.order, now.groups):
            groups = state.order.copy()
            order = run.reduced.expand(groups)
            most = max(now.objective, history[slot])
            value = int(objective(order, most))
            if value <= most:
                now = run.score(groups, order, value)
        run.limits.spend(run.settings.objective_steps)
        history[slot] = now.objective
        count += 1
        if run.is_progress(now.objective, least):
            least, idle = now.objective, 0
