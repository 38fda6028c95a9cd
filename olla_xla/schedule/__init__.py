"""Orders of a tensor graph: heuristics and an improving search.

- `candidates(graph)`: orders by simple rules, by name.
- `by_priority(arrays, priority)`: the legal order nearest to a given one.
- `search.phases.search(graph, starts, ...)`: from some orders towards the least objective.
"""

from olla_xla.schedule.rules.all import candidates
from olla_xla.schedule.rules.greedy import by_priority

__all__ = ["by_priority", "candidates"]
