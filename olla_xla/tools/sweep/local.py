"""Cells in parallel on this machine, as memory allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from olla_xla.tools.sweep.grid import Cell, SweepSettings
from olla_xla.tools.sweep.process import KILLED, run_process

_PATIENCE = 2.0
"""Seconds between checks of the free memory."""


def run_local(
    grid: Sequence[Cell],
    settings: SweepSettings,
    *,
    workers: int,
    worker_bytes: int,
    run: Callable[[Cell, SweepSettings], dict[str, Any]] = run_process,
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Runs cells and yields each with its row, in the order they end.

    Another process is started only while `worker_bytes` are available. A cell whose process was
    killed while others ran is run again when none does.

    Args:
      grid: what to run. settings: common to all.
      workers: processes at a time, at most. worker_bytes: what one is expected to take.
      run: runs one cell, in a process of its own.
    """
    waiting, alone = deque(grid), deque[Cell]()
    running: dict[Future[dict[str, Any]], tuple[Cell, bool]] = {}
    with ThreadPoolExecutor(workers) as pool:
        while waiting or alone or running:
            while waiting and len(running) < workers and _room(running, worker_bytes):
                cell = waiting.popleft()
                running[pool.submit(run, cell, settings)] = (cell, bool(running))
            if not running:
                cell = alone.popleft()
                running[pool.submit(run, cell, settings)] = (cell, False)
            done, _ = wait(running, _PATIENCE, FIRST_COMPLETED)
            for future in done:
                cell, beside = running.pop(future)
                row = future.result()
                if row.get("error") == KILLED and (beside or running):
                    alone.append(cell)
                    continue
                yield cell, row


def _room(running: dict[Any, Any], worker_bytes: int) -> bool:
    return not running or _available() >= worker_bytes


def _available() -> int:
    """Bytes that processes can take without swapping, as Linux estimates them."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":") for line in lines)
    return 1024 * int(fields["MemAvailable"].split()[0])
