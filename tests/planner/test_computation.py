"""Orders that enter the search keep the graph's precedence, whoever made them."""

import numpy as np
import pytest

from hlo.text import from_hlo_text
from olla_xla.check.graph import check_schedule
from olla_xla.memory import clock
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.planner.computation import SearchLimits, solve
from olla_xla.planner.effort import Effort
from olla_xla.planner.work import Candidates
from olla_xla.problem.options import PlanOptions

TEXT = """
HloModule m, is_scheduled=true

double {
  p = f32[64] parameter(0)
  ROOT d = f32[64] add(p, p)
}

ENTRY main {
  a = f32[64] parameter(0)
  t = f32[64] tanh(a)
  x = f32[64] custom-call(t), custom_call_target="x", custom_call_has_side_effect=true
  y = f32[64] custom-call(a), custom_call_target="y", custom_call_has_side_effect=true
  s = f32[64] sine(t)
  f = f32[64] fusion(t), kind=kLoop, calls=double, output_to_operand_aliasing={{}: (0, {})}
  ROOT r = (f32[64], f32[64], f32[64], f32[64]) tuple(x, y, s, f)
}
"""


@pytest.fixture
def work():
    planned = PlannedModule(scheduled_module(from_hlo_text(TEXT)), "cpu")
    return Candidates(planned, planned.lowered(planned.module.entry))


def names(work, order):
    return [work.lowered.instructions[k].name.split(".")[0] for k in order]


def in_module(work, order):
    """The module's own names for these."""
    own = {i.name.split(".")[0]: i.name for i in work.lowered.instructions}
    return [own[name] for name in order.split()]


def test_a_legal_order_stays_as_it_is(work):
    given = "a t s x y f r"
    order = work.named(in_module(work, given))["xla_memory"]
    assert names(work, order) == given.split()


@pytest.mark.parametrize(
    ("given", "repaired"),
    [
        ("a y t x s f r", "a t x y s f r"),  # what the host sees keeps its order
        ("a t f x y s r", "a t x y s f r"),  # readers come before what overwrites their operand
    ],
)
def test_an_order_of_another_scheduler_is_repaired(work, given, repaired):
    order = work.named(in_module(work, given))["xla_memory"]
    assert names(work, order) == repaired.split()
    check_schedule(work.graph, order.tolist())


def test_an_order_of_other_instructions_is_left_out(work):
    assert work.named(["nobody"]) == {} and work.named([]) == {}


def test_whatever_is_added_is_legal(work):
    work.add({"backwards": np.arange(work.arrays.n)[::-1]})
    check_schedule(work.graph, work.starts["backwards"].tolist())


@pytest.mark.parametrize("steps", [1, 400])
def test_a_solution_is_never_above_xlas_order_and_the_same_each_time(steps):
    found = []
    for _ in range(2):
        planned = PlannedModule(scheduled_module(from_hlo_text(TEXT)), "cpu")
        own = planned.simulate().total_bytes
        estimate = Candidates.at(planned, planned.module.entry)
        options = PlanOptions(step_limit=steps)
        limits = SearchLimits(options, Effort(60.0), clock.now(), progress=[].append)
        solved = solve(estimate, limits, 60.0)
        assert solved.module.simulate().total_bytes <= own
        assert solved.bound <= solved.least <= solved.peak
        check_schedule(solved.graph, solved.order.tolist(), solved.peak)
        found.append((solved.order.tolist(), solved.source, solved.steps))
    assert found[0] == found[1]
