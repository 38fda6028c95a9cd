"""The paper's integer program, and other forms of it, beside the one that plans use.

- `least_peak(graph, form=...)`: orders, by each of `FORMS`.
- `control_edges(graph)`: the paper's edges that make weight updates run early.
"""

from benchmarks.papers.ilp_forms.forms import FORMS, least_peak
from olla_xla.solvers.programs.orders import control_edges

__all__ = ["FORMS", "control_edges", "least_peak"]
