"""Machine code of loops on disk, keyed by all that it depends on; processes share it.

Whoever writes such a file decides what is run. So it is taken only from where nobody else than this
process's user and root can write.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hlo.files import is_own, read_own
from olla_xla.memory.arguments import Kinds, spelled
from olla_xla.memory.machine_code import Code
from olla_xla.problem.whole_file import keep, user_cache

_logger = logging.getLogger("olla_xla")

_FORMAT = 3
"""Version of the files; raise it when their contents, or how loops are called, change."""

_FOLDER_VARIABLE = "NUMBA_CACHE_DIR"
_SUFFIX = ".loop"


def folders() -> Iterator[Path]:
    """Folders that may hold machine code, the best first: as numba does, or in the user's cache."""
    if chosen := os.environ.get(_FOLDER_VARIABLE):
        yield Path(chosen)
        return
    yield Path(__file__).with_name("__pycache__")
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield user_cache()


@functools.cache
def _machine() -> str:
    """Digest of all that machine code depends on besides the loop: versions, CPU, settings."""
    import llvmlite.binding as llvm

    versions = [importlib.metadata.version(p) for p in ("numba", "llvmlite", "numpy")]
    host = [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    settings = sorted(
        f"{k}={v}"
        for k, v in os.environ.items()
        if k.startswith("NUMBA_") and k != _FOLDER_VARIABLE
    )
    return _digest([_FORMAT, sys.version, sys.platform, *versions, *host, *settings])


def _digest(parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def source(function: types.FunctionType, unwrap: Callable[[Any], Any]) -> str:
    """A digest of a function's code, of all functions that it calls, and of the globals they read.

    Args:
      function: the Python function of a loop.
      unwrap: gives the Python function of a global that is a loop; None for other globals.
    """
    found: dict[str, Any] = {}
    waits = [function]
    while waits:
        one = waits.pop()
        name = f"{one.__module__}.{one.__qualname__}"
        if name in found:
            continue
        code, named = one.__code__, {}
        for word in code.co_names:
            value = one.__globals__.get(word)
            if (called := unwrap(value)) is not None:
                waits.append(called)
            elif isinstance(value, (int, float, str, tuple, np.generic)):
                named[word] = repr(value)
            elif isinstance(value, np.ndarray):
                named[word] = (value.dtype.str, value.shape, value.tobytes())
            elif isinstance(value, type) and issubclass(value, enum.Enum):
                named[word] = [(m.name, repr(m.value)) for m in value]
        consts = [c for c in code.co_consts if not isinstance(c, types.CodeType)]
        parts = (code.co_code, consts, code.co_names, code.co_varnames, code.co_argcount)
        found[name] = (parts, named)
    return _digest(sorted(found.items()))


def _stem(name: str, kinds: Any) -> str:
    """The beginning of the names of a loop's files for these kinds, on this machine."""
    return f"{name}-{_machine()}-{_digest(kinds)}-"


def holds(name: str, digest: str) -> bool:
    """Whether this machine's cache has machine code of a loop, for any types of arguments."""
    pattern = f"{name}-{_machine()}-*-{digest}{_SUFFIX}"
    return any(is_own(path.lstat()) for folder in folders() for path in folder.glob(pattern))


def load(name: str, kinds: Kinds, digest: str) -> Code | None:
    """Reads the machine code of a loop from disk; None if it is missing or incomplete.

    Args:
      name: the loop's. kinds: types of its arguments. digest: of its source.
    """
    data = read(name, spelled(kinds), digest)
    if data is None:
        return None
    head, _, body = data.partition(b"\n")
    header = json.loads(head)
    sizes = itertools.accumulate(header.pop("sizes"), initial=0)
    return Code(images=tuple(body[a:b] for a, b in itertools.pairwise(sizes)), **header)


def save(name: str, kinds: Kinds, digest: str, code: Code) -> None:
    """Writes the machine code of a loop to disk; arguments as for `load`."""
    header = code._asdict()
    header["sizes"] = [len(image) for image in header.pop("images")]
    data = json.dumps(header).encode() + b"\n" + b"".join(code.images)
    write(name, spelled(kinds), digest, data)


def drop(name: str, kinds: Kinds, digest: str) -> None:
    """Deletes the machine code of a loop from all folders; arguments as for `load`."""
    for folder in folders():
        with contextlib.suppress(OSError):
            (folder / f"{_stem(name, spelled(kinds))}{digest}{_SUFFIX}").unlink()


def read(name: str, kinds: Any, digest: str) -> bytes | None:
    """Data that `write` stored for a loop; None if missing, damaged, or writable by other users."""
    file = f"{_stem(name, kinds)}{digest}{_SUFFIX}"
    for folder in folders():
        with contextlib.suppress(OSError):
            seal, _, data = read_own(folder / file).partition(b"\n")
            if seal == _seal(file, data):
                return data
    return None


def write(name: str, kinds: Any, digest: str, data: bytes) -> None:
    """Writes data of a loop to the first folder that this user, and nobody else, can write to.

    Files of earlier versions of the loop are removed. Where no folder can be used, a warning is
    logged.

    Args:
      name, digest: as for `load`. kinds: of its arguments; their `repr` is part of the key.
    """
    stem = _stem(name, kinds)
    file = f"{stem}{digest}{_SUFFIX}"
    trouble = ""
    for folder in folders():
        try:
            keep(folder / file, _seal(file, data) + b"\n" + data)
        except OSError as error:
            trouble = f"{folder}: {error.strerror}"
            continue
        for old in folder.glob(f"{stem}*{_SUFFIX}"):
            if old.name != file:
                old.unlink(missing_ok=True)
        return
    if trouble:
        _say(trouble)


@functools.cache
def _say(trouble: str) -> None:
    _logger.warning("every process compiles the planner's loops: %s cannot store them", trouble)


def _seal(file: str, data: bytes) -> bytes:
    """Digest of all that a file holds, and of its name."""
    return hashlib.blake2b(f"{file}\n".encode() + data).hexdigest().encode()
