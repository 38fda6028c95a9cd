"""Formulations: a graph turned into a model that a solver can take, and its answer turned back.

- `least_peak(graph)`: orders, by the paper's lifetime ILP in the form that is solved fastest.

The paper's own forms, for comparison, are `benchmarks.papers.ilp_forms`.
"""

from olla_xla.schedule.exact.forms import ExactOrder, least_peak

__all__ = ["ExactOrder", "least_peak"]
