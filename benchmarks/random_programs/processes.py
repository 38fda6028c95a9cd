"""Any number of random programs, in shares, each share in fresh processes.

If a process crashes, the program that it was running is reported, and another process goes on with
the rest of its share.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any

from benchmarks.random_programs.search import Share
from benchmarks.random_programs.sharded import with_devices
from benchmarks.worker_lines import WorkerError, worker_lines

_SHARE = 60  # programs of one process; a fresh one takes some seconds to start
_WORKER = "benchmarks.random_programs.search"
_SILENT_SECONDS = 600.0
"""A process that says nothing for so long is killed, and the program it was at is reported."""


def shares(count: int, plans: int, seed: int, shrink_seconds: float) -> list[Share]:
    """The shares of a run, of equal size as far as can be."""
    return [
        Share(seed, start // _SHARE, min(_SHARE, count - start), plans, 0, shrink_seconds)
        for start in range(0, count, _SHARE)
    ]


def run(work: list[Share], workers: int) -> Iterator[dict[str, Any]]:
    """Events of all shares (`search.run_share`), as they come, from up to `workers` processes."""
    events: queue.Queue[dict[str, Any] | None] = queue.Queue()
    stop = threading.Event()

    def one(share: Share) -> None:
        try:
            while not stop.is_set():
                done = _process(share, events, stop)
                if done is None or done >= share.count:
                    return
                share = dataclasses.replace(share, skip=done)
        finally:
            events.put(None)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        left = [pool.submit(one, share) for share in work]
        try:
            for _ in left:  # each ends with None
                while (event := events.get()) is not None:
                    yield event
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _process(share: Share, events: queue.Queue[Any], stop: threading.Event) -> int | None:
    """Runs one process; returns where the next is to go on, or None if the share is done."""
    at: dict[str, Any] = {}
    about, code, last = dataclasses.asdict(share), 0, ""
    lines = worker_lines(
        _WORKER,
        about,
        "a process",
        environment=with_devices(os.environ),
        silent=(_SILENT_SECONDS, _SILENT_SECONDS),
    )
    try:
        for event in lines:
            if "end" in event or stop.is_set():
                return None
            at = event.get("start") or ({} if "row" in event else at)
            events.put(event)
    except WorkerError as error:
        code, last = error.code, error.reason
    if not at:  # While it started, or shrank: nothing to be skipped, so nothing to be gained.
        events.put({"lost": f"a process ended with code {code} between programs: {last}"})
        return None
    reason = f"the process ended with code {code}: {last}"
    outcome = {"kind": "crashed", "planned": False, "reason": reason, "xla_bytes": 0, "bytes": 0,
               "seconds": 0.0}  # fmt: skip
    events.put({"row": {**at, "outcomes": [outcome]}})
    events.put({"failure": {"kind": "crashed", "reason": reason, "case": at["case"],
                            "program": at["kind"], "share": share.number}})  # fmt: skip
    return at["place"] + 1
