"""Options of the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from olla_xla.schedule.search.settings import SearchSettings


class SearchOptions(TypedDict, total=False):
    """Options of `search`, by keyword; all but `time_limit` may be left out."""

    objective: Callable[[NDArray[np.int64], int | None], int] | None
    """(order, limit) -> bytes of the order; if these exceed the limit, any number above it will do.
    Without an objective, the lifetime peak is minimised."""

    exact: Callable[[NDArray[np.int64]], int] | None
    """A slower and more exact objective (bytes), by which the best orders are compared."""

    excess: int
    """The least bytes by which the objective is expected to exceed the lifetime peak, as where the
    graph is only a part of what the objective measures; 0 if left out."""

    time_limit: Required[float]
    """Wall-clock seconds after which the search ends."""

    step_limit: int | None
    """Steps after which the search ends; there is no such limit if it is left out."""

    seed: int
    """Seed of the random numbers; 0 if left out."""

    bound_bytes: int
    """No order has a smaller lifetime peak, nor a smaller objective; 0 if left out."""

    tolerance: float
    """The search ends at (1 + tolerance) times the bound; 0 if left out."""

    deadline: Callable[[int], float] | None
    """Best objective (bytes) -> time by time.monotonic() at which the search ends, if that is
    sooner than `time_limit`; there is no such limit if it is left out."""

    progress: Callable[[str], None] | None
    """Called with one line of text at each phase."""

    settings: SearchSettings
    """How hard each phase tries."""
