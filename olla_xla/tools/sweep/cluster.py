"""Cells on a Dask cluster: each still runs in a fresh process, on the worker that gets it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from olla_xla.errors import InputError, OllaError
from olla_xla.tools.sweep.grid import Cell, SweepSettings
from olla_xla.tools.sweep.process import run_process
from olla_xla.version import to_install


def run_dask(
    grid: Sequence[Cell], settings: SweepSettings, address: str
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Runs cells on a Dask cluster, and yields each with its row as it ends.

    The workers need olla_xla installed. The cluster decides how many cells run at a time: start
    each worker with one thread for each cell that its memory holds.

    Args:
      grid: what to run. settings: common to all.
      address: of the cluster's scheduler, as tcp://host:8786.

    Raises:
      InputError: Dask is not installed, or there is no scheduler.
      OllaError: the cluster went away.
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
