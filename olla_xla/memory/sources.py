"""Which calls of an operation's stack trace say where it comes from.

Libraries of building blocks (JAX, Flax, optax, equinox and the like) are known by their names. All
else is a step's own code, wherever it is installed: in a framework that trains models (MaxText,
gemma) the framework's line of the layer is what says it, not the one line of a script that calls
it. Calls outside the jitted function, such as the script that compiles it, are left out.
"""

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hlo.module import Instruction
from hlo.stack_frames import SourceFrame

_PACKAGE = str(Path(__file__).parents[1])
_LAUNCHING = tuple(f"{_PACKAGE}/{folder}/" for folder in ("analysis", "compile", "cli", "tools"))
"""Our own code that has steps traced: its callers are no part of a step."""

_BLOCKS = (
    "absl|aqt|beartype|chex|clu|diffrax|distrax|einops|equinox|flax|haiku|jax|jaxlib|jaxopt|"
    "jaxtyping|jmp|jraph|keras|kfac_jax|lineax|ml_dtypes|numpy|numpyro|objax|olla_xla|"
    "optax|optimistix|orbax|penzai|qwix|rlax|scipy|tensorflow_probability|toolz|typeguard"
)
"""Libraries whose lines say no more of a step than their operations do."""
_LIBRARY = re.compile(
    rf"/(?:site|dist)-packages/(?:{_BLOCKS})/|^<|/jax/(?:_src|experimental|interpreters)/"
)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")
_NO_FILE = ("", "-")  # what XLA calls the file of text without locations

_JITTED = re.compile(r"^p?jit\((\w+)\)")
_CLASS = re.compile(r"(?:^|\.)([A-Za-z]\w*)\.(\w+)$")
_CALLS = ("__call__", "call")  # methods of libraries' layers that are steps of a layer's path
_BASES = frozenset(("Functional", "Layer", "Module", "Operation", "Sequential"))
"""Classes of libraries that every layer passes through."""


class Source(NamedTuple):
    """The source line that an operation was traced from, and the calls that led to it. Own code is
    all but Python and libraries of building blocks such as JAX and Flax.

    Attributes:
      line: "file:line" of the step's own code, the innermost; of a library's where it has none.
      function: that the line is in. is_own: whether the line is the step's own.
      caller: "file:line" of the innermost call outside of installed packages, or "" where that is
        `line` or there is none.
      chain: "file:line function" from there, or from the outermost own call, to `line`.
      layer: path of the layers' classes, or of the functions, that the calls lead through; or "".
    """

    line: str
    function: str
    is_own: bool
    caller: str
    chain: tuple[str, ...]
    layer: str


@functools.lru_cache(maxsize=4096)
def is_own_file(file: str) -> bool:
    """Whether a file can be a step's own code: no Python, no library of building blocks."""
    if file in _NO_FILE or file.startswith((_PACKAGE + "/", f"{sys.prefix}/bin/")):
        return False
    standard = f"{sysconfig.get_paths()['stdlib']}/"
    is_standard = file.startswith(standard) and "/site-packages/" not in file
    return not (is_standard or _LIBRARY.search(file))


@functools.lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package or to Python itself."""
    return bool(_INSTALLED.search(file))


@functools.lru_cache(maxsize=65536)
def source_of(stack: tuple[SourceFrame, ...], op_name: str) -> Source | None:
    """The source line that an operation came from, a step's own if there is one, with the calls
    before it; None if no call has a known file. `stack`: its calls, innermost first; `op_name`:
    JAX's name of it, which begins with the jitted function's.
    """
    inside = _inside(tuple(dict.fromkeys(stack)), op_name)
    own = [frame for frame in inside if is_own_file(frame.file)]
    if not own:
        known = [f for f in inside if f.file not in _NO_FILE and not f.file.startswith("<")]
        if not known:
            return None
        first = known[0]
        return Source(first.location, first.function, False, "", (), _layer(inside))
    users = next((k for k, frame in enumerate(own) if not is_installed(frame.file)), None)
    chain = own if users is None else own[: users + 1]
    return Source(
        line=own[0].location,
        function=own[0].function,
        is_own=True,
        caller=own[users].location if users else "",
        chain=tuple(f"{f.location} {f.function}".strip() for f in reversed(chain)),
        layer=_layer(inside),
    )


def source_line(i: Instruction) -> str:
    """The "file:line" that an instruction was traced from (`Source.line`), "" if not known."""
    source = source_of(i.stack, i.op_name)
    return "" if source is None else source.line


def _inside(stack: tuple[SourceFrame, ...], op_name: str) -> tuple[SourceFrame, ...]:
    """The calls of a stack (innermost first) inside the jitted function that `op_name` begins with,
    as far as the stack has it. Our own code that had the step traced is left out, with its callers.
    """
    for k, frame in enumerate(stack):
        if frame.file.startswith(_LAUNCHING):
            stack = stack[:k]
            break
    if jitted := _JITTED.match(op_name):
        names = [frame.function.rpartition(".")[2] for frame in stack]
        outermost = [k for k, name in enumerate(names) if name == jitted[1]]
        if outermost:
            return stack[: outermost[-1] + 1]
    return stack


def _layer(inside: Sequence[SourceFrame]) -> str:
    """Path, by "/", of the classes whose methods are called, or else of own functions; `inside` has
    the calls, innermost first.
    """
    classes: list[str] = []
    functions: list[str] = []
    for frame in reversed(inside):
        match, own = _CLASS.search(frame.function), is_own_file(frame.file)
        if match is not None and "<locals>" not in match[1]:
            if own or (match[2] in _CALLS and match[1] not in _BASES):
                classes += [match[1]] if classes[-1:] != [match[1]] else []
        elif own:
            name = frame.function.rpartition(".")[2]
            functions += [name] if name.isidentifier() else []
    return "/".join(classes or functions)


def short_line(line: str) -> str:
    """Shortens "file:line": to the working directory, a notebook cell, or its last three parts."""
    return _short_line(line, os.getcwd())


@functools.lru_cache(maxsize=4096)  # a step's tensors come from few lines
def _short_line(line: str, directory: str) -> str:
    name, colon, number = line.rpartition(":")
    if not colon:
        return line
    path = Path(name)
    if path.parent.name.startswith("ipykernel_"):
        return f"notebook cell:{number}"  # its file is a temporary one, named by a hash
    if path.is_relative_to(directory):
        path = path.relative_to(directory)
    elif len(path.parts) > 3:
        path = Path(*path.parts[-3:])
    return f"{path}:{number}"


def short_call(call: str) -> str:
    """A "file:line function" with its "file:line" shortened by `short_line`."""
    line, _, function = call.partition(" ")
    return f"{short_line(line)} {function}".strip()
