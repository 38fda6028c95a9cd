"""Formulations: a graph turned into a model that a solver can take, and its answer turned back.

- `least_peak(graph, form=...)`: orders, by the paper's lifetime ILP or by our own forms of it.
- `relaxed_bound(graph, form=...)`: a lower bound, by the ILP's linear relaxation.
- `plain_graph(graph)`: what the paper counts.
- `control_edges(graph)`: the paper's edges that make weight updates run early.
"""

from olla_xla.schedule.exact.control import control_edges
from olla_xla.schedule.exact.forms import FORMS, ExactOrder, least_peak
from olla_xla.schedule.exact.plain import plain_graph
from olla_xla.schedule.exact.relaxation import relaxed_bound

__all__ = [
    "FORMS",
    "ExactOrder",
    "control_edges",
    "least_peak",
    "plain_graph",
    "relaxed_bound",
]
