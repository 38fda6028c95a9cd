"""Text to modules: HLO text and StableHLO, both parsed by XLA itself, through jaxlib."""

from __future__ import annotations

import re

from hlo.jax_private import hlo_bindings, mlir_bindings
from hlo.module import HloError

__all__ = ["first_line", "from_hlo_text", "from_stablehlo"]

_FRAME = re.compile(r" stack_frame_id=\d+")
_ALIASED = re.compile(
    r"( all-reduce-start\([^\n]*), output_to_operand_aliasing=\{(?:[^{}\n]|\{[^{}\n]*\})*\}"
)
"""What XLA prints of an all-reduce-start and does not read; the opcode says as much."""


def from_hlo_text(text: str) -> bytes:
    """Parses HLO text (`compiled.as_text()`, dumps). Raises HloError."""
    if "\nStackFrames" not in text:
        text = _FRAME.sub("", text)  # XLA warns of each frame that is not there
    text = _ALIASED.sub(r"\1", text)
    try:
        return hlo_bindings().hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except Exception as error:
        raise HloError(f"not HLO text that XLA can parse: {first_line(error)}") from error


def from_stablehlo(text: str) -> bytes:
    """Converts StableHLO text (`lowered.as_text()`, `lowered.compiler_ir()`). Raises HloError."""
    try:
        computation = mlir_bindings().mlir_module_to_xla_computation(
            text, use_tuple_args=False, return_tuple=False
        )
        return computation.as_serialized_hlo_module_proto()
    except Exception as error:
        raise HloError(f"not StableHLO that XLA can convert: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The first line of an error's message; the name of its class where it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
