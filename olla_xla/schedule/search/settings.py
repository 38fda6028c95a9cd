"""How hard the search for an order tries; found by measuring train steps of usual models."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How hard each phase of the search tries: numbers of steps, and gaps at which it stops.

    A step is one move of local search. A gap is the best objective less the least expected one
    (`Run.expected`), as a fraction of the latter.
    """

    # What a step limit is spent on.

    cut_steps: int = 100
    """One minimum cut counts as this many steps."""

    objective_steps: int = 100
    """One evaluation of the objective counts as this many steps."""

    # Local search for the peak.

    gain: float = 0.02
    """Its target lies below the best peak by this fraction of that peak."""

    history: int = 1000
    """A move is accepted if the order costs no more than it did this many moves before."""

    chunk: int = 20_000
    """Moves between checks of the limits, at most."""

    least_chunk: int = 200
    """Moves between checks of the limits, at least."""

    chunk_work: int = 5_000_000
    """Between checks of the limits, moves times groups of operators are at most this."""

    quick_part: float = 0.03
    """A quick search checks the limits, and whether it stalls, after this part of the moves."""

    stall: float = 0.999
    """A chunk is an improvement if it led to a peak below this fraction of the best one."""

    patience: int = 3
    """It ends after this many chunks without improvement."""

    # Further searches for the peak, where there is no objective.

    wide_gap: float = 1e-3
    """Branch and bound and flat orders are tried if the peak exceeds the bound by this fraction."""

    flat_fruitless: int = 2
    """No more flat orders are made after this many in a row that brought no progress."""

    restarts: int = 12
    """Local search restarts at most this many times."""

    restarts_gap: float = 0.01
    """It does not restart if the peak exceeds the bound by no more than this fraction."""

    restarts_fruitless: int = 5
    """It does not restart after this many restarts in a row without progress."""

    restart_seed: int = 500
    """Restart k has the seed of the first local search plus this plus k."""

    near: float = 1.03
    """Other orders are reported if their peaks are at most this many times the least."""

    most_near: int = 4
    """At most this many of them are reported."""

    # Local search for the objective.

    near_start: float = 1.02
    """An improved start is tried on the objective up to this many times the least peak."""

    progress: float = 2e-4
    """A decrease counts as progress if it is more than this fraction of the value."""

    objective_history: int = 50
    """An order is accepted if its objective is no more than it was this many evaluations before."""

    least_patience: int = 50
    """A round ends after this many evaluations without improvement, at least."""

    first_patience: int = 200
    """The first round ends after this many evaluations without improvement, at most."""

    most_patience: int = 400
    """A round ends after this many evaluations without improvement, at most."""

    patience_per_gap: int = 40_000
    """Within these limits, a round ends after this many such evaluations, times the gap."""

    patience_work: int = 400_000
    """Such evaluations, times operators, are at most this (but at least `least_patience`)."""

    rounds: int = 10
    """There are at most this many rounds."""

    rounds_gap: float = 0.01
    """No other round begins if the gap was less than this."""

    fruitless: int = 3
    """No other round begins after this many that brought no progress."""

    least_work: int = 30_000_000
    """Rounds go on for this many steps times groups of operators, at least."""

    most_work: int = 200_000_000
    """Rounds go on for this many steps times groups of operators, at most."""

    work_per_gap: int = 4_000_000_000
    """Within these limits, steps times groups of operators are at most this times the gap."""
