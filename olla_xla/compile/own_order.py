"""XLA's own order on a GPU, compiled without XLA's rematerialization where it fits."""

from __future__ import annotations

import dataclasses
import math

from olla_xla.compile import rematerialization
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.compiles import Compiles
from olla_xla.compile.outcomes import Outcome
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan


def quiet(compiles: Compiles, options: PlanOptions, outcome: Outcome, plan: Plan) -> Outcome:
    """An outcome in XLA's own order without XLA's rematerialization, if that acts and need not."""
    compiled = outcome.compiled
    if not rematerialization.acts_on(final_module(compiled), plan):
        return outcome
    if compiles.too_large(compiled, plan.xla_predicted_bytes):
        return outcome
    own = compiles.own_quiet()
    if own is None or (options.budget_bytes or math.inf) < assigned_bytes(own):
        return outcome
    total = assigned_bytes(own)
    plan = dataclasses.replace(
        plan, xla_bytes=total, assigned_bytes=total, without_rematerialization=True
    )
    return dataclasses.replace(outcome, compiled=own, plan=plan)
