"""Plans whole modules: an order for every computation, in-place results, recomputation.

- `plan_module(module, options, target=...)`: the plan of a scheduled module.
- `apply_plan(module, plan)`: the module with the plan written into it.
- `graphs`, `module_order`: tensor graphs and schedules of a scheduled module.
"""

from olla_xla.planner.apply import apply_plan, graphs, module_order
from olla_xla.planner.pipeline import plan_module

__all__ = ["apply_plan", "graphs", "module_order", "plan_module"]
