"""Modules as the text that XLA prints, to compare two of them, and digests; parses HLO text.

XLA reads its own text back, so two modules of one text are one program. It prints an order of
execution as the order of lines, and no ids.
"""

import hashlib
import importlib
import itertools
import re
from typing import Any

from hlo import xla_pb2
from hlo.module import HloError
from hlo.wire import Message

_TEXT = "text:"

_NOTES = re.compile(r', frontend_attributes=\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}')
_DONE = re.compile(r", allow_spmd_sharding_propagation_to_(?:parameters|output)=\{[^{}]*\}")
"""What a module's first line says for a pass that has run; a proto does not have it."""


def hlo_bindings() -> Any:
    """Imports jaxlib's private module that parses and prints HLO. May raise ImportError."""
    return importlib.import_module("jax._src.lib").hlo


def mlir_bindings() -> Any:
    """Imports jaxlib's module that converts between HLO and StableHLO. May raise ImportError."""
    return importlib.import_module("jax._src.lib").xla_client._xla.mlir


def module_text(module: bytes, *, notes: bool = False) -> str:
    """Prints a serialized HloModuleProto as XLA does; `notes`: with frontend attributes."""
    held = hlo_bindings().HloModule.from_serialized_hlo_module_proto(module)
    return text_of(held, notes=notes)


def text_of(module: Any, *, notes: bool = False) -> str:
    """Prints a module of jaxlib as XLA does: constants in full, no locations.

    Args:
      module: such as `runtime_executable().hlo_modules()` gives.
      notes: whether frontend attributes stay; XLA adds some of them after it has scheduled a
        module, and compiles a call by one.
    """
    options = hlo_bindings().HloPrintOptions()
    options.print_metadata = False
    options.print_large_constants = True
    first, _, body = module.to_string(options).partition("\n")
    text = f"{_DONE.sub('', first)}\n{body}"
    return text if notes else _NOTES.sub("", text)


def text_digest(text: str) -> str:
    """Returns the SHA-256 of a module's text, after a prefix that tells it from other digests."""
    return f"{_TEXT}{hashlib.sha256(text.encode()).hexdigest()}"


def is_text_digest(digest: str) -> bool:
    """Whether `digest` was made by `text_digest`, as its prefix tells."""
    return digest.startswith(_TEXT)


_ID = xla_pb2.HloModuleProto.DESCRIPTOR.fields_by_name["id"].number


def module_digest(module: bytes) -> str:
    """Returns the SHA-256 of a serialized HloModuleProto, with id 0, as processes differ in it.
    Raises HloError if `module` is not a protobuf message.
    """
    message = Message(module)
    message.set_integer(_ID, 0)
    return hashlib.sha256(message.encode()).hexdigest()


_FRAME = re.compile(r" stack_frame_id=\d+")
_ALIASED = re.compile(
    r"( all-reduce-start\([^\n]*), output_to_operand_aliasing=\{(?:[^{}\n]|\{[^{}\n]*\})*\}"
)
"""What XLA prints of an all-reduce-start and does not read; the opcode says as much."""

_DEEPEST = 500
"""Brackets within each other that are handed to XLA's parsers, which recurse without a check."""
_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>]=')
_STEP = dict(zip(b"([{<)]}>", (1, 1, 1, 1, -1, -1, -1, -1), strict=True))
_OTHERS = bytes(set(range(256)) - _STEP.keys())


def from_hlo_text(text: str) -> bytes:
    """Parses HLO text (dumps, `as_text()`) to a serialized HloModuleProto. Raises HloError."""
    _check_depth(text)
    if "\nStackFrames" not in text:
        text = _FRAME.sub("", text)  # XLA warns of each frame that is not there
    text = _ALIASED.sub(r"\1", text)
    try:
        return hlo_bindings().hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except Exception as error:
        raise HloError(f"not HLO text that XLA can parse: {message(error)}") from error


def from_stablehlo(text: str) -> bytes:
    """Converts StableHLO text to a serialized HloModuleProto. Raises HloError."""
    _check_depth(text)
    try:
        computation = mlir_bindings().mlir_module_to_xla_computation(
            text, use_tuple_args=False, return_tuple=False
        )
        return computation.as_serialized_hlo_module_proto()
    except Exception as error:
        raise HloError(f"not StableHLO that XLA can convert: {message(error)}") from error


def message(error: Exception) -> str:
    """Returns the first two lines of an error's message, as XLA's second one says what is wrong, or
    the name of the error's class if it has no message.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def _check_depth(text: str) -> None:
    """Raises HloError for text with over 500 nested brackets, which would crash XLA's parsers."""
    brackets = _NO_BRACKETS.sub("", text).encode().translate(None, _OTHERS)
    if max(itertools.accumulate(map(_STEP.__getitem__, brackets)), default=0) > _DEEPEST:
        raise HloError(
            f"more than {_DEEPEST} nested brackets, which no dump of XLA has; dump the module again"
        )
