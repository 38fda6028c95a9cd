"""Orders of a tensor graph: heuristics and an improving search.

- `candidates(graph)`: orders by simple rules, by name.
- `by_priority(arrays, priority)`: the legal order that takes ready operators by priority.
- `search.phases.search(graph, starts, ...)`: lowers an objective, starting from given orders.
"""

from hlo.late import late_modules
from olla_xla.schedule.rules import by_priority, candidates

__getattr__ = late_modules(__name__, "early")

__all__ = ["by_priority", "candidates"]
