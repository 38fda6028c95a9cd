"""Formulations: a graph turned into a model that a solver can take, and its answer turned back.

- `least_peak(graph, form=...)`: orders, by the paper's lifetime ILP or by our own forms of it.
- `plain_graph(graph)`: what the paper counts.
"""

from olla_xla.formulations.exact import FORMS, ExactOrder, least_peak
from olla_xla.formulations.plain import plain_graph

__all__ = ["FORMS", "ExactOrder", "least_peak", "plain_graph"]
