"""Section 4.4 of the paper on a planned module: places under its order, or both at once.

`plan(..., method="ilp")` finds the order; XLA then places buffers by a rule of its own. Here the
tensors of the entry computation are placed in one arena: by the integer program, equations (6) to
(8) and (15), and by the exact search. Small computations are also ordered and placed at once, by
equation (9).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator

from benchmarks.place_ilp.joint import joint_program
from benchmarks.place_ilp.located import Programs
from benchmarks.place_ilp.placer import place_by_programs
from benchmarks.placement_blocks import graph_problem, load_of, offsets_by_name
from hlo.backend import PLATFORMS
from olla_xla.check.graph import check_placement
from olla_xla.errors import InputError, OllaError, SolverError
from olla_xla.place import place
from olla_xla.planner import graphs
from olla_xla.problem.graph import TensorGraph
from olla_xla.solvers.linear import SolverLimits, Status, Watch

__all__ = ["PlacedBy", "arenas"]


@dataclasses.dataclass(frozen=True)
class PlacedBy:
    """The arena that one method found; sizes in bytes.

    Attributes:
      way: what found it. status: OPTIMAL, FEASIBLE at a limit, or UNKNOWN: nothing was found.
      height: of the arena; 0 where nothing was found. bound: no other is lower, this way.
      live_bytes: the largest live sum, of the order that was placed.
      seconds: what it took. message: why there is nothing more to say.
    """

    way: str
    status: Status
    height: int
    bound: int
    live_bytes: int
    seconds: float
    message: str = ""


def arenas(
    module: bytes,
    platform: str,
    backend: str,
    time_limit: float,
    progress: Callable[[str], None] | None = None,
    gap: float = 0.0,
) -> Iterator[PlacedBy]:
    """Arenas of a scheduled module's entry computation.

    Args:
      module: serialized HloModuleProto with the order. platform: "cpu" or "cuda".
      backend: of the programs. time_limit: seconds for each way.
      progress: called with incumbents and bounds, in one line. gap: of order and places at once.

    Raises:
      CheckError: a referee rejected what was found (a bug).
    """
    graph = graphs(module, platform)[-1]
    order = range(len(graph.operators))
    problem = graph_problem(graph, order, alignment=PLATFORMS[platform].alignment)
    live = load_of(problem)
    programs = Programs(backend, watch=_watch(f"places, {backend}", progress))
    for way, find in (
        ("places, search", functools.partial(place, problem)),
        (f"places, {backend}", functools.partial(place_by_programs, problem, programs=programs)),
    ):
        try:
            packing = find(time_limit=time_limit)
        except SolverError as error:
            yield PlacedBy(way, Status.UNKNOWN, 0, live, live, 0.0, str(error))
            continue
        offsets = offsets_by_name(graph, problem, packing)
        check_placement(graph, order, offsets, packing.height)
        yield PlacedBy(
            way,
            packing.status,
            packing.height,
            packing.bound,
            live,
            packing.seconds,
            f"by {packing.source}",
        )
    limits = SolverLimits(time_limit=time_limit, gap=gap, apart=True)
    yield _joint(graph, backend, limits, progress)


_MIB = 2**20


def _watch(way: str, progress: Callable[[str], None] | None) -> Watch | None:
    """Tells `progress` of incumbents and bounds, in MB of 2^20 bytes."""
    if progress is None:
        return None

    def on_progress(value: float | None, bound: float) -> None:
        best = "none yet" if value is None else f"{value / _MIB:.2f} MB"
        progress(f"{way}: incumbent {best}, bound {bound / _MIB:.2f} MB")

    return on_progress


def _joint(
    graph: TensorGraph,
    backend: str,
    limits: SolverLimits,
    progress: Callable[[str], None] | None,
) -> PlacedBy:
    """Order and places at once; nothing is in place by choice."""
    way, started = f"joint, {backend}", time.monotonic()
    try:
        found = joint_program(
            graph,
            limits=dataclasses.replace(limits, watch=_watch(way, progress)),
            backend=backend,
        )
    except (InputError, SolverError) as error:
        seconds = time.monotonic() - started
        return PlacedBy(way, Status.UNKNOWN, 0, 0, 0, seconds, _short(error))
    return PlacedBy(
        way,
        Status.OPTIMAL if found.optimal else Status.FEASIBLE,
        found.height,
        found.bound,
        found.peak_bytes,
        time.monotonic() - started,
        f"{found.variables:,} variables, {found.rows:,} rows, begun at {found.start:,}; nothing in "
        "place by choice",
    )


def _short(error: OllaError) -> str:
    """The first sentence of a message."""
    return str(error).split("; ")[0]
