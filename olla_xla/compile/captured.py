"""A scheduled module as XLA handed it over."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from hlo.module import Module, module_from_bytes

__all__ = ["Captured"]


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function as XLA scheduled it.

    Attributes:
      platform: it was compiled for. module: as XLA scheduled it.
      alternative_orders: gives other orders of XLA's, as `planner.module_order` does, for part of
        the time that a compile takes; None where XLA has no other scheduler.
      seconds: what XLA took to get there, or None.
      device_kind: JAX's name of the devices, or "".
      device_bytes: what each has for a step; None where that is not known.
      view: of the module, read once for all that look at it (hlo.module.module_from_bytes).
    """

    platform: str
    module: bytes
    alternative_orders: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
    seconds: float | None = None
    device_kind: str = ""
    device_bytes: int | None = None

    @functools.cached_property
    def view(self) -> Module:
        """The module, read."""
        return module_from_bytes(self.module)
