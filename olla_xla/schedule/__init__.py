"""Orders of a tensor graph: heuristics and an improving search.

- `candidates(graph)`: orders by simple rules, by name.
- `by_priority(arrays, priority)`: the legal order nearest to a given one.
- `search(graph, starts, ...)`: local search from some orders towards the least objective.
"""

from olla_xla.schedule.greedy import by_priority
from olla_xla.schedule.heuristics import candidates
from olla_xla.schedule.improve import SearchResult, search

__all__ = ["SearchResult", "by_priority", "candidates", "search"]
