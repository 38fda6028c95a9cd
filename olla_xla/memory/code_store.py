"""Machine code of loops on disk, keyed by all that it depends on; processes share it.

Whoever writes such a file decides what is run. So it is taken only from where nobody else than this
process's user and root can write.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlo.files import is_own, read_own
from olla_xla.memory.arguments import Kinds, flattened, parameters, spelled
from olla_xla.problem.whole_file import keep, user_cache

_logger = logging.getLogger("olla_xla")

_FORMAT = 3  # version of the files; raise it when their contents, or how loops are called, change

_FOLDER_VARIABLE = "NUMBA_CACHE_DIR"
_SUFFIX = ".loop"


def folders() -> Iterator[Path]:
    """Yields folders that may hold machine code: beside this file, then the user's cache, or only
    the one that NUMBA_CACHE_DIR names.
    """
    if chosen := os.environ.get(_FOLDER_VARIABLE):
        yield Path(chosen)
        return
    yield Path(__file__).with_name("__pycache__")
    with contextlib.suppress(RuntimeError):  # a user without a home
        yield user_cache()


@functools.cache
def _machine() -> str:
    """Digest of what machine code depends on besides the loop: versions, CPU, numba's settings."""
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
    """A digest of a function's code, of all loops that it calls, and of the constants they read.

    Args:
      function: the Python function of a compiled loop.
      unwrap: gives the Python function of a global that is a loop; None for other globals.
    """
    code_by_name: dict[str, Any] = {}
    waits = [function]
    while waits:
        one = waits.pop()
        name = f"{one.__module__}.{one.__qualname__}"
        if name in code_by_name:
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
        code_by_name[name] = (parts, named)
    return _digest(sorted(code_by_name.items()))


def _stem(name: str, kinds: Any) -> str:
    """The beginning of the names of a loop's files for arguments `kinds`, on this machine."""
    return f"{name}-{_machine()}-{_digest(kinds)}-"


def holds(name: str, digest: str) -> bool:
    """Whether this machine's cache has a compiled loop's machine code, for any argument types."""
    pattern = f"{name}-{_machine()}-*-{digest}{_SUFFIX}"
    return any(is_own(path.lstat()) for folder in folders() for path in folder.glob(pattern))


def load(name: str, kinds: Kinds, digest: str) -> Code | None:
    """Reads a compiled loop's machine code from disk; None if it is missing, or damaged, or others
    may have written it. `name`: the loop's; `kinds`: types of its arguments; `digest`: `source`'s.
    """
    data = read(name, spelled(kinds), digest)
    if data is None:
        return None
    head, _, body = data.partition(b"\n")
    header = json.loads(head)
    sizes = itertools.accumulate(header.pop("sizes"), initial=0)
    return Code(images=tuple(body[a:b] for a, b in itertools.pairwise(sizes)), **header)


def save(name: str, kinds: Kinds, digest: str, code: Code) -> None:
    """Writes a loop's code for argument types `kinds` to disk (see `write`); `load` reads it."""
    header = code._asdict()
    header["sizes"] = [len(image) for image in header.pop("images")]
    data = json.dumps(header).encode() + b"\n" + b"".join(code.images)
    write(name, spelled(kinds), digest, data)


def drop(name: str, kinds: Kinds, digest: str) -> None:
    """Deletes a loop's machine code from all folders where that is possible; see `load`."""
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
    """Writes data of a compiled loop to the first folder to which this user, and nobody else, can
    write, and removes its other versions there. Logs a warning where no folder can be used.
    `name`, `digest`: as for `load`; `kinds`: of its arguments; their `repr` is part of the key.
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
    _logger.warning("each process compiles the planner's loops; cannot store them: %s", trouble)


def _seal(file: str, data: bytes) -> bytes:
    """Hex digest of a file's name and of the data after it, by which `read` detects damage."""
    return hashlib.blake2b(f"{file}\n".encode() + data).hexdigest().encode()


# Machine code of a loop: compiled by numba, and linked without numba, whose import is slow.
#
# A loop that numba has compiled without counting references is a C function (numba's documentation,
# "Notes on the calling convention"):
#
# int32 loop(result *, exception **, arguments...)
#
# Passing about a hundred arguments from Python would take longer than many loops run. So each loop
# gets an entry function that reads them from memory, as `arguments` lays them out.


_ENTRY = "entry"
_RESULT_WORDS = 8
_OK, _NONE = 0, -2  # codes of numba's calling convention: an error is any other


class Code(NamedTuple):
    """The machine code of a loop for arguments of certain types.

    Attributes:
      result: the format of the loop's result, as for `struct`.
      single: whether the result is one value, no tuple.
      images: object files: the loop's, and that of the entry function which reads its arguments.
    """

    result: str
    single: bool
    images: tuple[bytes, ...]

    def linked(self, loop: str) -> Callable[[bytes], Any]:
        """Loads the code into this process; returns a function that takes the arguments' 8-byte
        words (`flattened`) and returns the loop's result, or raises RuntimeError if the loop fails.
        `loop`: its name in errors.
        """
        takes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
        function = ctypes.PYFUNCTYPE(ctypes.c_int32, *takes)(_link(self.images))
        read = struct.Struct(self.result).unpack_from
        single = self.single

        def call(words: bytes) -> Any:
            result = (ctypes.c_int64 * _RESULT_WORDS)()
            error = ctypes.c_void_p()
            status = function(ctypes.addressof(result), ctypes.addressof(error), words)
            if status not in (_OK, _NONE):
                raise RuntimeError(f"the compiled loop {loop} failed with code {status}")
            numbers = read(result) or (None,)
            return numbers[0] if single else numbers

        return call


def _entry(loop: str, kinds: Kinds) -> bytes:
    """Compiles an object file whose function `_ENTRY` calls a loop with arguments, of the types
    `kinds`, that it reads from 8-byte words in memory. `loop`: the loop's symbol.
    """
    import llvmlite.binding as llvm

    takes = list(parameters(kinds))
    reads = [
        f"%at{k} = getelementptr i64, ptr %words, i64 {k}\n  %word{k} = load {t}, ptr %at{k}"
        for k, t in enumerate(takes)
    ]
    text = "\n  ".join(reads)
    given = ", ".join(
        ["ptr %result", "ptr %error", *(f"{t} %word{k}" for k, t in enumerate(takes))]
    )
    module = llvm.parse_assembly(
        f'declare i32 @"{loop}"({", ".join(["ptr", "ptr", *takes])})\n'
        f"define i32 @{_ENTRY}(ptr %result, ptr %error, ptr %words) {{\n  {text}\n"
        f'  %status = call i32 @"{loop}"({given})\n  ret i32 %status\n}}\n'
    )
    _jit()  # LLVM is initialised
    target = llvm.Target.from_default_triple()
    reloc = "static" if target.name.startswith("x86") else "default"  # as numba has its own
    return target.create_target_machine(reloc=reloc).emit_object(module)


@functools.cache
def _jit() -> Any:
    """LLVM's linker for this process, without importing numba."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


_libraries: list[Any] = []
"""Linked libraries, kept referenced: their addresses are valid only as long as they are."""

_numbers = itertools.count()  # a failed link's name stays in use


def _link(images: tuple[bytes, ...]) -> int:
    """Loads object files into this process, one call at a time; returns the address of `_ENTRY`."""
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder().add_current_process().export_symbol(_ENTRY)
    for image in images:
        builder.add_object_img(image)
    library = builder.link(_jit(), f"olla_xla.{next(_numbers)}")
    _libraries.append(library)
    return library[_ENTRY]


def compiled(dispatcher: Any, arguments: tuple[Any, ...]) -> Code:
    """Compiles a loop for arguments of these types; returns its machine code. Raises TypeError if
    the loop returns anything but None, a number or a short tuple of numbers. `dispatcher`: numba's,
    without entries from Python and without counts of references.
    """
    import numba

    signature = tuple(numba.typeof(a) for a in arguments)
    dispatcher.compile(signature)
    made = dispatcher.overloads[signature]
    result, single = _result(made.signature.return_type, dispatcher.py_func.__qualname__)
    loop = made.library._get_compiled_object()  # what numba itself keeps in its cache
    entry = _entry(made.fndesc.llvm_func_name, flattened(arguments)[0])
    return Code(result, single, (loop, entry))


def _result(kind: Any, name: str) -> tuple[str, bool]:
    """(`struct` format of a loop's result, "" for None; whether that is one value). TypeError if it
    is anything else than up to eight numbers.
    """
    from numba.core import types as numba_types

    if kind == numba_types.none:
        return "", True
    formats = {numba_types.int64: "q", numba_types.boolean: "?", numba_types.float64: "d"}
    single = not isinstance(kind, (numba_types.UniTuple, numba_types.Tuple))
    parts = [kind] if single else list(kind.types)
    if len(parts) > _RESULT_WORDS or not all(p in formats for p in parts):
        raise TypeError(f"the compiled loop {name} returns {kind}, which is not a number")
    return "".join(formats[p] for p in parts), single
