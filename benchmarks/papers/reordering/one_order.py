"""Offsets for the tensors of a graph under an order.

Tensors of one buffer lie at one offset, and their space is free for others while none of them is
live. An output that takes over a dying operand's memory lies exactly where the operand did, since
an output that overlaps its operand otherwise would overwrite bytes before they are read. If this
ties too many tensors together, some outputs get memory of their own where the peak does not need
the operand's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from benchmarks.placement_blocks import graph_problem, load_of, offsets_by_name
from olla_xla.check.graph import check_placement
from olla_xla.errors import InputError
from olla_xla.place.placer import place
from olla_xla.place.problem import Packing, PlacementProblem
from olla_xla.problem.graph import TensorGraph


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where every tensor of a module lies.

    Attributes:
      total_bytes: size of the one arena that holds everything.
      offsets: tensor name -> (offset, size) in bytes; the tensor occupies [offset, offset + size).
    """

    total_bytes: int
    offsets: Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True, eq=False)
class GraphPlacement:
    """Offsets for one computation; sizes in bytes.

    Attributes:
      placement: every tensor with bytes -> (offset, size); the inside of an operator that calls a
        computation is named "operator()".
      live_bytes: the largest live sum, tensors rounded up to the alignment.
      packing: how the offsets were found; blocks as in `problem`.
      problem: the blocks.
      order: operator ids in the order for which they are.
      loose: whether hand-overs that the peak does not need were given up.
    """

    placement: Placement
    live_bytes: int
    packing: Packing
    problem: PlacementProblem
    order: tuple[int, ...]
    loose: bool = False

    @property
    def fragmentation(self) -> float:
        """(arena - largest live sum) / largest live sum."""
        return (self.placement.total_bytes - self.live_bytes) / max(self.live_bytes, 1)


def place_graph(
    graph: TensorGraph,
    order: Sequence[int],
    *,
    alignment: int = 64,
    pinned: Mapping[str, int] | None = None,
    time_limit: float = 5.0,
    node_limit: int | None = None,
    loose: bool | None = None,
) -> GraphPlacement:
    """Places the tensors of a graph, checked by both referees.

    Args:
      graph: the tensor graph. order: operator ids in execution order.
      alignment: of every offset (bytes).
      pinned: tensor name -> offset that its buffer must have (bytes), as arguments may.
      time_limit, node_limit: as in `place`.
      loose: whether hand-overs that the peak does not need are given up; None tries to do without.

    Raises:
      InputError: a pinned tensor is unknown, two pinned ones clash, or one is not aligned.
      CheckError: the referee rejected the offsets (a bug).
    """
    started = time.monotonic()
    pins = dict(pinned or {})
    tight = graph_problem(graph, order, alignment=alignment, pinned=pins)
    problem = tight
    if loose:
        problem = graph_problem(graph, order, alignment=alignment, pinned=pins, loose=True)
    share = time_limit / 2 if loose is None else time_limit
    best = place(problem, time_limit=share, node_limit=node_limit)
    if best.offsets is None:
        raise InputError(f"the pinned tensors of {graph.name} overlap while both live")
    live = load_of(tight)
    if best.height > live and loose is None:
        freed = graph_problem(graph, order, alignment=alignment, pinned=pins, loose=True)
        left = max(time_limit - (time.monotonic() - started), time_limit / 4)
        rival = place(freed, time_limit=left, node_limit=node_limit)
        if rival.offsets is not None and rival.height < best.height:
            best, problem = rival, freed
    return checked(graph, order, problem, best, live, loose=problem is not tight)


def checked(
    graph: TensorGraph,
    order: Sequence[int],
    problem: PlacementProblem,
    packing: Packing,
    live: int,
    *,
    loose: bool,
) -> GraphPlacement:
    """The offsets of a packing by name, accepted by the referee.

    Args:
      graph, order: as in `place_graph`. problem: their blocks. packing: with offsets.
      live: the largest live sum (bytes). loose: as in `GraphPlacement`.

    Raises:
      CheckError: the referee rejected the offsets (a bug).
    """
    offsets = offsets_by_name(graph, problem, packing)
    check_placement(graph, order, offsets, packing.height)
    placement = Placement(packing.height, offsets)
    return GraphPlacement(placement, live, packing, problem, tuple(order), loose)
