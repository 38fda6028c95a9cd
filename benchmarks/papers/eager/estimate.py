"""Memory of one unfused module under every baseline, and planned by OLLA's method and by ours."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from benchmarks.growing_file import stored
from benchmarks.papers.eager.conflicts import coloured, induced_edges
from benchmarks.papers.eager.graph import Program, forward_only, program
from benchmarks.papers.eager.requests import ALLOCATORS, eager_requests, run_eagerly
from benchmarks.papers.eager.static import MAX_ANCESTORS, Assignment, assign
from benchmarks.papers.eager.storages import check_storages
from benchmarks.papers.eager.unfused import plan_program
from hlo.module import Module
from olla_xla.errors import InputError
from olla_xla.place import PlacementProblem, place

MODES = ("training", "inference")
_ENCOURAGED = "encouraged"
_STATIC: dict[str, tuple[bool, bool, str | None]] = {
    "no sharing": (False, False, None),
    "in place": (True, False, None),
    "sharing": (False, True, None),
    "in place + sharing": (True, True, None),
    "both, own colour first": (True, True, _ENCOURAGED),
    "both, parallel by colour": (True, True, "colour"),
    "both, parallel by ancestors": (True, True, "ancestors"),
}
"""Name -> in place, sharing, rule for parallel engines."""

PLANNERS = (*_STATIC, "colouring by conflicts")
"""The static planners of MXNet's note, by name."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The memory that one baseline takes, in bytes.

    Attributes:
      planner: its name.
      total_bytes: everything, at the peak: arguments, results, gradients, temporaries. None where
        the module is too large for the planner.
      reserved_bytes: what a caching allocator takes from the device for it; None if static.
      peak_fragmentation: share of the reserved bytes not in use when most bytes are live; None if
        static. fragmentation: the same when the reservation has just grown to its largest.
      added_edges: dependencies that the plan adds to the data flow (`induced_edges`); None where
        there are none to count, or too many operators to count them.
      blocks, seconds: of best fit: how many, and the time it takes to place them, loops loaded.
      live_bytes: what no places of those blocks are below; None but for best fit.
    """

    planner: str
    total_bytes: int | None
    reserved_bytes: int | None = None
    fragmentation: float | None = None
    added_edges: int | None = None
    peak_fragmentation: float | None = None
    blocks: int | None = None
    seconds: float | None = None
    live_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Estimates:
    """All baselines of one module.

    Attributes:
      operators: how many the program has.
      argument_bytes, output_bytes: results that replace donated arguments are not counted.
      gradient_bytes: what an optimizer in the program reads.
      rows: one for each baseline.
    """

    operators: int
    argument_bytes: int
    output_bytes: int
    gradient_bytes: int
    rows: tuple[Estimate, ...]


def estimate(
    module: Module, mode: str = "training", *, time_limit: float | None = None
) -> Estimates:
    """Runs every baseline on an unfused module (StableHLO, read by `hlo.dumps.read`).

    Args:
      module: with JAX's op names, by which the backward pass is known.
      mode: one of `MODES`; "inference" leaves out the backward pass and what depends on it.
      time_limit: seconds for OLLA's order, before its places; None leaves that row out.

    Raises:
      InputError: the mode is unknown, or there is nothing but a backward pass.
      CheckError: the referee rejects an assignment.
    """
    found = of_mode(module, mode)
    graph = found.graph
    gradient_bytes = sum(graph.tensors[t].bytes for t in found.gradients)
    rows = []
    for name, allocator in ALLOCATORS.items():
        run = run_eagerly(found, allocator())
        rows.append(
            Estimate(
                f"eager, {name}",
                run.peak_live_bytes,
                run.peak_reserved_bytes,
                run.fragmentation,
                peak_fragmentation=run.peak_fragmentation,
            )
        )
    fixed = found.argument_bytes + found.output_bytes + gradient_bytes
    for name in PLANNERS:
        rule = _STATIC[name][2] if name in _STATIC else None
        if rule == "ancestors" and len(graph.operators) > MAX_ANCESTORS:
            rows.append(Estimate(name, None))
            continue
        parallel = rule not in (None, _ENCOURAGED)
        rows.append(_static(name, found, assignment(found, name), fixed, parallel))
    rows.append(best_fit(found))
    if time_limit is not None:
        unfused = plan_program(found, time_limit)
        rows.append(Estimate("OLLA: order and places", unfused.placed_bytes))
    return Estimates(
        len(graph.operators),
        found.argument_bytes,
        found.output_bytes,
        gradient_bytes,
        tuple(rows),
    )


def of_mode(module: Module, mode: str) -> Program:
    """The program of an unfused module, or its forward pass.

    Raises InputError as `estimate` does.
    """
    if mode not in MODES:
        raise InputError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    found = program(module)
    return forward_only(found) if mode == "inference" else found


def assignment(found: Program, planner: str) -> Assignment:
    """The storages of one of PLANNERS. Raises InputError if there is no such planner."""
    if planner not in PLANNERS:
        raise InputError(f"no planner {planner!r}; there are {', '.join(PLANNERS)}")
    if planner not in _STATIC:
        return coloured(found)
    in_place, sharing, rule = _STATIC[planner]
    encouraged = rule == _ENCOURAGED
    return assign(
        found,
        in_place=in_place,
        sharing=sharing,
        parallel=None if encouraged else rule,
        encouraged=encouraged,
    )


def profile(found: Program) -> PlacementProblem:
    """One eager step as Sekiyama et al. record it: a block for each allocation, by request."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    requests = eager_requests(found)
    for time, request in enumerate(requests):
        (last if request < 0 else first)[abs(request) - 1] = time
    numbers = [k for k in first if found.graph.tensors[k].bytes]
    return PlacementProblem.of(
        [first[k] for k in numbers],
        [last.get(k, len(requests)) for k in numbers],
        [found.graph.tensors[k].bytes for k in numbers],
    )


def best_fit(found: Program) -> Estimate:
    """The row of best fit from a program's profile, timed."""
    problem = profile(found)
    place(problem, method="best_fit")  # loads its machine code
    alone = place(problem, method="best_fit")
    return Estimate(
        "best fit by profile",
        alone.height,
        blocks=len(problem),
        seconds=alone.seconds,
        live_bytes=sum(alone.bounds.values()),
    )


def _static(name: str, found: Program, made: Assignment, fixed: int, parallel: bool) -> Estimate:
    """The row of a static planner, accepted by the referee."""
    check_storages(found.graph, made.storage, made.sizes, parallel=parallel)
    small = len(found.graph.operators) <= MAX_ANCESTORS
    edges = len(induced_edges(found.graph, made)) if small else None
    return Estimate(name, fixed + made.bytes, added_edges=edges)


@dataclasses.dataclass(frozen=True)
class ModelEstimates:
    """The estimates of one train step.

    Attributes:
      model, batch_size, optimizer: of the step. mode: of the estimate.
      target: what the rows of the compiled step are for, or "" where there are none.
      found: the rows.
    """

    model: str
    batch_size: int
    optimizer: str
    mode: str
    target: str
    found: Estimates

    @property
    def key(self) -> tuple[str, int, str, str, str]:
        """The fields that identify it."""
        return self.model, self.batch_size, self.optimizer, self.mode, self.target


def to_json(rows: Sequence[ModelEstimates]) -> str:
    """The estimates as text, a line for each model."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(row)) for row in rows)
    return f"[\n{lines}\n]\n"


def from_json(text: str) -> list[ModelEstimates]:
    """What `to_json` wrote. Raises InputError if it is something else."""
    return stored(text, list[ModelEstimates], "estimate")
