"""Options of the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from olla_xla.schedule.search.settings import Settings

__all__ = ["SearchOptions"]


class SearchOptions(TypedDict, total=False):
    """Options of `search`, by keyword; all but `time_limit` may be left out."""

    objective: Callable[[NDArray[np.int64], int | None], int] | None
    """Gives the bytes of an order, or, where these are more than the number that is given with it,
    any number above that one; without an objective they are its lifetime peak."""

    exact: Callable[[NDArray[np.int64]], int] | None
    """The same more exactly and more slowly, to choose among the best orders."""

    excess: int
    """By how many bytes the objective is expected to exceed the lifetime peak at best, as where the
    graph is a part of what the objective measures; 0 if left out."""

    time_limit: Required[float]
    """Wall-clock seconds after which the search ends."""

    step_limit: int | None
    """Steps after which the search ends; there is no such limit if it is left out."""

    seed: int
    """The random numbers follow from it; 0 if left out."""

    bound_bytes: int
    """No order has a smaller lifetime peak, nor a smaller objective; 0 if left out."""

    tolerance: float
    """The search ends at (1 + tolerance) times the bound; 0 if left out."""

    deadline: Callable[[int], float] | None
    """Gives the time of the monotonic clock at which the search ends where its best objective is so
    many bytes, if that is sooner; there is no such limit if it is left out."""

    progress: Callable[[str], None] | None
    """Called with one line of text at each phase."""

    settings: Settings
    """How hard each phase tries."""
