"""What a search may take by default."""

import itertools

import jax
import pytest

from olla_xla.memory import clock
from olla_xla.planner import plan_module
from olla_xla.planner.effort import Timing, effort, recomputation_limit
from olla_xla.problem.options import PlanOptions
from tests.support import compiles, loop_programs

MIB = 2**20


@pytest.mark.quick
@pytest.mark.parametrize(
    ("seconds", "total", "bound", "expected"),
    [
        (0.1, 1010 * MIB, 1000 * MIB, 0.15 + 0.01),  # a little to be gained
        (0.1, 1100 * MIB, 1000 * MIB, 0.25 + 0.1),  # much
        (0.1, 2000 * MIB, 1000 * MIB, 0.25 + 0.1),  # the widest gap that counts
        (10.0, 1010 * MIB, 1000 * MIB, 10 * (0.12 + 6 * 0.01)),  # in proportion to XLA's time
        (1000.0, 2000 * MIB, 1000 * MIB, 20.0),
        (1000.0, 2 * MIB - 1, MIB, 0.15),  # whatever the part, it is less than 1 MiB
    ],
)
def test_seconds_by_what_xla_took_and_what_may_be_gained(seconds, total, bound, expected):
    found = effort(PlanOptions(), Timing(seconds), total, bound)
    assert found.seconds == found.worth(total) == pytest.approx(expected)
    assert found.enough_bytes == max(256 * 2**10, bound // 2000)


@pytest.mark.quick
def test_a_search_that_finds_nothing_more_ends_early():
    found = effort(PlanOptions(), Timing(10.0), 1100 * MIB, 1000 * MIB)
    assert found.until(1100 * MIB, started=5.0, now=5.01) == pytest.approx(5.11)
    assert found.until(1100 * MIB, started=5.0, now=7.0) == pytest.approx(8.2)
    assert found.until(1100 * MIB, started=5.0, now=11.9) == 5.0 + found.worth(1100 * MIB)
    asked = effort(PlanOptions(time_limit=3.0), Timing(10.0), 1100 * MIB, 1000 * MIB)
    assert asked.until(1100 * MIB, started=5.0, now=5.01) == 8.0


@pytest.mark.quick
def test_limits_that_were_asked_for_stand_for_themselves():
    assert effort(PlanOptions(time_limit=3.0), Timing(0.1), 2000 * MIB, 1000 * MIB).worth(0) == 3.0
    budget = PlanOptions(memory_budget=10)
    assert effort(budget, Timing(0.1), 2000 * MIB, 1000 * MIB).seconds == 20.0
    assert effort(budget, Timing(0.1, longest=8.0), 2000 * MIB, 1000 * MIB).seconds == 8.0
    assert effort(PlanOptions(), Timing(None), 2000 * MIB, 1000 * MIB).seconds == 20.0


@pytest.mark.quick
def test_a_loop_that_could_gain_little_of_it_is_left():
    found = effort(PlanOptions(), Timing(1.0), 1100 * MIB, 1000 * MIB)
    assert found.negligible(1100 * MIB) == pytest.approx(1.0 * MIB)  # a hundredth of the gap
    assert found.negligible(2000 * MIB) == pytest.approx(2.0 * MIB)  # a thousandth of the total
    assert found.negligible(1001 * MIB) == pytest.approx(0.1001 * MIB)  # nearly nothing to gain
    asked = effort(PlanOptions(time_limit=3.0), Timing(1.0), 1100 * MIB, 1000 * MIB)
    assert asked.negligible(1100 * MIB) == pytest.approx(0.11 * MIB)


@pytest.mark.quick
def test_an_overhead_is_looked_for_in_proportion_to_what_xla_took():
    asked = PlanOptions(max_overhead=0.1)

    def limit(schedule_seconds, total, least, options=asked, spent=1.0):
        return recomputation_limit(options, schedule_seconds, spent, total, least)

    assert limit(2.0, 1000 * MIB, 750 * MIB) == pytest.approx(1 + 2 * (0.5 + 4 * 0.25))
    # Below two seconds the part that is for what could go shrinks.
    assert limit(1.0, 100 * MIB, 75 * MIB) == pytest.approx(1 + 0.5 + 4 * 0.25 / 2)
    assert limit(0.01, 8 * MIB, 6 * MIB) == 1.25
    # Many bytes are worth more than a short compile's part: a second for each 64 MB, up to two.
    assert limit(0.01, 100 * MIB, 4 * MIB) == 1 + 1.5
    assert limit(0.01, 1000 * MIB, 750 * MIB) == 3.0
    assert limit(100.0, 1000 * MIB, 0) == 21.0
    assert limit(100.0, 2 * MIB - 1, MIB) == 1.15  # nothing that would be worth it
    # Where XLA's time is not known, or a limit or a budget was given, that is all of planning's.
    assert limit(None, 1000 * MIB, 750 * MIB) == 20.0
    assert limit(2.0, 1000 * MIB, 0, PlanOptions(max_overhead=0.1, time_limit=5.0)) == 5.0
    assert limit(2.0, 1000 * MIB, 0, PlanOptions(memory_budget=10)) == 20.0
    assert limit(2.0, 1000 * MIB, 0, PlanOptions(memory_budget=10), spent=30.0) == 20.0


def test_steps_alone_limit_a_plan_and_no_clock(monkeypatch):
    step, arguments = loop_programs.PROGRAMS["gradient_of_a_gradient"]()
    module = compiles.xla_schedule(jax.jit(step).lower(*arguments))
    options = PlanOptions(step_limit=200, max_overhead=0.5)
    plain = plan_module(module, options, target="cpu")
    began, calls = clock.now(), itertools.count()
    monkeypatch.setattr(clock, "now", lambda: began + 20.0 * next(calls))
    slow = plan_module(module, options, target="cpu")
    assert next(calls) > 20, "the clock has passed any limit by far"
    assert slow.order == plain.order and slow.loops == plain.loops
    assert slow.predicted_bytes == plain.predicted_bytes < plain.xla_predicted_bytes
