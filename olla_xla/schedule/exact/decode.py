"""From the variables of an ILP to an order (function 1 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import SolverError


def sequence(running: Sequence[Iterable[int]], n: int) -> NDArray[np.int64]:
    """The execution order of operators, from those that run at each step of an ILP's solution.

    Args:
      running: by step, the operators that create a tensor there. Those of one step do not depend
        on each other, by equation (4); they are taken by number.
      n: how many operators there are.

    Returns:
      int64 [n], operators in the order they run.

    Raises:
      SolverError: an operator runs twice or not at all.
    """
    order = [v for step in running for v in sorted(step)]
    if sorted(order) != list(range(n)):
        missing = sorted(set(range(n)) - set(order))
        raise SolverError(f"the solution runs {len(order)} of {n} operators, without {missing[:5]}")
    return np.array(order, np.int64)
