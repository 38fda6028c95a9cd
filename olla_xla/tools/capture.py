"""Compiles a lowered function and copies its modules out."""

from __future__ import annotations

import dataclasses

import jax

from olla_xla.analysis.ran_again import RanAgain, ran_again
from olla_xla.compile.accounting import assigned_bytes, assignment_proto, final_module
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Compiles


@dataclasses.dataclass(frozen=True)
class Compiled(Captured):
    """A function's module as XLA scheduled it, and the executable compiled from it, serialized.

    Attributes:
      assigned_bytes: XLA's total.
      final: the executable's module, serialized. assignment: its BufferAssignmentProto, or b"".
      is_refused: whether XLA made no executable, because it does not fit.
      ran_again: what XLA's own rematerialization added, or None.
    """

    assigned_bytes: int = 0
    final: bytes = b""
    assignment: bytes = b""
    is_refused: bool = False
    ran_again: RanAgain | None = None


def capture(lowered: jax.stages.Lowered) -> Compiled:
    """Compiles a lowered function with XLA's own schedule; returns its modules and totals.
    Raises OllaError if XLA hands over no schedule on this backend, and whatever else XLA raises.
    """
    compiles = Compiles(lowered, None, {})
    captured, compiled = compiles.captured()
    return Compiled(
        captured.platform,
        captured.module,
        captured.alternative_orders,
        device_kind=captured.device_kind,
        assigned_bytes=assigned_bytes(compiled),
        final=final_module(compiled),
        assignment=assignment_proto(compiled, captured.platform),
        ran_again=ran_again(lowered, compiled, captured.platform, captured=captured),
    )
