"""Stored plans as files, which many processes share; each is checked when it is read.

A file has two lines. The first is a header in JSON with the plan's key, a digest of the second
line, and digests of the executables that the referee has accepted. The second is the text of a plan
file. A file is written atomically. If it is truncated, changed, of another version or under another
key, reading it fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hlo.files import read_regular
from olla_xla.errors import InputError, PlanFileError
from olla_xla.problem import plan as plan_file
from olla_xla.problem.plan import Plan
from olla_xla.problem.whole_file import written_whole

SUFFIX = ".plan"
"""Suffix of a stored plan's file, after its key."""

_OURS = re.compile(r"(\.[0-9a-f]{16}\.)?[0-9a-f]{32}\.plan")
"""Names of files that are made here: of stored plans, and while these are written."""

_FORMAT, _VERSION = "olla_xla.stored_plan", 1
_LARGEST = 2**28
"""Bytes of a file above which it is not read."""
_ABANDONED = 3600.0
"""Seconds after which a temporary file is taken to be abandoned."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of a folder of stored plans.

    Attributes:
      path: of the file. bytes: its size.
      used: when it was last read or written, in seconds since 1970.
      plan: the plan in it; None where it cannot be used, and `trouble` says why.
    """

    path: Path
    bytes: int
    used: float
    plan: Plan | None
    trouble: str = ""


class StoredPlan(NamedTuple):
    """The content of a plan file: a plan, and digests of executables that the referee accepted."""

    plan: Plan
    accepted: tuple[str, ...] = ()


def write(path: Path, plan: Plan, accepted: Sequence[str] = ()) -> None:
    """Writes a plan; the file's name, without its suffix, is the plan's key.

    Args:
      path: the file. plan: to write. accepted: digests of executables.

    Raises:
      OSError: it cannot be written; an earlier file stays.
    """
    text = plan_file.dumps(plan)
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "key": path.stem,
        "sha256": _digest(text),
        "accepted": list(accepted),
    }
    with written_whole(path, 0o644, follow=False) as beside, beside.open("wb") as file:
        file.write(json.dumps(header).encode() + b"\n" + text)
        file.flush()
        os.fsync(file.fileno())  # a full disk raises here, not after the renaming


def read(path: Path) -> Plan:
    """Reads the plan in a file. Raises PlanFileError as `read_stored` does."""
    return read_stored(path).plan


def read_stored(path: Path) -> StoredPlan:
    """Reads the plan in a file, and sets the file's time, which says when it was used last.

    Raises:
      PlanFileError: it cannot be read, or is not what was written for its key.
    """
    try:
        data = read_regular(path, _LARGEST)
    except OSError as error:
        raise PlanFileError(f"cannot read {path}: {error.strerror}") from error
    head, _, text = data.partition(b"\n")
    try:
        header = json.loads(head)
        found = [header[name] for name in ("format", "version", "key", "sha256")]
        accepted = tuple(str(digest) for digest in header.get("accepted", ()))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise PlanFileError(f"{path} is not a stored plan, or is damaged; remove it") from error
    if found != [_FORMAT, _VERSION, path.stem, _digest(text)]:
        raise PlanFileError(f"{path} is damaged; remove it")
    plan = plan_file.loads(text, str(path))
    with contextlib.suppress(OSError):
        os.utime(path)
    return StoredPlan(plan, accepted)


def entries(folder: Path) -> Iterator[Entry]:
    """All files of a folder of stored plans, by name, also damaged or abandoned ones."""
    try:
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise PlanFileError(f"cannot read {folder}: {error.strerror}") from error
    for path in paths:
        try:
            about = path.lstat()
        except OSError:
            continue  # removed meanwhile
        if not _OURS.fullmatch(path.name) or stat.S_ISDIR(about.st_mode):
            continue
        if path.name.startswith(".") and time.time() - about.st_mtime < _ABANDONED:
            continue  # another process is at it
        plan, trouble = None, ""
        try:
            plan = read(path)
            with contextlib.suppress(OSError):  # listing does not count as use
                os.utime(path, (about.st_atime, about.st_mtime))
        except PlanFileError as error:
            trouble = str(error)
        yield Entry(path, about.st_size, about.st_mtime, plan, trouble)


def prune(folder: Path, seconds: float, most_bytes: int | None = None) -> list[Entry]:
    """Removes files without a usable plan, plans unused for long, and plans beyond a size limit.

    Args:
      folder: of stored plans. seconds: files that were not used for so long are removed.
      most_bytes: that the others may take together, the latest used first; None for no limit.

    Returns:
      The entries that were removed.

    Raises:
      PlanFileError: the folder cannot be read, or a file cannot be removed.
      InputError: there are files in the folder, and none of them is one of stored plans.
    """
    removed, kept, now = [], 0, time.time()
    found = sorted(entries(folder), key=lambda e: (-e.used, e.path.name))
    if not found and folder.is_dir() and next(folder.iterdir(), None) is not None:
        raise InputError(
            f"{folder} has other files but no stored plans; give the folder of the plans"
        )
    for entry in found:
        late = entry.plan is None or now - entry.used > seconds
        if not late and (most_bytes is None or kept + entry.bytes <= most_bytes):
            kept += entry.bytes
            continue
        try:
            entry.path.unlink(missing_ok=True)
        except OSError as error:
            raise PlanFileError(f"cannot remove {entry.path}: {error.strerror}") from error
        removed.append(entry)
    return removed


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
