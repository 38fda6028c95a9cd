"""Text to modules: HLO text and StableHLO, both parsed by XLA itself, through jaxlib."""

from __future__ import annotations

import itertools
import re

from hlo.jax_private import hlo_bindings, mlir_bindings
from hlo.module import HloError

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
    """The first two lines of an error's message, as XLA says what is wrong in the second one.

    The name of the error's class if it has no message.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def _check_depth(text: str) -> None:
    """Raises HloError for text on which XLA's parsers would exhaust the stack, and crash."""
    brackets = _NO_BRACKETS.sub("", text).encode().translate(None, _OTHERS)
    if max(itertools.accumulate(map(_STEP.__getitem__, brackets)), default=0) > _DEEPEST:
        raise HloError(
            f"more than {_DEEPEST} nested brackets, which no dump of XLA has; dump the module again"
        )
