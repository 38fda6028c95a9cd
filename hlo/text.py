"""A module as XLA prints it, for comparing what it made of one with what it was given.

XLA reads its own text back, so two modules of one text are one program. It prints an order of
execution as the order of lines, and no ids.
"""

from __future__ import annotations

import re
from typing import Any

from jax._src.lib import hlo  # pyright: ignore[reportAttributeAccessIssue]  # no public name

__all__ = ["is_same_text", "module_text", "text_of"]

_NOTES = re.compile(r', frontend_attributes=\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}')
_DONE = re.compile(r", allow_spmd_sharding_propagation_to_(?:parameters|output)=\{[^{}]*\}")
"""What a module's first line says for a pass that has run; a proto does not have it."""


def module_text(module: bytes) -> str:
    """A serialized HloModuleProto as XLA prints it: constants in full, no source locations."""
    return text_of(hlo.HloModule.from_serialized_hlo_module_proto(module))


def text_of(module: Any) -> str:
    """The same of a module that XLA holds, such as `runtime_executable().hlo_modules()` gives."""
    options = hlo.HloPrintOptions()
    options.print_metadata = False
    options.print_large_constants = True
    return module.to_string(options)


def is_same_text(a: str, b: str) -> bool:
    """Whether two such texts differ in frontend attributes at most, which XLA adds some of."""
    (first, _, body), (other, _, rest) = a.partition("\n"), b.partition("\n")
    return _bare(_DONE.sub("", first)) == _bare(_DONE.sub("", other)) and (
        body == rest or _bare(body) == _bare(rest)
    )


def _bare(text: str) -> str:
    return _NOTES.sub("", text)
