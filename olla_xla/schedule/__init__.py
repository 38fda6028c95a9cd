"""Orders of a tensor graph: heuristics and an improving search.

- `candidates(graph)`: orders by simple rules, by name.
- `by_priority(arrays, priority)`: the legal order that takes ready operators by priority.
- `search.phases.search(graph, starts, ...)`: lowers an objective, starting from given orders.
"""

from olla_xla.schedule.rules import by_priority, candidates

__all__ = ["by_priority", "candidates"]
