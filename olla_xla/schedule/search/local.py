"""Local search for the peak of a graph, and for the objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.search.moves import late_acceptance_search, perturb
from olla_xla.schedule.search.run import Run, Scored, rank
from olla_xla.schedule.search.state import evaluate, new_state, with_arguments_pinned


def lower_peak(
    run: Run, graph: GraphArrays, groups: NDArray[np.int64], seed: int, *, quick: bool = False
) -> NDArray[np.int64]:
    """Local search for a lower peak until it stalls; returns the best order, int64 [groups].

    With `quick`, chunks are shorter, so that it stalls sooner: another search follows it.
    """
    state = new_state(graph, groups, seed)
    settings = run.settings
    chunk = min(settings.chunk, settings.chunk_work // len(groups))
    if quick:
        chunk = int(settings.quick_part * chunk)
    chunk = max(settings.least_chunk, chunk)
    history = np.empty(settings.history)
    met = groups.copy()
    best, peak = groups, int(state.live.max())
    idle = 0
    while idle < settings.patience and not run.is_near(peak):
        target = max(run.cuts.bound, int(peak * (1 - settings.gain)))
        steps = run.limits.allowed(chunk)
        least, done = late_acceptance_search(
            graph, state, run.first, target, steps, history, met, 0
        )
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
            found = lower_peak(run, graphs[-1], now.groups, seed, quick=True)
            now = min(now, run.score(found), key=rank)
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
    """Local search accepted on the objective, until `patience` evaluations bring no progress."""
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
