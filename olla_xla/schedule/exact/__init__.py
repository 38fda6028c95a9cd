"""Formulations: a graph turned into a model that a solver can take, and its answer turned back.

- `least_peak(graph)`: orders, by the paper's lifetime ILP in the form that is solved fastest.
- `plain_graph(graph)`: what the paper counts.

The paper's own forms, for comparison, are `benchmarks.papers.ilp_forms`.
"""

from olla_xla.schedule.exact.forms import ExactOrder, least_peak
from olla_xla.schedule.exact.plain import plain_graph

__all__ = ["ExactOrder", "least_peak", "plain_graph"]
