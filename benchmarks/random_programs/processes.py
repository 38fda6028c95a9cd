"""Any number of random programs, in shares, each share in fresh processes.

If a process crashes, the program that it was running is reported, and another process goes on with
the rest of its share.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.random_programs.search import Share
from benchmarks.random_programs.sharded import with_devices

_SHARE = 60  # programs of one process; a fresh one takes some seconds to start
_WORKER = "benchmarks.random_programs.worker"
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
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, json.dumps(dataclasses.asdict(share))],
            env={**with_devices(os.environ), "PYTHONPATH": os.pathsep.join(_paths())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            watch = _Watch(process)
            for line in process.stdout:
                watch.heard()
                event = json.loads(line)
                if "end" in event:
                    at = {}
                    watch.end()
                    process.wait()
                    return None
                at = event.get("start") or ({} if "row" in event else at)
                events.put(event)
                if stop.is_set():
                    process.kill()
            watch.end()
        code = process.wait()
        if stop.is_set():
            return None
        last = _last_lines(errors)
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


class _Watch:
    """Kills a process that has been silent for too long."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._timer: threading.Timer | None = None
        self.heard()

    def heard(self) -> None:
        """Notes that the process has printed something."""
        self.end()
        self._timer = threading.Timer(_SILENT_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()


def _last_lines(errors: Any) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    faults = [line for line in lines if line.startswith("Fatal Python error")]
    return (faults or lines or [""])[-1][:300]


def _paths() -> list[str]:
    """Where the processes find this package, and what the caller finds."""
    given = os.environ.get("PYTHONPATH")
    return [str(Path(__file__).parents[2]), *([given] if given else [])]
