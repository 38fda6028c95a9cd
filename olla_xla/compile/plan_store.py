"""Reuse of plans: what a plan depends on, its digest, and where it is kept.
A function lowered again to the same StableHLO, with the same options and devices, gets its earlier
plan without a search. Its module gets a token made from the plan's key, so that JAX's persistent
compilation cache, if it is on, serves the planned executable. Plans are then also kept on disk, in
a folder of that cache.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from hlo.files import read_regular
from olla_xla.errors import InputError, PlanFileError
from olla_xla.problem import plan as plan_file
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import VERSION, Plan
from olla_xla.problem.whole_file import written_whole

_FORMAT = 9
"""Part of every key, of plans and in JAX's persistent cache; raised when plans of older versions
must not be used again. Before 4, in-place results could overwrite operands that were still read.
Before 6, digests depended on collectives' channel ids. Before 7, kernels could share memory as not
in XLA's own order, and round otherwise. Before 8, digests did not hold how arguments lie. Before 9,
changed loops on a GPU could read slices of other iterations."""

_FOLDER = "olla_xla"
"""Folder of plans in the directory of JAX's persistent compilation cache."""

_COMPILE_SETTINGS = (
    "jax_optimization_level",
    "jax_memory_fitting_level",
    "jax_compiler_enable_remat_pass",
)
"""JAX settings that are passed to XLA beside the module."""

_MOST_ACCEPTED = 8
"""Digests of executables that are kept with a plan."""

_logger = logging.getLogger("olla_xla")


def plan_key(
    program: bytes,
    environment: str,
    compiler_options: Mapping[str, Any] | None,
    options: PlanOptions,
) -> str:
    """Returns the key under which a plan is stored: a digest, 32 hex digits, of the arguments,
    versions, XLA_FLAGS and JAX's settings. `program`: the lowered module's bytecode; `environment`
    names devices. If two modules get one key, only time is lost: a plan is not applied to another
    module than its own.
    """
    config: Any = jax.config
    parts = (
        _FORMAT,
        VERSION,  # plan files of other versions are not found
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        os.environ.get("XLA_FLAGS", ""),
        [getattr(config, name, None) for name in _COMPILE_SETTINGS],
        environment,
        sorted((compiler_options or {}).items()),
        options,
    )
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(program)
    return digest.hexdigest()[:32]


def plan_digest(plan: Plan) -> str:
    """Returns a digest, 32 hex digits, of a plan's module and of all that it changes there."""
    written = [_FORMAT, plan.fingerprint, dict(plan.order), dict(plan.aliases), dict(plan.holds)]
    written += [plan.clones, plan.loops, plan.sunk, plan.joined]
    text = json.dumps(written, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class PlanStore:
    """Plans by key, in memory and, given a `directory`, which is made when first needed, in files
    that outlive the process. Memory keeps the `capacity` plans that were used last.
    """

    def __init__(self, directory: Path | None = None, capacity: int = 128) -> None:
        self._directory = directory
        self._capacity = capacity
        self._lock = threading.Lock()
        self._said = False
        self._plans: collections.OrderedDict[str, StoredPlan] = collections.OrderedDict()

    def load(self, key: str) -> Plan | None:
        """Returns the plan stored under `key`, from memory or a file, which is then also kept in
        memory; None without one, or with a warning if the file is damaged.
        """
        stored = self._load(key)
        return None if stored is None else stored.plan

    def accepted(self, key: str) -> tuple[str, ...]:
        """Returns the digests of executables of `key`'s plan that the checker accepted before."""
        stored = self._load(key)
        return () if stored is None else stored.accepted

    def _load(self, key: str) -> StoredPlan | None:
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        stored = self._read(key)
        if stored is not None:
            self._keep(key, stored)
        return stored

    def save(self, key: str, plan: Plan, accepted: str = "") -> None:
        """Stores `plan` under `key`, in memory and, given a directory, in a file; if that cannot be
        written, warns once. `accepted`: digest of an executable of it that the checker accepted,
        which joins those stored with an equal plan; with "" none are stored.
        """
        known = self._load(key) if accepted else None
        digests = known.accepted if known is not None and known.plan == plan else ()
        digests = tuple(dict.fromkeys((*digests, accepted)))[-_MOST_ACCEPTED:] if accepted else ()
        stored = StoredPlan(plan, digests)
        self._keep(key, stored)
        self._write(key, stored)

    def drop(self, key: str) -> None:
        """Removes the plan stored under `key` from memory, and its file."""
        with self._lock:
            self._plans.pop(key, None)
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def clear(self) -> None:
        """Removes all plans from memory; files stay."""
        with self._lock:
            self._plans.clear()

    def _keep(self, key: str, stored: StoredPlan) -> None:
        with self._lock:
            self._plans[key] = stored
            self._plans.move_to_end(key)
            while len(self._plans) > self._capacity:
                self._plans.popitem(last=False)

    def _read(self, key: str) -> StoredPlan | None:
        path = self._path(key)
        if path is None or not os.path.exists(path):  # also false without permission
            return None
        try:
            return read(path)
        except PlanFileError as error:
            _logger.warning("%s; this run plans again", error)
            return None

    def _write(self, key: str, stored: StoredPlan) -> None:
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, stored.plan, stored.accepted)
        except OSError as error:
            if not self._said:
                self._said = True
                _logger.warning(
                    "the plan of %s cannot be stored for reuse: %s", stored.plan.module, error
                )

    def _path(self, key: str) -> Path | None:
        return None if self._directory is None else self._directory / f"{key}{SUFFIX}"


def process_store() -> PlanStore:
    """Returns this process's PlanStore; with files if JAX's persistent compilation cache is on."""
    return _store(stored_folder())


def stored_folder() -> Path | None:
    """Returns the folder of stored plans in JAX's persistent cache; None if off or remote."""
    config: Any = jax.config
    directory = config.jax_compilation_cache_dir
    # JAX takes remote directories too, which only its own file layer can write to.
    if not directory or not config.jax_enable_compilation_cache or "://" in directory:
        return None
    return Path(directory) / _FOLDER


def is_filled() -> bool:
    """Whether the plan folder in JAX's compilation cache holds a plan, of any process or function.
    False where the persistent cache is off or remote.
    """
    folder = stored_folder()
    return folder is not None and next(folder.glob(f"*{SUFFIX}"), None) is not None


_store = functools.cache(PlanStore)


# Stored plans as files, which many processes share; each is checked when it is read.
#
# A file has two lines. The first is a header in JSON with the plan's key, a digest of the second
# line, and digests of the executables that the referee has accepted. The second is the text of a
# plan file. A file is written atomically. If it is truncated, changed, of another version or
# under another key, reading it fails.


SUFFIX = ".plan"
"""Suffix of a stored plan's file, after its key."""

_OURS = re.compile(r"(\.[0-9a-f]{16}\.)?[0-9a-f]{32}\.plan")
"""Names of files that are made here: of stored plans, and while these are written."""

_FILE_FORMAT, _VERSION = "olla_xla.stored_plan", 1
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
    """The content of a plan file: a plan, and digests of executables that the checker accepted."""

    plan: Plan
    accepted: tuple[str, ...] = ()


def write(path: Path, plan: Plan, accepted: Sequence[str] = ()) -> None:
    """Writes a plan to a file, whose name without suffix is the plan's key.
    If that fails, it raises OSError, and an earlier file stays. `accepted`: digests of executables
    of the plan that the checker accepted.
    """
    text = plan_file.dumps(plan)
    header = {
        "format": _FILE_FORMAT,
        "version": _VERSION,
        "key": path.stem,
        "sha256": _digest(text),
        "accepted": list(accepted),
    }
    with written_whole(path, 0o644, follow=False) as beside, beside.open("wb") as file:
        file.write(json.dumps(header).encode() + b"\n" + text)
        file.flush()
        os.fsync(file.fileno())  # a full disk raises here, not after the renaming


def read(path: Path) -> StoredPlan:
    """Reads a file of a stored plan, and sets the file's time, which says when it was used last.
    Raises PlanFileError if it cannot be read, or is not what was written for its key.
    """
    try:
        data = read_regular(path, _LARGEST)
    except OSError as error:
        raise PlanFileError(f"cannot read {path}: {error.strerror}") from error
    head, _, text = data.partition(b"\n")
    try:
        header = json.loads(head)
        written = [header[name] for name in ("format", "version", "key", "sha256")]
        accepted = tuple(str(digest) for digest in header.get("accepted", ()))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise PlanFileError(f"{path} is not a stored plan, or is damaged; remove it") from error
    if written != [_FILE_FORMAT, _VERSION, path.stem, _digest(text)]:
        raise PlanFileError(f"{path} is damaged; remove it")
    plan = plan_file.loads(text, str(path))
    with contextlib.suppress(OSError):
        os.utime(path)
    return StoredPlan(plan, accepted)


def entries(folder: Path) -> Iterator[Entry]:
    """Yields an Entry for each file of stored plans in a folder, by name; none without the folder.
    Damaged and abandoned files are included; PlanFileError if the folder cannot be read.
    """
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
            plan = read(path).plan
            with contextlib.suppress(OSError):  # listing does not count as use
                os.utime(path, (about.st_atime, about.st_mtime))
        except PlanFileError as error:
            trouble = str(error)
        yield Entry(path, about.st_size, about.st_mtime, plan, trouble)


def prune(folder: Path, seconds: float, most_bytes: int | None = None) -> list[Entry]:
    """Removes files without a usable plan, plans not used for more than `seconds`, and plans for
    which `most_bytes` (None: no limit) leaves no room beside those that were used later.
    Returns the entries that were removed.

    Raises:
      PlanFileError: the folder cannot be read, or a file cannot be removed.
      InputError: there are files in the folder, and none of them is one of stored plans.
    """
    removed, kept, now = [], 0, time.time()
    by_use = sorted(entries(folder), key=lambda e: (-e.used, e.path.name))
    if not by_use and folder.is_dir() and next(folder.iterdir(), None) is not None:
        raise InputError(
            f"{folder} has other files but no stored plans; give the folder of the plans"
        )
    for entry in by_use:
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
