"""A scheduled module as XLA handed it over."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from hlo.module import Module, module_from_bytes


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function's module as XLA scheduled it, with what planning needs to know of the compile.

    Attributes:
      platform: that it was compiled for. module: as XLA scheduled it, serialized.
      alternative_orders: returns orders by another scheduler of XLA's, computation -> instruction
        names, by a compile up to the schedule; None where XLA has no other scheduler.
      seconds: that XLA took up to the schedule, or None.
      device_kind: JAX's name of the devices, or "".
      device_bytes: memory of each for a step; None where that is not known.
      view: the module, parsed once for all readers (hlo.module.module_from_bytes).
    """

    platform: str
    module: bytes
    alternative_orders: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
    seconds: float | None = None
    device_kind: str = ""
    device_bytes: int | None = None

    @functools.cached_property
    def view(self) -> Module:
        """The captured module, parsed once for all readers."""
        return module_from_bytes(self.module)
