"""Places the tensors of a graph in a process of its own, which is ended when its time is up.

A single try of the exact search looks at no clock and may take minutes on thousands of blocks. What
was found before the time was up counts.
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

from olla_xla.check import check_placement
from olla_xla.errors import OllaError
from olla_xla.problem import TensorGraph

__all__ = ["Placed", "placings"]

NODES = (20_000, 40_000)
"""Growing limits of the search, each a run of its own; equal graphs get equal places unless the
time is up."""
_SHARES = (0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
"""Shares above the largest live sum that are tried before, once each and without backtracking."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """An arena that the referees accepted.

    Attributes:
      seconds: since the start, of placing alone. bytes: of the arena. live_bytes: no packing under
        this order is smaller. source: what found it.
    """

    seconds: float
    bytes: int
    live_bytes: int
    source: str


def placings(graph: TensorGraph, order: Sequence[int], seconds: float) -> list[Placed]:
    """The arenas found within `seconds`, by time; the last is the least.

    Each heuristic alone comes first, then short tries at falling heights, then all of them and the
    search under each of `NODES`, until an arena has no fragmentation.

    Raises:
      OllaError: the process failed, or not even a heuristic was done in time.
    """
    paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        run = subprocess.run(
            [sys.executable, "-m", "olla_xla.placing"],
            input=pickle.dumps((graph, list(order))),
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
    found = [Placed(**json.loads(line)) for line in whole.splitlines()]
    if not found:
        raise OllaError(f"nothing was placed within {seconds:g} s")
    return found


def _found(graph: TensorGraph, order: list[int]) -> Iterator[Placed]:
    """Arenas as they are found, each less than the one before or the last of all."""
    from olla_xla.place.graph import graph_problem, place_graph
    from olla_xla.place.placer import place

    problem = graph_problem(graph, order, alignment=1)  # so that sizes are the tensors' own
    methods = ("greedy_size", "greedy_area", "best_fit")
    for method in methods:
        place(problem, method=method)  # loads its machine code
    started = time.monotonic()
    best: int | None = None
    for method in methods:
        alone = place(problem, method=method)
        if best is None or alone.height < best:
            best = alone.height
            yield Placed(time.monotonic() - started, best, alone.bound, method)
    for share in _SHARES:
        height = int(alone.bound * (1 + share))
        if best is None or height >= best or best <= alone.bound:
            continue
        capped = dataclasses.replace(problem, capacity={0: height})
        tried = place(capped, method="search", node_limit=len(problem.names), time_limit=1e6)
        if tried.offsets is None:
            break
        offsets = {
            name: (int(offset), int(size))
            for name, offset, size in zip(problem.names, tried.offsets, problem.size, strict=True)
        }
        check_placement(graph, order, offsets, tried.height)
        best = tried.height
        yield Placed(time.monotonic() - started, best, alone.bound, f"search, {share:.2%} above")
    for nodes in NODES:
        found = place_graph(graph, order, alignment=1, time_limit=1e6, node_limit=nodes)
        total, live = found.placement.total_bytes, found.live_bytes
        if best is None or total < best or total <= live or nodes == NODES[-1]:
            best = total if best is None else min(best, total)
            source = f"{found.packing.source}, {nodes} nodes"
            yield Placed(time.monotonic() - started, best, live, source)
        if best <= live:
            return


def main() -> int:
    """Prints a line for each arena."""
    for placed in _found(*pickle.load(sys.stdin.buffer)):
        print(json.dumps(dataclasses.asdict(placed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
