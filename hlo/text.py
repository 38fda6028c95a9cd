"""A module as XLA prints it, for comparing what it made of one with what it was given; digests.

XLA reads its own text back, so two modules of one text are one program. It prints an order of
execution as the order of lines, and no ids.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hlo import xla_pb2
from hlo.jax_private import hlo_bindings
from hlo.wire import Message

_TEXT = "text:"

_NOTES = re.compile(r', frontend_attributes=\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}')
_DONE = re.compile(r", allow_spmd_sharding_propagation_to_(?:parameters|output)=\{[^{}]*\}")
"""What a module's first line says for a pass that has run; a proto does not have it."""


def module_text(module: bytes, *, notes: bool = False) -> str:
    """A serialized HloModuleProto as the text that XLA prints for it; see `text_of`."""
    held = hlo_bindings().HloModule.from_serialized_hlo_module_proto(module)
    return text_of(held, notes=notes)


def text_of(module: Any, *, notes: bool = False) -> str:
    """A module object of XLA's as XLA prints it: constants in full, no locations.

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
    """SHA-256 of a module's text, with a prefix that no other digest has."""
    return f"{_TEXT}{hashlib.sha256(text.encode()).hexdigest()}"


def is_text_digest(digest: str) -> bool:
    """Whether a digest is one that `text_digest` made, as its prefix says."""
    return digest.startswith(_TEXT)


_ID = xla_pb2.HloModuleProto.DESCRIPTOR.fields_by_name["id"].number


def module_digest(module: bytes) -> str:
    """SHA-256 of a serialized HloModuleProto without its id, which differs between processes.

    Raises:
      HloError: `module` is not a protobuf message.
    """
    message = Message(module)
    message.set_integer(_ID, 0)
    return hashlib.sha256(message.encode()).hexdigest()
