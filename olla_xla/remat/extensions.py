"""Integer programs for recomputation, with bounds; another package provides them.

As `problem/extensions.py`: `olla_xla/__init__.py` sets these functions of `solvers.programs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from olla_xla.remat.graph import RematGraph
    from olla_xla.remat.loops.choice import Choice, SolvedChoices

evictions: Callable[[RematGraph, int, float], tuple[NDArray[np.int64] | None, float]]
"""From a graph, the bytes of its highest lifetime peak and the seconds for solving to the evictions
that add the least time, int64 [k, 2], or None where none were found; and to a lower bound on the
seconds that are added (`solvers.programs.recomputation`)."""

fewest_bytes: Callable[[Sequence[Choice], float], SolvedChoices | None]
"""From the choices of each pair of loops and the seconds that may be added to the scan residuals of
the fewest bytes; None where none are found (`solvers.programs.residuals`)."""

least_seconds: Callable[[Sequence[Choice], int], SolvedChoices | None]
"""From these choices and the most bytes of scan residuals to those that add the least time."""
