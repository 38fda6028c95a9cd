"""The fewest pieces with which a model's step fits a memory budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from olla_xla.compile import decorator
from olla_xla.pieces.in_pieces import FissionChoice
from olla_xla.problem.options import PlanOptions
from olla_xla.targets.target import Target
from olla_xla.tools.models import BuiltModel, tracing
from olla_xla.tools.step import plan_progress


def fit(
    model: BuiltModel, target: Target, options: PlanOptions, progress: Callable[[str], None]
) -> FissionChoice:
    """What `decorator.plan(..., memory_budget=, fission=True)` chooses for a model's step.

    Args:
      model: the step. target: what to compile it for. options: with a budget.
      progress: called with one line at each improvement.

    Raises:
      BudgetError: no number of pieces and no recomputation meets the budget; it says what forbids.
      InputError: the step cannot be traced.
    """
    arguments = target.place(model.arguments)
    settings = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    with tracing(model.name), plan_progress(progress):
        function = decorator.plan(model.step, fission=True, **settings, **model.jit_options)
        return function.choice(*arguments)
