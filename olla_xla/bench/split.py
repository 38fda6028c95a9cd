"""Section 4.4 of the paper on a planned module: after its order, the places; or both at once.

`plan(..., method="ilp")` finds the order; XLA then places buffers by a rule of its own. Here the
tensors of the entry computation are placed in one arena by the integer program, (6) to (8) and
(15), beside the exact search, and small computations are ordered and placed at once, by (9).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from olla_xla.errors import InputError, OllaError, SolverError
from olla_xla.memory.assignment.model import ALIGNMENT
from olla_xla.place import Programs, place
from olla_xla.place.ilp.joint import joint_program
from olla_xla.place.tensors.blocks import graph_problem, load_of
from olla_xla.place.tensors.one_order import checked
from olla_xla.planner.module import graphs
from olla_xla.problem.graph import TensorGraph
from olla_xla.solvers.linear import Limits, Status

__all__ = ["PlacedBy", "split"]


@dataclasses.dataclass(frozen=True)
class PlacedBy:
    """One way to an arena; bytes.

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


def split(module: bytes, platform: str, backend: str, time_limit: float) -> Iterator[PlacedBy]:
    """Arenas of a scheduled module's entry computation.

    Args:
      module: serialized HloModuleProto with the order. platform: "cpu" or "cuda".
      backend: of the programs. time_limit: seconds for each way.

    Raises:
      CheckError: a referee rejected what was found (a bug).
    """
    graph = graphs(module, platform)[-1]
    order = range(len(graph.operators))
    problem = graph_problem(graph, order, alignment=ALIGNMENT[platform])
    live = load_of(problem)
    for way, method in (("places, search", "auto"), (f"places, {backend}", "ilp")):
        try:
            packing = place(
                problem, method=method, time_limit=time_limit, programs=Programs(backend)
            )
        except SolverError as error:
            yield PlacedBy(way, Status.UNKNOWN, 0, live, live, 0.0, str(error))
            continue
        checked(graph, order, problem, packing, live, loose=False)
        yield PlacedBy(way, packing.status, packing.height, packing.bound, live, packing.seconds)
    yield _joint(graph, backend, time_limit)


def _joint(graph: TensorGraph, backend: str, time_limit: float) -> PlacedBy:
    """Order and places at once, of the graph as the paper sees it."""
    way, started = f"joint, {backend}", time.monotonic()
    try:
        found = joint_program(
            graph,
            limits=Limits(time_limit=time_limit),
            backend=backend,
            start=range(len(graph.operators)),
        )
    except (InputError, SolverError) as error:
        seconds = time.monotonic() - started
        return PlacedBy(way, Status.UNKNOWN, 0, 0, 0, seconds, _short(error))
    status = Status.OPTIMAL if found.optimal else Status.FEASIBLE
    seconds = time.monotonic() - started
    return PlacedBy(way, status, found.height, found.bound, found.peak_bytes, seconds, _PLAIN)


_PLAIN = "tensors as the paper counts them: no sharing, arguments from their operator on"


def _short(error: OllaError) -> str:
    """The first sentence of a message."""
    return str(error).split("; ")[0]
