"""How large the ILP of a graph becomes, before it is built."""

from __future__ import annotations

import numpy as np

from olla_xla.memory.arrays import GraphArrays
from olla_xla.schedule.exact.spans import Reach, spans


def coefficients(g: GraphArrays) -> int:
    """An estimate of the coefficients in the rows of the `running` form: up to twice too many.

    An operator has one for each step of its span in the row of that step, and two for each pair
    with a direct predecessor; a tensor one in each row of (14) and three for each user.
    """
    reach = Reach.of(g)
    span = spans(g, reach)
    wide = np.maximum(span.last - span.first, 0)
    useful = np.maximum(span.useful_last - span.useful_first + 1, 0)
    users = np.diff(g.sink_ptr)
    return int((wide * (1 + 2 * np.diff(g.pred_ptr))).sum() + (useful * (1 + 3 * users)).sum())
