"""Places the tensors of a graph in a separate process, which is ended when its time is up.

The search for one order may exceed its time limit on thousands of blocks. Results that
the process printed before its end count.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.papers.placed_orders import place_reordered
from benchmarks.placement_blocks import graph_problem
from olla_xla.errors import OllaError
from olla_xla.place.placer import place
from olla_xla.problem.graph import TensorGraph

_ORDERS_SECONDS = 10.0
"""The time limit of `place_reordered`, for each order that it tries."""

_LOAD = 0.5
"""Seconds of search whose result is not used: the machine code that it loads is not timed."""

_SEARCH_SHARE = 0.9
"""Part of the time after which no other order is tried: what was found is still to be told."""


@dataclasses.dataclass(frozen=True)
class Arena:
    """An arena that the referees accepted.

    Attributes:
      seconds: since the start, of placing alone. bytes: of the arena. live_bytes: no packing under
        the order that was used is smaller (the given one, but at the end). source: what found it.
    """

    seconds: float
    bytes: int
    live_bytes: int
    source: str


def arenas(graph: TensorGraph, order: Sequence[int], seconds: float) -> list[Arena]:
    """The arenas found within `seconds`, by time; the last is the least.

    Each heuristic alone comes first, then the search, under this order and others of no
    larger live sum, until an arena has no fragmentation.

    Raises:
      OllaError: the process failed, or not even a heuristic was done in time.
    """
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.papers.arenas"],
            input=pickle.dumps((graph, list(order), _SEARCH_SHARE * seconds)),
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        written = run.stdout
        if run.returncode:
            said = run.stderr.decode(errors="replace").splitlines()
            raise OllaError(f"placing failed: {said[-1] if said else run.returncode}")
    except subprocess.TimeoutExpired as late:
        written = late.stdout or b""
    whole = written[: written.rfind(b"\n") + 1]
    found = [Arena(**json.loads(line)) for line in whole.splitlines()]
    if not found:
        raise OllaError(f"nothing was placed within {seconds:g} s")
    return found


def _found(graph: TensorGraph, order: list[int], seconds: float) -> Iterator[Arena]:
    """Arenas as they are found, each less than the one before or the last of all."""
    problem = graph_problem(graph, order, alignment=1)  # so that sizes are the tensors' own
    methods = ("greedy_size", "greedy_area", "best_fit")
    packings = [place(problem, method=method) for method in methods]  # loads their machine code
    if min(p.height for p in packings) > packings[0].bound:
        place_reordered(graph, order, alignment=1, time_limit=_LOAD, total_limit=_LOAD)
    started = time.monotonic()
    best: int | None = None
    for method in methods:
        alone = place(problem, method=method)
        if best is None or alone.height < best:
            best = alone.height
            yield Arena(time.monotonic() - started, best, alone.bound, method)
    if best is not None and best <= alone.bound:
        return
    found = place_reordered(
        graph, order, alignment=1, time_limit=_ORDERS_SECONDS, total_limit=seconds
    )
    total, live = found.arena_bytes, found.live_bytes
    if best is None or total < best:
        yield Arena(time.monotonic() - started, total, live, "search, other orders")


def main() -> int:
    """Prints a line for each arena."""
    for arena in _found(*pickle.load(sys.stdin.buffer)):
        print(json.dumps(dataclasses.asdict(arena)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
