"""Machine code of a loop: compiled by numba, and linked without numba, whose import is slow.

A loop that numba has compiled without counting references is a C function (numba's documentation,
"Notes on the calling convention"):

    int32 loop(result *, exception **, arguments...)

Passing about a hundred arguments from Python would take longer than many loops run. So each loop
gets an entry function that reads them from memory, as `arguments` lays them out.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from olla_xla.memory.arguments import Kinds, flattened, parameters

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
        """Loads the machine code into this process; returns a function of its argument words.

        Args:
          loop: the loop's name, for errors.
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
            found = read(result) or (None,)
            return found[0] if single else found

        return call


def _entry(loop: str, kinds: Kinds) -> bytes:
    """An object file with `_ENTRY`, which calls a loop with the words at an address."""
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
    """Links object files; the address of their entry. jit.py calls this in one thread at a time."""
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder().add_current_process().export_symbol(_ENTRY)
    for image in images:
        builder.add_object_img(image)
    library = builder.link(_jit(), f"olla_xla.{next(_numbers)}")
    _libraries.append(library)
    return library[_ENTRY]


def compiled(dispatcher: Any, arguments: tuple[Any, ...]) -> Code:
    """Compiles a loop for arguments of these types; returns its machine code.

    Args:
      dispatcher: numba's, without entries from Python and without counts of references.

    Raises:
      TypeError: the loop returns anything but numbers.
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
    """How a loop's result lies in memory, and whether it is one value."""
    from numba.core import types as numba_types

    if kind == numba_types.none:
        return "", True
    formats = {numba_types.int64: "q", numba_types.boolean: "?", numba_types.float64: "d"}
    single = not isinstance(kind, (numba_types.UniTuple, numba_types.Tuple))
    parts = [kind] if single else list(kind.types)
    if len(parts) > _RESULT_WORDS or not all(p in formats for p in parts):
        raise TypeError(f"the compiled loop {name} returns {kind}, which is not a number")
    return "".join(formats[p] for p in parts), single
