"""Orders of unfused train steps by a solver alone, as the OLLA paper finds them.

The program begins at some legal order and is told no bound: neither the search nor its minimum cuts
help. One run with the longest limit says what was known at each shorter one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.growing_file import stored
from benchmarks.papers.eager.unfused import standing_graph
from benchmarks.papers.ilp_forms import least_peak
from benchmarks.schedule import Case
from olla_xla import schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.condense import reduce_graph
from olla_xla.schedule.search import phases
from olla_xla.solvers.linear import SolverLimits, Status
from olla_xla.solvers.programs.spans import coefficients
from olla_xla.tools import models

_MOST = 8_000_000  # coefficients of the largest linear program that is built, as in a plan
_SEARCH_SECONDS = 10.0
_NEAR = 1.01  # of the least peak that is known: the paper's "within 1 %"


@dataclasses.dataclass(frozen=True)
class Known:
    """The results that a solver had after `limit` seconds.

    Attributes:
      limit: seconds, building the program included. bytes: its best peak, or None for none.
      bound_bytes: its bound; 0 while there was none. proven: whether it had ended by then.
    """

    limit: float
    bytes: int | None
    bound_bytes: int
    proven: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One step by one form and backend.

    Attributes:
      step: model/batch_size/optimizer/target. form, backend: which program, which solver.
      operators: of the unfused graph. variables, rows: of the program; 0 where it is none.
      program_bytes: the peak of program order. least_bytes: the least that the search knows,
        search_bound_bytes: what no order is below, by cuts.
      near_seconds: until the peak was within 1 % of the least known, or None.
      seconds: to the end. status: "optimal", or what kept it from that. known: by limit.
    """

    step: str
    form: str
    backend: str
    operators: int
    variables: int
    rows: int
    program_bytes: int
    least_bytes: int
    search_bound_bytes: int
    near_seconds: float | None
    seconds: float
    status: str
    known: tuple[Known, ...]


def rows_from_json(text: str) -> list[Row]:
    """The rows that `benchmarks ilp_alone --out` wrote. Raises InputError if there are none."""
    return stored(text, list[Row], "ilp_alone")


def measure(case: Case, forms: Mapping[str, Sequence[str]], limits: Sequence[float]) -> list[Row]:
    """Orders a step's unfused graph by each form and backend, each alone.

    Args:
      case: the step; nothing is compiled, whatever its target. forms: name -> backends.
      limits: seconds at which to look; the last is the solver's.
    """
    model = models.build(case.model, batch_size=case.batch_size, optimizer=case.optimizer)
    graph = standing_graph(model)
    arrays = GraphArrays.of(graph)
    program = np.arange(arrays.n)
    starts = {"program": program, **schedule.candidates(arrays)}
    bound = forced_live_bound(arrays)[0]
    found = phases.search(arrays, starts, time_limit=_SEARCH_SECONDS, bound_bytes=bound)
    size = coefficients(reduce_graph(arrays).arrays)
    return [
        _row(
            Row(
                step=case.name,
                form=form,
                backend=backend,
                operators=arrays.n,
                variables=0,
                rows=0,
                program_bytes=peak_bytes(arrays, program),
                least_bytes=found.least_peak_bytes,
                search_bound_bytes=found.bound_bytes,
                near_seconds=None,
                seconds=0.0,
                status=f"not built: {size:,} coefficients",
                known=(),
            ),
            graph,
            sorted(limits),
            built=form == "intervals" or size <= _MOST,
        )
        for form, backends in forms.items()
        for backend in backends
    ]


def _row(row: Row, graph: TensorGraph, limits: Sequence[float], *, built: bool) -> Row:
    """The row with what the solver found, if its program is built."""
    if not built:
        return row
    started = time.monotonic()
    heard: list[tuple[float, int | None, int]] = []  # after seconds: best peak, bound

    def watch(value: float | None, bound: float) -> None:
        best = None if value is None else round(value)
        heard.append((time.monotonic() - started, best, max(round(bound), 0)))

    found = least_peak(
        graph,
        form=row.form,
        backends=[row.backend],
        limits=SolverLimits(time_limit=limits[-1], watch=watch, apart=True),
    )
    seconds = time.monotonic() - started
    solved = found.status is not Status.ERROR
    if solved:
        heard.append((seconds, found.peak_bytes, found.bound_bytes))
    near = [at for at, best, _ in heard if best is not None and best <= row.least_bytes * _NEAR]
    proven = found.status is Status.OPTIMAL
    return dataclasses.replace(
        row,
        variables=found.variables,
        rows=found.rows,
        near_seconds=min(near, default=None),
        seconds=seconds,
        status=found.status if solved else found.failures[0],
        known=tuple(
            _known_at(limit, heard, ended=seconds <= limit or limit == limits[-1], proven=proven)
            for limit in limits
        ),
    )


def _known_at(
    limit: float, heard: Sequence[tuple[float, int | None, int]], *, ended: bool, proven: bool
) -> Known:
    """What was heard within a limit; all of it if the solver had ended by then."""
    mine = [(best, bound) for at, best, bound in heard if ended or at <= limit]
    peaks = [best for best, _ in mine if best is not None]
    bounds = [bound for _, bound in mine]
    return Known(limit, min(peaks, default=None), max(bounds, default=0), ended and proven)
