"""What the search found."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from olla_xla.problem.stop_reason import StopReason


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """The best orders that the search found, and the bound that it proved.

    Attributes:
      order: int64 [n], all operators. peak_bytes: its lifetime peak.
      objective_bytes: its objective (the lifetime peak if no objective was given).
      lifetime_order: the order with the least lifetime peak met. least_peak_bytes: that peak.
      near_orders: a few others whose peak is slightly higher.
      bound_bytes: no order has a lower lifetime peak.
      cut_at: the operator with the largest minimum cut of its own, which proves the bound unless
        several cuts prove more together; -1 if none is above the bound given.
      steps: search steps taken.
      stopped_by: PROOF, STALL, STEP_LIMIT or TIME_LIMIT.
    """

    order: NDArray[np.int64]
    peak_bytes: int
    objective_bytes: int
    lifetime_order: NDArray[np.int64]
    near_orders: tuple[NDArray[np.int64], ...]
    least_peak_bytes: int
    bound_bytes: int
    cut_at: int
    steps: int
    stopped_by: StopReason
