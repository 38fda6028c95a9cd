"""A loop's memory requests and releases, by iteration, as a CSV file."""

from __future__ import annotations

import csv
import dataclasses
import os

from olla_xla.errors import InputError
from olla_xla.problem.whole_file import written_whole

Event = tuple[int, int]
"""A request's number and its bytes, or -1 where it is released."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """The requests of a loop.

    Attributes:
      name: of the loop. iterations: their requests and releases, in order.
      profiles: by iteration, which profile it belongs to; equal numbers share one.
    """

    name: str
    iterations: tuple[tuple[Event, ...], ...]
    profiles: tuple[int, ...]


_COLUMNS = ("iteration", "profile", "request", "bytes")


def write_recording(path: str | os.PathLike[str], recording: Recording) -> None:
    """Writes a recording as CSV: a line for each request, and one with -1 bytes for its release.

    Raises InputError if the file cannot be written.
    """
    try:
        with written_whole(path) as beside, open(beside, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            pairs = zip(recording.profiles, recording.iterations, strict=True)
            for k, (profile, events) in enumerate(pairs):
                writer.writerows((k, profile, request, size) for request, size in events)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads what `write_recording` wrote.

    Raises InputError if it is no such file, or releases what was not requested.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file)) or [[]]
        lines = [tuple(map(int, row)) for row in rows]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a table of whole numbers"
        raise InputError(f"cannot read {path}: {reason}") from error
    if tuple(header) != _COLUMNS or any(len(line) != len(_COLUMNS) for line in lines):
        raise InputError(f"{path} is not a recording; its columns are {','.join(_COLUMNS)}")
    iterations: list[list[Event]] = []
    profiles: list[int] = []
    live: set[int] = set()
    made = 0
    for number, (k, profile, request, size) in enumerate(lines, 2):
        if k == len(iterations):
            iterations.append([])
            profiles.append(profile)
            live, made = set(), 0
        fits = request == made if size >= 0 else size == -1 and request in live
        if k != len(iterations) - 1 or not fits or profile != profiles[-1]:
            raise InputError(f"{path}, line {number}: does not go on from the line before")
        live ^= {request}
        made += size >= 0
        iterations[-1].append((request, size))
    return Recording(
        os.path.splitext(os.path.basename(path))[0],
        tuple(map(tuple, iterations)),
        tuple(profiles),
    )
