"""Runs the passes that change a module's instructions; loaded only where there is work."""

import dataclasses
from collections.abc import Iterator

from hlo.backend import platform
from olla_xla.memory import clock
from olla_xla.memory.module_state import facts_of
from olla_xla.planner.knee import knee
from olla_xla.planner.passes import relax_overlap, rematerialise
from olla_xla.planner.state import ModuleState
from olla_xla.problem.options import KNEE
from olla_xla.problem.plan import Plan
from olla_xla.remat.loops.moves import spared
from olla_xla.remat.loops.residual_choices import ResidualChoice, ResidualChoices
from olla_xla.remat.loops.selection import TRIES, free, is_right, to_try

_NEARLY = 1.02  # times the knee's seconds and bytes that a plan may take which is to be at the knee

_LITTLE = 0.98
"""Where clones leave more than this part of the total, their time is offered to the next pass."""

_SPARING = 0.2  # part of the time that recomputation may take which joined arrays may cost


def recomputed(state: ModuleState) -> ModuleState:
    """Returns a state with values recomputed to meet a memory budget, or within a time allowance.
    For max_overhead="knee" it searches twice: to find the time after which more saves little, and
    within that time. Raises BudgetError if no choice that was found meets the budget, CheckError if
    the independent check rejected what was found (a bug).
    """
    request, limit = state.request, state.limit
    if request.options.max_overhead != KNEE:
        return _recomputed(state)
    assert limit is not None
    if request.options.time_limit is not None:  # of both together
        limit = (request.elapsed + limit) / 2
    seconds = limit - request.elapsed
    first = _recomputed(dataclasses.replace(state, limit=limit))
    added = first.edits.added_seconds
    most, size = knee((*first.met, (added, first.ordered.predicted_bytes)), state.run_seconds)
    if added <= most:
        return first
    limit = request.elapsed + seconds
    within = dataclasses.replace(state, allowance=_NEARLY * most, met=first.met, limit=limit)
    again = _recomputed(within)
    return again if again.ordered.predicted_bytes <= _NEARLY * size else first


def _recomputed(state: ModuleState) -> ModuleState:
    """Runs the passes that recompute, once; returns the best state. Raises as `recomputed`."""
    state = recompute_residuals(state)
    ways = [state] if state.other is None else [state, state.other]
    states = []
    for k, way in enumerate(ways):
        limit = state.request.elapsed + state.seconds_left / (len(ways) - k)
        way = dataclasses.replace(way, limit=limit, other=None)
        done = rematerialise.run(way)
        states.append(relax_overlap.run(done))
        if done is not way and done.ordered.predicted_bytes > _LITTLE * way.ordered.predicted_bytes:
            states.append(relax_overlap.run(way))  # with the time that gained so little
    best = min(states, key=lambda way: (way.ordered.predicted_bytes, way.edits.added_seconds))
    return dataclasses.replace(best, limit=state.limit)


def free_edits(start: ModuleState, *, joins: bool) -> Iterator[ModuleState]:
    """Yields states with edits that cost no time (arrays of loops dropped or, if `joins`, made
    one): first with all of them, last without any. A joined array can no longer be dropped
    altogether: where some can be joined, states come by their module's total in its own order, of
    equal ones those first that join none.
    """

    def rank(states: list[ModuleState]) -> tuple[int, bool]:
        (first, *_), target = states, start.request.target
        edited = first.edits.spared
        return facts_of(first.module, target).total, edited is not None and bool(edited.joined)

    ways = [*_spared(start, joins), start]
    edited = (residuals_before_order(way) for way in ways)
    if (least := ways[0].edits.spared) is not None and least.joined:
        edited = sorted(map(list, edited), key=rank)
    for states in edited:
        yield from states


def _spared(state: ModuleState, joins: bool) -> list[ModuleState]:
    """States whose modules lack arrays that loops need not have, the one with most edits first.
    `joins`: also with arrays that were made one.
    """
    request = state.request
    most = request.options.max_overhead
    most = most * request.own_seconds * _SPARING if isinstance(most, float) else 0.0
    kernels = facts_of(state.module, request.target).all_kernels
    return [
        dataclasses.replace(
            state,
            module=edit.module,
            kernels=kernels,
            edits=dataclasses.replace(state.edits, spared=edit, sources=edit.sources),
        )
        for edit in spared(state.module, request.target, request.cost, most)
        if joins or not edit.joined
    ]


# Rematerialises what forward loops store for backward ones (remat.loops).
#
# First what costs nothing, before an order is looked for; then, towards a budget or within an
# allowance of time, the choices that promise most are ordered anew and compared by their totals.


_SHARE = 0.5  # part of the time that is left for recomputation


def residuals_before_order(state: ModuleState) -> Iterator[ModuleState]:
    """Yields states to order: first without scan residuals (arrays that loops store for others)
    that cost nothing to drop, if there are any, last with all of them. The next one is used where
    no order of the one before has kernels' arrays share memory as they must, or a run takes longer,
    as the dropped work had overlapped with other work: for that case one has residuals priced so.
    """
    request = state.request
    if not request.options.loops:
        yield state
        return
    choices = _choices(state)
    # XLA:TPU aborts the process if it cannot compile a fusion: nothing is dropped there unasked.
    free_choice = free(choices) if platform(request.target).emits_any_fusion else None
    kernels = state.kernels
    if free_choice is not None or request.options.recomputes:
        kernels = choices.kernels
    as_is = dataclasses.replace(state, choices=choices, kernels=kernels)
    if free_choice is not None:
        yield _with(as_is, free_choice, None)
        if platform(request.target).runs_beside:
            other = free(choices.beside)
            if other is not None and other.records != free_choice.records:
                yield _with(as_is, other, None)
    yield as_is


def _choices(state: ModuleState) -> ResidualChoices:
    request = state.request
    return ResidualChoices(
        state.module,
        request.target,
        request.cost,
        state.kernels,
        collectives=request.options.collectives,
    )


def recompute_residuals(state: ModuleState) -> ModuleState:
    """The planner's pass that recomputes scan residuals, arrays that loops fill and others read.
    Where no choice is better within the allowance, only `met` (time and bytes of each try) changes.
    The result's `other` is, without a budget, the choice of least total that takes less time.
    """
    choices, budget = state.choices, state.request.options.budget_bytes
    if choices is None:
        return state
    if platform(state.request.target).runs_beside:
        choices = choices.beside  # as an allowance counts time
    deadline = clock.now() + state.seconds_left * _SHARE
    best: tuple[ResidualChoice, Plan] | None = None
    every: list[tuple[ResidualChoice, Plan]] = []
    for choice, lowest in to_try(choices, budget, state.allowance):
        if not is_right(choices, choice):
            continue
        left = max(deadline - clock.now(), 0.1) / max(TRIES - len(every), 1)
        state.request.tell(f"choosing scan residuals to recompute, attempt {len(every) + 1}")
        plan = state.ordered_anew(choice.module, choice.kernels, left)
        if plan is None:
            continue
        every.append((choice, plan))
        least = state.least_worth if best is None else best[1].predicted_bytes
        if plan.predicted_bytes < least:
            best = every[-1]
        late = best is not None and clock.now() >= deadline
        if lowest or late or plan.predicted_bytes <= (budget or 0):
            break
    met = *state.met, *((choice.path_seconds, plan.predicted_bytes) for choice, plan in every)
    state = dataclasses.replace(state, met=met)
    if best is None:
        return state
    faster = [one for one in every if one[0].path_seconds < best[0].path_seconds]
    chosen_state = _with(state, *best)
    if not faster or budget is not None:
        return chosen_state
    other = _with(state, *min(faster, key=lambda one: one[1].predicted_bytes))
    return dataclasses.replace(chosen_state, other=other)


def _with(state: ModuleState, choice: ResidualChoice, plan: Plan | None) -> ModuleState:
    """Returns the state with `choice` as the scan residuals to recompute, its module and `plan`."""
    before = state.edits.spared
    edits = dataclasses.replace(
        state.edits,
        loops=choice.records,
        # Before there is an order, operators count one after the other, not as streams run them.
        added_seconds=choice.seconds if plan is None else choice.path_seconds,
        added_moved_bytes=choice.moved,
        least_stack_bytes=choice.least_stack_bytes,
        sources=(*(before.sources if before else ()), "loops"),
    )
    return dataclasses.replace(
        state, module=choice.module, kernels=choice.kernels, edits=edits, plan=plan
    )
