"""A scheduled module as XLA handed it over."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from hlo.module import Module, module_from_bytes


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function's module as XLA scheduled it, and what planning must know of the compile.

    Attributes:
      platform: that it was compiled for. module: as XLA scheduled it, serialized.
      alternative_orders: compiles up to the schedule with another scheduler of XLA's; returns its
        instruction names by computation, in order. None where XLA has no other scheduler.
      seconds: that XLA took up to the schedule, or None.
      device_kind: JAX's name of the kind of device, or "".
      device_bytes: memory that a step may use on one device; None where that is not known.
    """

    platform: str
    module: bytes
    alternative_orders: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
    seconds: float | None = None
    device_kind: str = ""
    device_bytes: int | None = None

    @functools.cached_property
    def view(self) -> Module:
        """The captured HLO module, parsed at the first use and kept for all readers."""
        return module_from_bytes(self.module)
