"""The function that the planner of orders calls for the paper's integer program.

The core imports neither solvers nor integer programs. The package's face, `olla_xla/__init__.py`,
sets this function, as it sets those of `remat/extensions.py` and `compile/extensions.py`. A
satellite's module is loaded when its function is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from olla_xla.problem.graph import TensorGraph
    from olla_xla.problem.options import PlanOptions
    from olla_xla.problem.plan_parts import Proof

order_by_ilp: Callable[
    [TensorGraph, NDArray[np.int64], int, int, PlanOptions, float, Callable[[str], None] | None],
    tuple[NDArray[np.int64], Proof],
]
"""The order of least lifetime peak, int64 [n], and what was proved of it (`PlanOptions.method`
"ilp"): `solvers.programs.orders.order_by_ilp`."""
