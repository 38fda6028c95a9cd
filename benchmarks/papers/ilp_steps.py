"""The integer programs on real train steps: the paper's form, ours, and ours with one change.

Orders: `plain` is section 3 of the paper as printed, on the graph as the paper defines it, with the
spans of section 4.1. `ours` counts the same bytes as our evaluator, on the condensed graph, with
spans; it starts at the search's order and is given the search's bound.

Places: `plain` is equations (6) to (8) and (15), with both binaries for each pair. `ours` prunes
pairs, uses the pyramid of section 4.5, starts at a greedy packing, has the largest live sum as a
bound, solves independent parts separately, and solves programs of a few items before the whole one.

Every other row is `ours` with one thing changed. Rows of places also come without the bound: with
it, the greedy start mostly meets the bound, and nothing is left to solve.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.growing_file import stored
from benchmarks.papers.ilp_forms import FORMS, least_peak
from benchmarks.papers.ilp_forms.plain import plain_graph
from benchmarks.place import PlannedStep
from benchmarks.place_ilp.located import FORMS as PLACE_FORMS
from benchmarks.place_ilp.located import Programs, located
from olla_xla import schedule
from olla_xla.errors import SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.place.dead_space import least_height
from olla_xla.place.items import items_of
from olla_xla.place.rules import first_fit, greedy_orders
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import reduce_graph
from olla_xla.schedule.search import phases
from olla_xla.schedule.search.run import SearchResult
from olla_xla.solvers.linear import SolverLimits, Status
from olla_xla.solvers.programs.spans import coefficients

STEPS = tuple(
    f"{model}/4/{optimizer}/{target}"
    for model in (
        "mlp",
        "lenet",
        "examples.zoo.gpt:gpt_tiny",
        "examples.zoo.resnet:resnet_tiny",
    )
    for target in ("cpu", "h100")
    for optimizer in ("adam", "sgd")
)
"""Small train steps, as model/batch_size/optimizer/target."""

_MOST = 2_000_000  # coefficients of the largest program that is built
_NEAR = 1.01  # of the least height or peak that is known: what counts as near

_ORDERS: Mapping[str, dict[str, Any]] = {
    "ours": {},
    "not condensed": {"reduce": False},
    "no spans": {"equations": ()},
    "control edges": {"early_updates": True},
    "no start": {"start": None},
    "no bound": {"bound_bytes": 0},
}

_PLACES: Mapping[str, Mapping[str, Any]] = {
    "plain": {
        "pruned": False,
        "pyramid": False,
        "start": False,
        "bound": False,
        "split": False,
        "windows": False,
    },
    "ours": {},
    "no windows": {"windows": False},
    "no bound": {"bound": False},
    "no bound or pruning": {"bound": False, "pruned": False},
    "no bound or pyramid": {"bound": False, "pyramid": False},
    "no bound or start": {"bound": False, "start": False},
    "no bound, not taken apart": {"bound": False, "split": False},
}


Key = tuple[str, str, str]
"""Of a row: what, variant, backend."""


@dataclasses.dataclass(frozen=True)
class StepRow:
    """One program as solved, or several where a problem falls apart.

    Attributes:
      step: its case. what: "order" or "places". variant: see above. backend: the solver.
      variables, rows: of the program; 0 where nothing had to be solved.
      first_seconds, near_seconds: until a first solution, and until one within 1 % of the least
        value that any method found; None if there was none. Building the program counts.
      seconds: until the end, by the clock; cpu_seconds: processor time in that.
      status: "optimal", or what kept it from that.
      value_bytes, bound_bytes: what was found; least_bytes: the least that is known.
      limit: seconds that the solver was given.
    """

    step: str
    what: str
    variant: str
    backend: str
    variables: int
    rows: int
    first_seconds: float | None
    near_seconds: float | None
    seconds: float
    status: str
    value_bytes: int
    bound_bytes: int
    least_bytes: int
    limit: float
    cpu_seconds: float

    @property
    def key(self) -> Key:
        """What, variant, backend."""
        return self.what, self.variant, self.backend


def rows_from_json(text: str) -> list[StepRow]:
    """The rows that `benchmarks ilp --out` wrote. Raises InputError if there are none."""
    return stored(text, list[StepRow], "ilp", "steps")


def keys(backends: Sequence[str], parts: Collection[str]) -> list[Key]:
    """The rows of a step, in their order. Parts: "orders", "places"."""
    found: list[Key] = []
    for backend in backends if "orders" in parts else ():
        found += [("order", variant, backend) for variant in (*_ORDERS, "plain")]
        if backend in FORMS["intervals"]:
            found.append(("order", "intervals", backend))
    for backend in backends if "places" in parts else ():
        for variant in _PLACES:
            found += [("places", name, backend) for name, _ in _forms(variant, backend)]
    return found


def _forms(variant: str, backend: str) -> list[tuple[str, str]]:
    """(name, form) of the rows of a variant of places."""
    found = [(variant, "big-m")]
    if backend in PLACE_FORMS["no-overlap"]:
        found.append((f"{variant}, no-overlap", "no-overlap"))
    return found


class _Watch:
    """Notes when a solver reported its first solution, and one near the least known value."""

    def __init__(self, least: int) -> None:
        self._started, self._cpu = time.monotonic(), _cpu_seconds()
        self._near = least * _NEAR
        self.first: float | None = None
        self.near: float | None = None

    def __call__(self, value: float | None, bound: float) -> None:
        if value is None:
            return
        now = time.monotonic() - self._started
        self.first = now if self.first is None else self.first
        if self.near is None and value <= self._near:
            self.near = now

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started

    def cpu_seconds(self) -> float:
        """The same of this process and of those it has waited for."""
        return _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def orders(
    step: PlannedStep, backends: Sequence[str], time_limit: float, done: Collection[Key] = ()
) -> Iterator[StepRow]:
    """The order of a step's entry computation, by every variant and backend.

    Args:
      step: the step. backends: names. time_limit: seconds for each program.
      done: rows to leave out.
    """
    wanted = [key for key in keys(backends, ["orders"]) if key not in done]
    if not wanted:
        return
    graph = step.graph
    plain = plain_graph(graph)
    searched, plainly = (_searched(g, time_limit) for g in (graph, plain))
    ours: dict[str, Any] = {"start": searched.lifetime_order, "bound_bytes": searched.bound_bytes}
    for _, variant, backend in wanted:
        if variant == "plain":
            found = plain, plainly, {"form": "plain"}
        else:
            change = {"form": "intervals"} if variant == "intervals" else _ORDERS[variant]
            found = graph, searched, {**ours, **change}
        yield _order(step.case, variant, backend, time_limit, *found)


def _searched(graph: TensorGraph, seconds: float) -> SearchResult:
    arrays = GraphArrays.of(graph)
    starts = {"given": np.arange(arrays.n), **schedule.candidates(arrays)}
    bound = forced_live_bound(arrays)[0]
    return phases.search(arrays, starts, time_limit=seconds, bound_bytes=bound)


def _order(
    case: str,
    variant: str,
    backend: str,
    time_limit: float,
    graph: TensorGraph,
    searched: SearchResult,
    options: Mapping[str, Any],
) -> StepRow:
    watch = _Watch(searched.least_peak_bytes)
    arrays = GraphArrays.of(graph)
    whole = variant == "plain" or options.get("reduce") is False
    size = coefficients(arrays if whole else reduce_graph(arrays).arrays)
    row = StepRow(
        step=case,
        what="order",
        variant=variant,
        backend=backend,
        variables=0,
        rows=0,
        first_seconds=None,
        near_seconds=None,
        seconds=0.0,
        status=f"not built: {size:,} coefficients",
        value_bytes=searched.least_peak_bytes,
        bound_bytes=searched.bound_bytes,
        least_bytes=searched.least_peak_bytes,
        limit=time_limit,
        cpu_seconds=0.0,
    )
    if size > _MOST:
        return row
    found = least_peak(
        graph,
        backends=[backend],
        limits=SolverLimits(time_limit=time_limit, watch=watch, apart=True),
        **options,
    )
    return dataclasses.replace(
        row,
        variables=found.variables,
        rows=found.rows,
        first_seconds=watch.first,
        near_seconds=watch.near,
        seconds=watch.seconds(),
        status=found.failures[0] if found.status is Status.ERROR else found.status,
        value_bytes=found.peak_bytes,
        bound_bytes=found.bound_bytes,
        cpu_seconds=watch.cpu_seconds(),
    )


def places(
    step: PlannedStep, backends: Sequence[str], time_limit: float, done: Collection[Key] = ()
) -> Iterator[StepRow]:
    """The places of a step's entry computation in its order, by every variant and backend.

    Args:
      step: the step. backends: names. time_limit: seconds for each variant.
      done: rows to leave out.
    """
    items, _ = items_of(step.problem, 0)
    bound = least_height(items)
    packings = [first_fit(items, order) for order in greedy_orders(items).values()]
    begin = min(packings, key=lambda offsets: int((offsets + items.need).max()))
    for backend in backends:
        for variant, change in _PLACES.items():
            for name, form in _forms(variant, backend):
                if ("places", name, backend) in done:
                    continue
                programs = Programs(backend, form, **change)
                watch = _Watch(bound)
                variables = rows = 0
                value, proven = int((begin + items.need).max()), bound
                try:
                    found = located(
                        items,
                        begin,
                        bound=bound if programs.bound else 0,
                        target_height=bound if programs.bound else 0,
                        limits=SolverLimits(time_limit=time_limit, watch=watch),
                        programs=programs,
                    )
                except SolverError as error:
                    status = str(error)
                else:
                    variables, rows, status = found.variables, found.rows, found.status
                    value, proven = int((found.offsets + items.need).max()), found.bound
                yield StepRow(
                    step=step.case,
                    what="places",
                    variant=name,
                    backend=backend,
                    variables=variables,
                    rows=rows,
                    first_seconds=watch.first,
                    near_seconds=watch.near,
                    seconds=watch.seconds(),
                    status=status,
                    value_bytes=value,
                    bound_bytes=proven,
                    least_bytes=bound,
                    limit=time_limit,
                    cpu_seconds=watch.cpu_seconds(),
                )
