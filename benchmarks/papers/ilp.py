"""Measures the integer linear models: the effect of each equation, and correctness.

- Switches: size of the model and time to solve it, with each equation left out in turn.
- Agreement: optima of random graphs against those found by trying every order.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.made_graphs import brute_force, random_graph
from benchmarks.papers.ilp_forms import FORMS, least_peak
from benchmarks.papers.ilp_forms.equations import EQUATIONS as RUNNING_EQUATIONS
from benchmarks.papers.ilp_forms.lifetimes_ilp import DEFINING, EQUATIONS
from benchmarks.papers.ilp_forms.plain import plain_graph
from olla_xla.errors import OllaError
from olla_xla.problem.graph import TensorGraph
from olla_xla.solvers.linear import SolverLimits, Status
from olla_xla.solvers.programs.forms import ExactOrder

_SWITCHED = {
    "running": RUNNING_EQUATIONS,
    "lifetimes": tuple(e for e in EQUATIONS if e not in DEFINING),
    "plain": tuple(e for e in EQUATIONS if e not in DEFINING),
}
_RANDOM = 20  # random graphs over which the effect of a switch is summed


@dataclasses.dataclass(frozen=True)
class Solve:
    """One model as solved; for several graphs, sums.

    Attributes:
      graph: its name. form, backend: of `benchmarks.papers.ilp_forms.FORMS`.
      without: the equations that were left out; "" for none.
      variables, rows, nonzeros: of the linear model.
      seconds: building, solving and checking. status: "optimal" or what kept it from that.
      peak_bytes, bound_bytes: what was found.
    """

    graph: str
    form: str
    backend: str
    without: str
    variables: int
    rows: int
    nonzeros: int
    seconds: float
    status: str
    peak_bytes: int
    bound_bytes: int


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Random graphs solved by one form and backend.

    Attributes:
      graphs: how many. agreed: proven optima that equal the least peak of all orders.
      seconds: of solving, without trying all orders.
    """

    form: str
    backend: str
    graphs: int
    agreed: int
    seconds: float


def switches(
    graph: TensorGraph | None, limits: SolverLimits, backends: Sequence[str]
) -> Iterator[Solve]:
    """The effect of each equation on one graph, or, summed, on random graphs if it is None."""
    graphs = [random_graph(seed) for seed in range(_RANDOM)] if graph is None else [graph]
    name = f"{_RANDOM} random graphs" if graph is None else graph.name
    for form, optional in _SWITCHED.items():
        for backend in backends:
            for off in ((), *((e,) for e in optional), optional):
                kept = [e for e in _all(form) if e not in off]
                found = [
                    least_peak(g, form=form, equations=kept, backends=[backend], limits=limits)
                    for g in graphs
                ]
                yield _solve(name, form, backend, " ".join(f"({e})" for e in off), found)


def _all(form: str) -> Sequence[str]:
    return RUNNING_EQUATIONS if form == "running" else EQUATIONS


def _solve(name: str, form: str, backend: str, without: str, found: Sequence[ExactOrder]) -> Solve:
    wrong = [f for f in found if f.status is not Status.OPTIMAL]
    reason = ""
    if wrong:
        reason = wrong[0].failures[0] if wrong[0].failures else wrong[0].status
    return Solve(
        graph=name,
        form=form,
        backend=backend,
        without=without,
        variables=sum(f.variables for f in found),
        rows=sum(f.rows for f in found),
        nonzeros=sum(f.nonzeros for f in found),
        seconds=sum(f.seconds for f in found),
        status=reason or Status.OPTIMAL,
        peak_bytes=sum(f.peak_bytes for f in found),
        bound_bytes=sum(f.bound_bytes for f in found),
    )


def agreement(
    count: int, backends: Sequence[str], progress: Callable[[str], None]
) -> list[Agreement]:
    """Solves random graphs by every form and backend, and holds them against all orders.

    Args:
      count: how many graphs, of up to 8 operators. backends: to try.
      progress: called with one line now and then.
    """
    ways = [(form, b) for form, able in FORMS.items() for b in able if b in backends]
    agreed = dict.fromkeys(ways, 0)
    seconds = dict.fromkeys(ways, 0.0)
    for seed in range(count):
        graph = random_graph(seed)
        optima = {False: brute_force(graph), True: brute_force(plain_graph(graph))}
        for form, backend in ways:
            started = time.monotonic()
            found = least_peak(graph, form=form, backends=[backend])
            seconds[form, backend] += time.monotonic() - started
            right = found.peak_bytes == found.bound_bytes == optima[form == "plain"]
            agreed[form, backend] += right and found.status is Status.OPTIMAL
        if seed % 200 == 199:
            progress(f"{seed + 1} random graphs")
    return [Agreement(f, b, count, agreed[f, b], seconds[f, b]) for f, b in ways]


def all_agree(agreements: Sequence[Agreement]) -> bool:
    """Whether every form and backend was right on every graph. Raises OllaError without any."""
    if not agreements:
        raise OllaError("no graph was tried")
    return all(a.agreed == a.graphs for a in agreements)
