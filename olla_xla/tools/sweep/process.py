"""Cells in processes of their own: in parallel on this machine, or on a Dask cluster."""

import dataclasses
import json
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from olla_xla.errors import InputError, OllaError
from olla_xla.tools.child import run_module
from olla_xla.tools.sweep.grid import Cell, SweepSettings
from olla_xla.version import to_install

KILLED = "killed"
"""The error of a row whose process was killed, as by a system that is short of memory."""


def run_process(
    cell: Cell, settings: SweepSettings, program: str = "olla_xla.tools.sweep.cell"
) -> dict[str, Any]:
    """Runs a cell of a sweep (model, batch size, ...) in a fresh process; `error` says if it fails.
    Returns the row's fields besides those that name the cell. `program`: the module that is run.
    """
    request = json.dumps({**dataclasses.asdict(cell), "settings": dataclasses.asdict(settings)})
    try:
        child = run_module(program, request, {}, settings.cell_timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"this row took longer than {settings.cell_timeout:g} s"}
    if child.code == -signal.SIGKILL:
        return {"error": KILLED}
    row = child.answer
    return {"error": child.trouble} if row is None else row


def run_dask(
    grid: Sequence[Cell], settings: SweepSettings, address: str
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Runs cells (rows' models, batch sizes, ...) on a Dask cluster; yields each with its row.

    They come as they end. The workers need olla_xla installed. The cluster decides how many run at
    a time: start each worker with one thread for each cell that its memory holds. Raises InputError
    if Dask is not installed or there is no scheduler, OllaError if the cluster went away.

    Args:
      grid: what to run. settings: common to all.
      address: of the cluster's scheduler, as tcp://host:8786.
    """
    try:
        from distributed import Client, as_completed
    except ModuleNotFoundError as error:
        raise InputError(f"--executor=dask needs distributed; {to_install('dask')}") from error
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        futures = {
            client.submit(run_process, cell, settings, pure=False): cell for cell in grid
        }  # each is a process of its own: equal cells are not equal results
        for future in as_completed(futures):
            error = future.exception()
            if error is not None:
                raise OllaError(f"the cluster failed to run {futures[future]}: {error}") from error
            yield futures[future], future.result()


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
    """Runs cells (rows' models, batch sizes, ...); yields each with its row, as they end.

    A process beside others is started only while `worker_bytes` are available. A cell whose process
    was killed while others ran is run again when none does.

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
    """Bytes of memory that processes can take without swapping, as Linux estimates them."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":") for line in lines)
    return 1024 * int(fields["MemAvailable"].split()[0])
