"""A limit of time holds for all of planning: what comes before a search counts too."""

import time

from hlo.read import from_hlo_text
from olla_xla.planner import module as planner_module
from olla_xla.planner import warm_up
from olla_xla.problem.options import PlanOptions


def test_what_comes_before_the_search_counts(monkeypatch):
    ladder, plan_order = planner_module.Ladder, planner_module.plan_order
    spent = []

    def slow(*args):
        time.sleep(0.2)
        return ladder(*args)

    def measured(*args, began, **kwargs):
        spent.append(time.monotonic() - began)
        return plan_order(*args, began=began, **kwargs)

    monkeypatch.setattr(planner_module, "Ladder", slow)
    monkeypatch.setattr(planner_module, "plan_order", measured)
    module = from_hlo_text(warm_up._text())
    plan = planner_module.plan_module(module, PlanOptions(time_limit=1), target="cpu")
    assert spent[0] >= 0.2
    assert plan.seconds >= 0.2
    assert plan.time_limit == 1
