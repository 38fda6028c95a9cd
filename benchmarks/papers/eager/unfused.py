"""The OLLA paper's own comparison: a train step's unfused graph, run eagerly and planned by us.

Nothing is compiled: order and places are found for the StableHLO program itself, as for a
framework that runs operator by operator. Tensors are placed in one arena. As a program, it answers
a sweep's request, its argument.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

import olla_xla.schedule as schedule
from benchmarks.papers.arenas import arenas
from benchmarks.papers.eager.allocator_time import allocator_time
from benchmarks.papers.eager.graph import Program, program
from benchmarks.papers.eager.requests import ALLOCATORS, run_eagerly
from benchmarks.placement_blocks import graph_problem
from hlo.module import module_from_bytes
from hlo.text import from_stablehlo
from olla_xla.check.graph import check_schedule
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing
from olla_xla.problem.graph import TensorGraph
from olla_xla.schedule.search import phases
from olla_xla.tools import models
from olla_xla.tools.models import BuiltModel, tracing
from olla_xla.tools.sweep.cell import answer
from olla_xla.tools.sweep.grid import KEY, Cell, SweepSettings

LOOP_STEPS = 3
"""Steps of a training loop after which an allocator's reserve hardly grows."""

_ALLOCATOR = "block splitting"
_PLACE_SECONDS = 300.0  # as the paper gives its solvers, at most
_LOAD_SECONDS = 1.0  # of search, after which its loops are loaded


@dataclasses.dataclass(frozen=True)
class Unfused:
    """An unfused program eagerly run, and planned. Sizes in bytes, gaps and so on as shares.

    Attributes:
      eager_live_bytes: largest live sum in program order, gradients kept to the end.
      eager_reserved_bytes: what the caching allocator took from the device.
      eager_fragmentation: share of the reserved bytes that held nothing at the peak.
      peak_bytes: lifetime peak of our order, as placed. bound_bytes: no order has a lower one.
      lifetime_gap: one over the other, less one.
      placed_bytes: the arena in which its tensors were placed.
      operators: how many the program has.
      order_seconds, place_seconds: what finding them took, loops loaded before.
      requests: allocations and frees of an eager step. request_seconds: what they take, of the C
        library's allocator. caching_seconds: of a framework's rules, compiled.
      blocks: tensors placed. best_fit_bytes, best_fit_seconds: their arena by best fit alone, and
        the time it takes. load_bytes: no places make a lower arena for our order.
    """

    eager_live_bytes: int
    eager_reserved_bytes: int
    eager_fragmentation: float
    peak_bytes: int
    bound_bytes: int
    lifetime_gap: float
    placed_bytes: int
    operators: int
    order_seconds: float
    place_seconds: float
    requests: int
    request_seconds: float
    caching_seconds: float
    blocks: int
    best_fit_bytes: int
    best_fit_seconds: float
    load_bytes: int
    loop_reserved_bytes: int
    loop_fragmentation: float


def plan_unfused(
    model: BuiltModel, time_limit: float, *, step_limit: int | None = None, seed: int = 0
) -> Unfused:
    """Lowers a model's step and plans its unfused program; see `plan_program`."""
    return plan_program(_program(model), time_limit, step_limit=step_limit, seed=seed)


def standing_graph(model: BuiltModel) -> TensorGraph:
    """The graph of a model's unfused program that `plan_unfused` orders and places."""
    return _standing(_program(model).graph)


def _program(model: BuiltModel) -> Program:
    import jax

    with tracing(model.name):
        lowered = jax.jit(model.step, **model.jit_options).lower(*model.arguments)
    return program(module_from_bytes(from_stablehlo(lowered.as_text(debug_info=True))))


def plan_program(
    found: Program, time_limit: float, *, step_limit: int | None = None, seed: int = 0
) -> Unfused:
    """Simulates an eager run of a program, then orders it and places its tensors.

    The order is searched for the least lifetime peak.

    Args:
      found: the program.
      time_limit: seconds of search for the order, at most. step_limit, seed: as in `PlanOptions`.

    Raises:
      CheckError: the referee rejected order or places (a bug).
    """
    eager = run_eagerly(found, ALLOCATORS[_ALLOCATOR]())
    loop = run_eagerly(found, ALLOCATORS[_ALLOCATOR](), LOOP_STEPS)
    graph = _standing(found.graph)
    arrays = GraphArrays.of(graph)
    load_machine_code(arrays)
    started = time.monotonic()
    starts = {"program": np.arange(arrays.n), **schedule.candidates(arrays)}
    result = phases.search(
        arrays,
        starts,
        time_limit=time_limit,
        step_limit=step_limit,
        seed=seed,
        bound_bytes=forced_live_bound(arrays)[0],
    )
    ordered = time.monotonic() - started
    order = result.order.tolist()
    check_schedule(graph, order, result.peak_bytes)
    placed = arenas(graph, order, _PLACE_SECONDS)[-1]
    peak = min(result.peak_bytes, placed.live_bytes)  # of the order that was placed in the end
    alone = _best_fit(graph, order)
    requests, request_seconds, caching = allocator_time(found)
    return Unfused(
        eager_live_bytes=eager.peak_live_bytes,
        eager_reserved_bytes=eager.peak_reserved_bytes,
        eager_fragmentation=eager.fragmentation,
        peak_bytes=peak,
        bound_bytes=result.bound_bytes,
        lifetime_gap=peak / max(result.bound_bytes, 1) - 1,
        placed_bytes=placed.bytes,
        operators=arrays.n,
        order_seconds=round(ordered, 3),
        place_seconds=round(placed.seconds, 3),
        requests=requests,
        request_seconds=request_seconds,
        caching_seconds=caching,
        blocks=len(alone.offsets) if alone.offsets is not None else 0,
        best_fit_bytes=alone.height,
        best_fit_seconds=alone.seconds,
        load_bytes=sum(alone.bounds.values()),
        loop_reserved_bytes=loop.peak_reserved_bytes,
        loop_fragmentation=loop.fragmentation,
    )


def load_machine_code(arrays: GraphArrays) -> None:
    """Bounds, rules and search once, so that what loads or compiles their loops is not timed."""
    forced_live_bound(arrays)
    starts = {"program": np.arange(arrays.n), **schedule.candidates(arrays)}
    phases.search(arrays, starts, time_limit=_LOAD_SECONDS)


def _best_fit(graph: TensorGraph, order: list[int]) -> Packing:
    """Best fit alone; the second time, when its machine code is loaded."""
    problem = graph_problem(graph, order, alignment=1)
    place(problem, method="best_fit")
    return place(problem, method="best_fit")


def _standing(graph: TensorGraph) -> TensorGraph:
    """The graph in which an argument that is replaced keeps its memory during the whole step.

    A framework's weights and moments do so. Using their memory for other tensors in between would
    tie the offsets of all these tensors together, and the result that replaces the argument needs
    no memory of its own.
    """
    held = {t.buffer for t in graph.tensors if t.live_in}
    members = Counter(t.buffer for t in graph.tensors)
    shared = {b for b in held if members[b] > 1}
    tensors = tuple(
        t
        if t.buffer not in shared
        else dataclasses.replace(t, live_out=True)
        if t.live_in
        else dataclasses.replace(t, bytes=0, buffer=len(graph.tensors) + k)
        for k, t in enumerate(graph.tensors)
    )
    kept = [t.buffer not in shared for t in graph.tensors]
    pairs = tuple((b, a) for b, a in graph.inplace if kept[a] and kept[b])
    return dataclasses.replace(graph, tensors=tensors, inplace=pairs)


COLUMNS: tuple[str, ...] = (
    *KEY,
    *(field.name for field in dataclasses.fields(Unfused)),
    "seconds",
    "error",
)
"""The columns of a row, of mode `eager`: predicted sizes in bytes, see `Unfused`."""


def unfused(cell: Cell, settings: SweepSettings) -> dict[str, Any]:
    """Simulates an eager run of a cell's model, and plans it. Raises OllaError."""
    model = models.build(cell.model, batch_size=cell.batch_size, optimizer=cell.optimizer)
    found = plan_unfused(
        model, settings.time_limit or math.inf, step_limit=settings.step_limit, seed=settings.seed
    )
    return dataclasses.asdict(found)


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], unfused))
