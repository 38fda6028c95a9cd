"""Orders of a tensor graph: heuristics and an improving search.

- `candidates(graph)`: orders by simple rules, by name.
- `search(graph, starts, ...)`: local search from some orders towards the least objective.
"""

from olla_xla.schedule.heuristics import candidates
from olla_xla.schedule.improve import SearchResult, search

__all__ = ["SearchResult", "candidates", "search"]
