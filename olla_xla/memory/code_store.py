"""Machine code of loops on disk, keyed by all that it depends on; processes share it."""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib.metadata
import itertools
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from olla_xla.memory.arguments import Kinds, spelled
from olla_xla.memory.machine_code import Code
from olla_xla.memory.user_cache import user_cache

__all__ = ["folders", "holds", "load", "save", "source"]

_FORMAT = 2
"""Version of the files; raise it when their contents, or how loops are called, change."""

_FOLDER_VARIABLE = "NUMBA_CACHE_DIR"


def folders() -> Iterator[Path]:
    """Where machine code may be kept, the best first: as numba does, or in the user's cache."""
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
    """Digest of a function's code, of all functions that it calls, and of what else they name.

    Args:
      function: the loop. unwrap: the function behind a loop that is called, or None.
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


def _stem(name: str, kinds: Kinds) -> str:
    """The beginning of the names of a loop's files for these kinds, on this machine."""
    return f"{name}-{_machine()}-{_digest(spelled(kinds))}-"


def holds(name: str, digest: str) -> bool:
    """Whether an earlier process left machine code of a loop, for arguments of some kinds."""
    pattern = f"{name}-{_machine()}-*-{digest}.loop"
    return any(any(folder.glob(pattern)) for folder in folders())


def load(name: str, kinds: Kinds, digest: str) -> Code | None:
    """What an earlier process compiled a loop to; None if there is nothing, or not all of it.

    Args:
      name: the loop's. kinds: of its arguments. digest: of its source.
    """
    for folder in folders():
        try:
            text = (folder / f"{_stem(name, kinds)}{digest}.loop").read_bytes()
        except OSError:
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError):
            head, _, body = text.partition(b"\n")
            header = json.loads(head)
            if header.pop("digest") == hashlib.blake2b(body).hexdigest():
                sizes = itertools.accumulate(header.pop("sizes"), initial=0)
                images = tuple(body[a:b] for a, b in itertools.pairwise(sizes))
                return Code(images=images, **header)
    return None


def save(name: str, kinds: Kinds, digest: str, code: Code) -> None:
    """Keeps what a loop was compiled to, in the first folder that can be written to.

    Files of earlier versions of the loop are removed.
    """
    header, body = code._asdict(), b"".join(code.images)
    header["sizes"] = [len(image) for image in header.pop("images")]
    header["digest"] = hashlib.blake2b(body).hexdigest()
    stem = _stem(name, kinds)
    for folder in folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            written = folder / f"{stem}{os.getpid()}-{threading.get_ident()}.part"
            written.write_bytes(json.dumps(header).encode() + b"\n" + body)
            written.replace(folder / f"{stem}{digest}.loop")
            for old in folder.glob(f"{stem}*.loop"):
                if old.name != f"{stem}{digest}.loop":
                    old.unlink(missing_ok=True)
            return
