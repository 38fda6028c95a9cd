"""Measures placing: MiniMalloc's instances, the plans of real train steps, many random blocks.

Sizes are in bytes, those of MiniMalloc's instances in their own units. Fragmentation is
(height - largest live sum) / largest live sum.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.growing_file import stored
from benchmarks.papers.placed_orders import place_reordered
from benchmarks.place_ilp import FORMS, Programs, place_by_programs
from benchmarks.placement_blocks import graph_problem, load_of
from benchmarks.schedule import Case, capture_case
from hlo.backend import PLATFORMS
from olla_xla.errors import SolverError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.place import Packing, PlacementProblem, place
from olla_xla.place.trace import read_trace
from olla_xla.planner import apply_plan, graphs, plan_module
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.options import PlanOptions
from olla_xla.solvers.linear import Status
from olla_xla.tools.assignment_report import live_bytes

PLANS = tuple(
    Case(model, batch_size, optimizer, target)
    for target in ("cpu", "h100")
    for model in ("resnet50", "vgg11", "efficientnet_b0", "gpt")
    for batch_size in (1, 4)
    for optimizer in ("adam", "momentum")
)
"""The 32 plans whose tensors are placed by default."""


@dataclasses.dataclass(frozen=True)
class InstanceRow:
    """One of MiniMalloc's instances.

    Attributes:
      name: its letter. blocks: how many. capacity: to stay within. load: the largest live sum.
      height: of the packing found within the capacity, or None. seconds, nodes: to find it.
      least: the least height found. bound: no packing is lower. least_seconds: to find `least`.
    """

    name: str
    blocks: int
    capacity: int
    load: int
    height: int | None
    seconds: float
    nodes: int
    least: int | None
    bound: int
    least_seconds: float

    @property
    def ratio(self) -> float:
        """The least height reached over the largest live sum."""
        return float("inf") if self.least is None else self.least / self.load


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedStep:
    """A planned train step: its case, module (serialized) and platform, and its entry's graph."""

    case: str
    module: bytes
    platform: str
    graph: TensorGraph

    @functools.cached_property
    def problem(self) -> PlacementProblem:
        """The blocks of the entry computation, in the planned order."""
        order = range(len(self.graph.operators))
        return graph_problem(self.graph, order, alignment=PLATFORMS[self.platform].alignment)


@dataclasses.dataclass(frozen=True)
class ProgramRow:
    """The places of one problem by the integer program, beside the exact search. Bytes.

    Attributes:
      case: its name. blocks: how many. backend, form: of the program.
      load_bytes: the largest live sum.
      height, bound: of the program's packing; None where the solver failed.
      seconds: to find and prove it. status: of it, or why the solver failed.
      by: what found it: a greedy rule, repair of its packing, or the programs; "" where none did.
      search_height, search_seconds, search_status: of the exact search alone; None where it found
        nothing.
      start: whether the programs began at the packing of the greedy rules.
      cpu_seconds, search_cpu_seconds: of the seconds, what the machine gave.
    """

    case: str
    blocks: int
    backend: str
    form: str
    load_bytes: int
    height: int | None
    bound: int | None
    seconds: float
    status: str
    search_height: int | None
    search_seconds: float
    search_status: str
    by: str
    cpu_seconds: float
    search_cpu_seconds: float
    start: bool


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """The plan of one train step, its entry computation.

    Attributes:
      case: its name. blocks: tensors placed.
      live_bytes: the largest live sum of the order that the offsets are for (aligned).
      arena_bytes: of our offsets. seconds: to find them. status: of the packing.
      xla_live_bytes: largest live sum of what XLA placed in its heap, under this order.
      xla_heap_bytes: what its packing of that takes (simulated rule).
      moved: operators at another step than in the plan; where offsets leave a gap to the live sum
        of the plan's order, others of no larger sum are tried.
      planned_bytes: the largest live sum of the plan's own order (aligned); live_bytes is never
        more.
    """

    case: str
    blocks: int
    live_bytes: int
    arena_bytes: int
    seconds: float
    status: Status
    xla_live_bytes: int
    xla_heap_bytes: int
    moved: int = 0
    planned_bytes: int = 0

    @property
    def fragmentation(self) -> float:
        """Fragmentation of our offsets, relative to the live sum of their own order."""
        return self.arena_bytes / max(self.live_bytes, 1) - 1

    @property
    def change(self) -> float:
        """(arena - live sum of the plan's own order) / that live sum; negative if it is below."""
        return self.arena_bytes / max(self.planned_bytes or self.live_bytes, 1) - 1

    @property
    def xla_fragmentation(self) -> float:
        """Fragmentation of XLA's heap."""
        return self.xla_heap_bytes / max(self.xla_live_bytes, 1) - 1


@dataclasses.dataclass(frozen=True)
class RandomRow:
    """Many random blocks: bytes, seconds and what placed them."""

    blocks: int
    height: int
    bound: int
    seconds: float
    source: str

    @property
    def gap(self) -> float:
        """(height - bound) / bound."""
        return self.height / self.bound - 1


def instances() -> Iterator[tuple[str, int, PlacementProblem]]:
    """Name, capacity and blocks of MiniMalloc's challenging instances."""
    folder = importlib.resources.files("benchmarks") / "minimalloc"
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        found = re.fullmatch(r"(\w+)\.(\d+)\.csv", entry.name)
        if found:
            with importlib.resources.as_file(entry) as path:
                yield found[1], int(found[2]), read_trace(path)


def warm_up() -> None:
    """Loads the machine code once in a process, so that no measurement includes it."""
    problem = PlacementProblem.of([0, 1, 0], [2, 3, 3], [3, 2, 1])
    for method in ("auto", "search"):
        place(problem, method=method)


def measure_instance(
    name: str, capacity: int, problem: PlacementProblem, *, time_limit: float, least_limit: float
) -> InstanceRow:
    """Solves an instance within its capacity, then looks for its least height.

    Args:
      time_limit, least_limit: seconds for the one and the other.
    """
    limited = dataclasses.replace(problem, capacity={0: capacity})
    packing = place(limited, time_limit=time_limit)
    least = place(problem, time_limit=least_limit)
    reached = [p.height for p in (packing, least) if p.offsets is not None]
    return InstanceRow(
        name=name,
        blocks=len(problem),
        capacity=capacity,
        load=packing.bound,
        height=None if packing.offsets is None else packing.height,
        seconds=packing.seconds,
        nodes=packing.nodes,
        least=min(reached, default=None),
        bound=least.bound,
        least_seconds=least.seconds,
    )


def planned_step(case: Case, options: PlanOptions) -> PlannedStep:
    """Compiles and plans a train step. Raises OllaError if that fails."""
    captured, _ = capture_case(case)
    module, platform = captured.module, captured.platform
    plan = plan_module(module, options, target=platform, xla_bytes=captured.assigned_bytes)
    planned = apply_plan(module, plan)
    return PlannedStep(case.name, planned, platform, graphs(planned, platform)[-1])


def measure_plan(step: PlannedStep, *, time_limit: float) -> PlanRow:
    """Places the tensors of a planned step's entry computation, for `time_limit` seconds."""
    graph, platform = step.graph, step.platform
    started = time.monotonic()
    found = place_reordered(
        graph,
        range(len(graph.operators)),
        alignment=PLATFORMS[platform].alignment,
        time_limit=time_limit,
    )
    seconds = time.monotonic() - started
    planned_bytes = load_of(step.problem)
    assert found.live_bytes <= planned_bytes, "another order needs more than the plan's own"
    live, heap = simulated_heap(PlannedModule(scheduled_module(step.module), platform))
    return PlanRow(
        case=step.case,
        blocks=len(found.problem),
        live_bytes=found.live_bytes,
        arena_bytes=found.arena_bytes,
        seconds=seconds,
        status=found.packing.status,
        xla_live_bytes=live,
        xla_heap_bytes=heap,
        moved=sum(step != v for step, v in enumerate(found.order)),
        planned_bytes=planned_bytes,
    )


def simulated_heap(planned: PlannedModule) -> tuple[int, int]:
    """(largest live sum, size) of XLA's temporary heaps under the module's order, in bytes.

    They are simulated, since nothing is compiled here.
    """
    simulated = planned.simulate()
    size = np.array([v.bytes for v in planned.dataflow.values], np.int64)
    live = total = 0
    heaps = np.unique(simulated.allocation[simulated.offset > 0])
    for heap in heaps:
        mine = np.flatnonzero((simulated.allocation == heap) & (size > 0))
        live += live_bytes(
            simulated.start[mine], simulated.end[mine], simulated.offset[mine], size[mine]
        )
        total += int(simulated.sizes[heap])
    return live, total


def measure_programs(
    case: str, problem: PlacementProblem, backends: Sequence[str], *, time_limit: float
) -> Iterator[ProgramRow]:
    """Places blocks by the integer program with each backend, `time_limit` seconds each.

    CP-SAT has a row for each form. Where a greedy rule or its repair has met the largest live sum,
    there is a row for the programs alone as well.
    """
    before = sum(os.times()[:4])
    search = place(problem, method="search", time_limit=time_limit)
    search_cpu = sum(os.times()[:4]) - before
    for backend in backends:
        for form in (form for form, able in FORMS.items() if backend in able):
            for start in (True, False):
                programs = Programs(backend, form, start=start)
                found, seconds, cpu, failed = _by_programs(problem, programs, time_limit)
                yield ProgramRow(
                    case=case,
                    blocks=len(problem),
                    backend=backend,
                    form=form,
                    load_bytes=load_of(problem),
                    height=None if found is None else found.height,
                    bound=None if found is None else found.bound,
                    seconds=seconds,
                    status=failed if found is None else found.status,
                    search_height=None if search.offsets is None else search.height,
                    search_seconds=search.seconds,
                    search_status=search.status,
                    by="" if found is None else found.source,
                    cpu_seconds=cpu,
                    search_cpu_seconds=search_cpu,
                    start=start,
                )
                if found is None or found.source.startswith("ilp"):
                    break  # the programs were asked already


def _by_programs(
    problem: PlacementProblem, programs: Programs, time_limit: float
) -> tuple[Packing | None, float, float, str]:
    """(the packing, seconds, CPU seconds, why there is none)."""
    before, started = sum(os.times()[:4]), time.monotonic()
    found, failed = None, ""
    try:
        found = place_by_programs(problem, programs=programs, time_limit=time_limit)
    except SolverError as error:
        failed = str(error)
    return found, time.monotonic() - started, sum(os.times()[:4]) - before, failed


def measure_random(blocks: int, seed: int = 0) -> RandomRow:
    """Places random blocks by the heuristics: mean life 200 requests, 64 to 64,000 bytes."""
    random = np.random.default_rng(seed)
    lower = random.integers(0, blocks, blocks)
    problem = PlacementProblem.of(
        lower, lower + 1 + random.geometric(0.005, blocks), random.integers(1, 1001, blocks) * 64
    )
    started = time.monotonic()
    packings = [place(problem, method=m) for m in ("best_fit", "greedy_size", "greedy_area")]
    best = min(packings, key=lambda p: p.height)
    return RandomRow(blocks, best.height, best.bound, time.monotonic() - started, best.source)


def programs_from_json(text: str) -> list[ProgramRow]:
    """The rows of programs in what was written of `as_json`. Raises InputError if they are none."""
    return stored(text, list[ProgramRow], "place", "programs")


def as_json(
    solved: Sequence[InstanceRow],
    plans: Sequence[PlanRow],
    random: Sequence[RandomRow],
    programs: Sequence[ProgramRow] = (),
) -> dict[str, Any]:
    """Everything as plain JSON, with a summary."""
    summary: dict[str, Any] = {}
    if solved:
        summary |= {
            "solved": sum(r.height is not None for r in solved),
            "within_10_s": sum(r.height is not None and r.seconds <= 10 for r in solved),
            "sum_seconds": sum(r.seconds for r in solved),
        }
    if plans:
        summary |= {
            "plans_without_fragmentation": sum(r.fragmentation == 0 for r in plans) / len(plans),
            "plans_within_their_live_sum": sum(r.change <= 0 for r in plans) / len(plans),
            "plans_median_seconds": statistics.median(r.seconds for r in plans),
            "mean_fragmentation": statistics.fmean(r.fragmentation for r in plans),
            "mean_xla_fragmentation": statistics.fmean(r.xla_fragmentation for r in plans),
        }
    for backend in sorted({r.backend for r in programs}):
        rows = [r for r in programs if r.backend == backend]
        proven = {r.case for r in rows if r.status == Status.OPTIMAL}
        summary[f"proven_by_{backend}"] = len(proven)
    if programs:
        summary["cases"] = len({r.case for r in programs})
    return {
        "programs": [dataclasses.asdict(r) for r in programs],
        "instances": [dataclasses.asdict(r) | {"ratio": r.ratio} for r in solved],
        "plans": [
            dataclasses.asdict(r)
            | {
                "fragmentation": r.fragmentation,
                "change": r.change,
                "xla_fragmentation": r.xla_fragmentation,
            }
            for r in plans
        ],
        "random": [dataclasses.asdict(r) | {"gap": r.gap} for r in random],
        "summary": summary,
    }
