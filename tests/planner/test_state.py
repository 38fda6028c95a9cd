"""A module while it is planned: what is left of times and allowances, and the plan at the end."""

import dataclasses

import pytest

from hlo.module import module_from_bytes
from hlo.parse import from_hlo_text
from hlo.read import with_program_order
from olla_xla.memory import clock
from olla_xla.planner.passes import rewriting
from olla_xla.planner.state import WORTH, Edits, ModuleState, PlanRequest
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.roofline import CostModel, Device
from tests.support.plans import made_plan

MODULE = module_from_bytes(
    with_program_order(
        from_hlo_text(
            "HloModule m\nENTRY e { x = f32[4096] parameter(0)\n  a = f32[4096] exponential(x)\n"
            "  ROOT r = f32[4096] negate(a) }"
        )
    )
)
TOTAL = 2 * 4 * 4096
"""Of the argument and the result; `a` is written over."""
COST = CostModel(Device("CPU", 1e9, 1e9, 1e9, 1e9, 1e-6), "cpu")
PLAN = made_plan(predicted_bytes=10_000)


def state(plan=PLAN, request=(), **fields):
    asked = PlanRequest(
        **{"own": MODULE, "options": PlanOptions(), "target": "cpu", "cost": COST}
        | {"started": clock.now()}
        | dict(request)
    )
    return ModuleState(asked, MODULE, plan=plan, **fields)


def test_more_time_is_worth_a_thousandth_unless_there_is_a_budget():
    assert state().least_worth == int(10_000 * WORTH) < 10_000
    budget = {"options": PlanOptions(memory_budget=1)}
    assert state(request=budget).least_worth == 10_000


@pytest.mark.parametrize(("first", "second"), [(9, 7), (7, 9), (7, 7)])
def test_both_choices_of_residuals_are_followed_to_their_end(monkeypatch, first, second):
    """What takes more bytes of residuals may take fewer in all, of what is left of the time."""
    ends = {"least": first, "other": second}
    limits = {}

    def chosen(given):
        other = dataclasses.replace(given, edits=Edits(sources=("other",)))
        return dataclasses.replace(given, edits=Edits(sources=("least",)), other=other)

    def lowered(given):
        (name,) = given.edits.sources
        limits[name] = given.limit
        assert given.other is None
        plan = dataclasses.replace(PLAN, predicted_bytes=ends[name])
        return dataclasses.replace(given, plan=plan)

    monkeypatch.setattr(rewriting.scan_residuals, "run", chosen)
    monkeypatch.setattr(rewriting.rematerialise, "run", lowered)
    monkeypatch.setattr(rewriting.relax_overlap, "run", lambda given: given)
    found = rewriting.recomputed(state(limit=8.0))
    assert found.ordered.predicted_bytes == 7 and found.limit == 8.0 and found.other is None
    assert found.edits.sources == (("least",) if first <= second else ("other",))
    assert 3.0 < limits["least"] < 5.0 and limits["other"] > 7.0, "half of the time, then the rest"
