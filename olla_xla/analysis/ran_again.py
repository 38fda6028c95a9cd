"""What XLA:GPU's own rematerialization adds to a step, and by how much that is over its limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from hlo.backend import platform
from hlo.module import module_from_bytes
from olla_xla.compile import rematerialization
from olla_xla.compile.accounting import final_module, scratch_peak
from olla_xla.compile.captured import Captured
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.jax_private import device_kind
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel


@dataclasses.dataclass(frozen=True)
class RanAgain:
    """Instructions that XLA's rematerialization runs again, since it estimates too many bytes.

    Attributes:
      instructions: their number. seconds: predicted, that they add to a run.
      excess_bytes: of XLA's estimate for its own order, above its limit; None if that is unknown.
    """

    instructions: int
    seconds: float
    excess_bytes: int | None

    def __str__(self) -> str:
        text = rematerialization.in_words(self.instructions, self.seconds)
        if self.excess_bytes is None:
            return text
        return f"{text}; XLA's estimate is {self.excess_bytes / 2**20:,.1f} MB above its limit"


def ran_again(
    lowered: jax.stages.Lowered,
    compiled: jax.stages.Compiled,
    target: str,
    options: Mapping[str, Any] | None = None,
    captured: Captured | None = None,
) -> RanAgain | None:
    """Finds the instructions that XLA's rematerialization added to an executable; None if none.

    Args:
      lowered, compiled: the stage, and its executable in XLA's own order. target: its platform.
      options: the compiler options.
      captured: the module as XLA scheduled it; None: compiled again if anything was added.
    """
    if not platform(target).memory_limit_flag or b".remat" not in (final := final_module(compiled)):
        return None
    module = module_from_bytes(final)
    again = rematerialization.ran_again(module)
    if not again:
        return None
    captured = captured or Compiles(lowered, dict(options or {}), {}).capture()
    seconds = rematerialization.seconds_of(
        again, module, CostModel(device(target, device_kind(lowered)), target)
    )
    most = rematerialization.limit(lowered, options, compiled)
    peak = scratch_peak(captured.view, with_results=False)
    return RanAgain(len(again), seconds, None if most is None else peak - most)
