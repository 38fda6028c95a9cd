"""Reads the requests to PyTorch's CPU allocator from a trace of PyTorch's profiler.

The loop to be recorded runs under `torch.profiler.profile(profile_memory=True)`, each iteration
within `torch.profiler.record_function("iteration")`, and `export_chrome_trace` writes the file.
PyTorch is not needed here. What an iteration makes and does not release, such as weights'
gradients that are kept, is left out, and so is what came before it.
"""

from __future__ import annotations

import dataclasses
import json
import os

from benchmarks.papers.recordings.recording import Event, Recording
from olla_xla.errors import InputError

MARKER = "iteration"
"""What the names of iterations begin with; those of one name share a profile."""

_CPU = 0  # PyTorch's number of the kind of device


@dataclasses.dataclass(frozen=True)
class TorchTrace:
    """A trace as read.

    Attributes:
      recording: the requests of its iterations.
      kept, kept_bytes: requests that their iteration did not release, which are left out.
    """

    recording: Recording
    kept: int
    kept_bytes: int


def read_torch_trace(path: str | os.PathLike[str]) -> TorchTrace:
    """Reads a trace. Raises InputError if it is none, or has no iterations or no requests."""
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        marks = sorted(
            (float(e["ts"]), float(e["ts"]) + float(e["dur"]), e["name"])
            for e in events
            if e.get("cat") == "user_annotation" and e["name"].startswith(MARKER)
        )
        requests = sorted(
            (float(e["ts"]), k, int(e["args"]["Addr"]), int(e["args"]["Bytes"]))
            for k, e in enumerate(events)
            if e.get("name") == "[memory]" and e["args"]["Device Type"] == _CPU
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or "not a trace of PyTorch's profiler"
        raise InputError(f"cannot read {path}: {reason}") from error
    if not marks:
        raise InputError(
            f'{path} has no iterations: run each within torch.profiler.record_function("{MARKER}")'
        )
    if not requests:
        raise InputError(f"{path} has no requests: profile with profile_memory=True")
    names = list(dict.fromkeys(name for _, _, name in marks))
    iterations, kept = [], []
    for start, end, _ in marks:
        mine = [(at, size) for ts, _, at, size in requests if start <= ts < end and size]
        found, more = _iteration(mine)
        iterations.append(found)
        kept += more
    return TorchTrace(
        Recording(
            os.path.basename(os.fspath(path)),
            tuple(iterations),
            tuple(names.index(name) for _, _, name in marks),
        ),
        len(kept),
        sum(kept),
    )


def _iteration(asked: list[tuple[int, int]]) -> tuple[tuple[Event, ...], list[int]]:
    """(events of the requests that are also released, sizes of those that are not)."""
    live: dict[int, int] = {}  # by address: where in `asked` it was made
    pairs: dict[int, int] = {}  # made there, released there
    for k, (at, size) in enumerate(asked):
        if size > 0:
            live[at] = k
        elif at in live:
            pairs[live.pop(at)] = k
    numbers = {made: number for number, made in enumerate(sorted(pairs))}
    by_place: dict[int, Event] = {}
    for made, released in pairs.items():
        by_place[made] = numbers[made], asked[made][1]
        by_place[released] = numbers[made], -1
    return tuple(by_place[k] for k in sorted(by_place)), [asked[k][1] for k in live.values()]
