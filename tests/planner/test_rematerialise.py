"""Which choice of what to compute again is taken, of choices whose bytes and seconds are told."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest

from olla_xla.errors import BudgetError
from olla_xla.planner.passes import rematerialise
from olla_xla.planner.passes.rematerialise import _Tried
from olla_xla.remat.greedy import Point


def point(peak, seconds, evictions=1):
    return Point(peak, seconds, 10, np.full((evictions, 2), peak, np.int64))


class Front:
    """Choices: (peak, seconds, total of the module with it, seconds that hide less)."""

    def __init__(self, *choices, outside=0, repeats=False):
        self.choices = {point(peak, seconds): more for peak, seconds, *more in choices}
        self.outside = outside
        self.graph = SimpleNamespace(repeats=repeats)
        self.asked = []

    def below(self, peak):
        return sorted((p for p in self.choices if p.peak <= peak), key=lambda p: p.seconds)

    def within(self, seconds):
        start = point(1000, 0.0, evictions=0)
        able = [p for p in self.choices if p.seconds <= seconds]
        return sorted([start, *able], key=lambda p: p.peak)

    def least(self):
        return min(self.choices, key=lambda p: p.peak)

    def next_target(self, peak):
        return peak

    def refined(self, chosen, target, seconds):
        assert chosen.peak <= target
        return chosen, chosen.seconds / 2

    def write(self, chosen):
        self.asked.append(chosen.peak)
        return chosen, ()


@dataclasses.dataclass
class State:
    """A state whose orders have the totals that the front says."""

    front: Front
    total: int = 1000
    least_worth: int = 999
    run_seconds: float = 1.0
    target: str = "cuda"

    @property
    def ordered(self):
        return SimpleNamespace(predicted_bytes=self.total, kernels={}, order=None)

    @property
    def request(self):
        return SimpleNamespace(target=self.target, cost=self)

    def ordered_anew(self, module, kernels, seconds):
        total, *hidden = self.front.choices[module]
        if total is None:
            return None
        longer = module.seconds + sum(hidden)
        return SimpleNamespace(predicted_bytes=total, kernels={}, order=longer)


@pytest.fixture
def tried(monkeypatch):
    def seconds(module, state, order):
        return state.run_seconds + (order if state.target == "cuda" else module.seconds)

    monkeypatch.setattr(rematerialise, "run_seconds", seconds)

    def of(*choices, deadline=math.inf, **options):
        front = Front(*choices, **options)
        # An hour is as good as for ever.
        return _Tried(State(front), front, min(deadline, rematerialise.clock.now() + 3600))

    return of


def test_the_cheapest_that_meets_the_budget_is_taken(tried):
    one = tried((800, 1.0, 850), (700, 2.0, 750), (600, 3.0, 640))
    found = one.cheapest(800, math.inf)
    assert (found.plan.predicted_bytes, found.seconds, found.bound) == (750, 2.0, 1.0)
    assert found.moved == 10 and found.exposed == 0.0
    assert one.front.asked == [800, 700]


def test_what_placing_costs_one_it_is_taken_to_cost_the_next(tried):
    """790 is over by 120: the next may have half of that less."""
    one = tried((790, 1.0, 920), (760, 1.5, 890), (740, 2.0, 800), (500, 3.0, 600))
    assert one.cheapest(800, math.inf).plan.predicted_bytes == 800
    assert one.front.asked == [790, 740]


def test_the_lowest_is_tried_at_last_and_the_least_is_told(tried):
    one = tried((800, 1.0, 900), (700, 2.0, 880), (690, 9.0, 820))
    with pytest.raises(BudgetError) as refused:
        one.cheapest(800, math.inf)
    assert refused.value.least_bytes == 820 and one.front.asked[-1] == 690
    assert "max_overhead" not in str(refused.value)


def test_what_takes_longer_than_allowed_is_left(tried):
    one = tried((700, 2.0, 700), (600, 1.0, 650))
    assert one.cheapest(800, 1.5).plan.predicted_bytes == 650
    one = tried((700, 2.0, 700))
    with pytest.raises(BudgetError, match="max_overhead") as refused:
        one.cheapest(800, 1.5)
    assert refused.value.least_bytes == 1000 and not one.front.asked


def test_bytes_outside_the_computation_count(tried):
    one = tried((700, 1.0, 750), (600, 2.0, 760), outside=150)
    assert one.cheapest(800, math.inf).seconds == 2.0
    assert one.front.asked == [600]


def test_the_least_total_of_the_lowest_peaks(tried):
    one = tried((500, 5.0, 960), (600, 4.0, 930), (700, 3.0, 940), (800, 2.0, 900))
    assert one.least_total(math.inf).plan.predicted_bytes == 930
    assert one.front.asked == [500, 600, 700], "the three lowest"
    one = tried((500, 5.0, 960), (600, 4.0, 930))
    assert one.least_total(4.5).seconds == 4.0 and one.front.asked == [600]


def test_a_total_that_is_not_worth_it_is_none(tried):
    assert tried((500, 5.0, 999)).least_total(math.inf) is None
    assert tried((500, 5.0, 998)).least_total(math.inf) is not None
    assert tried((500, 5.0, 900)).least_total(0.0) is None


def test_what_hides_less_is_added_time(tried):
    """And leaves less for the rest, where it makes the whole too long."""
    one = tried((500, 5.0, 900, 2.0), (600, 4.0, 950, 0.0), repeats=True)
    found = one.least_total(8.0)
    assert (found.seconds, found.exposed, found.plan.predicted_bytes) == (7.0, 2.0, 900)
    one = tried((500, 5.0, 900, 2.0), (600, 4.0, 950, 0.0), repeats=True)
    assert one.least_total(6.0).plan.predicted_bytes == 950
    one = tried((500, 5.0, 900, 2.0), repeats=True)
    assert one.least_total(6.0) is None
    three = [(peak, 5.0, 900, 2.0) for peak in (500, 510, 520)]
    one = tried(*three, (600, 3.5, 950), (610, 4.5, 940), repeats=True)
    assert one.least_total(6.0).seconds == 3.5, "of what takes 4 at most"
    one = tried((500, 5.0, 900, 2.0), repeats=True)
    one.state.target = "cpu"  # nothing runs beside
    assert one.least_total(6.0).seconds == 5.0


def test_more_is_looked_for_where_choices_take_less_than_their_price(tried):
    """Clones hand out only what is read of them, which the price of a choice does not know."""
    one = tried((600, 5.0, 950, -1.0), (500, 6.0, 900, -1.2))
    found = one.least_total(5.0)
    assert (found.plan.predicted_bytes, found.exposed) == (900, 0.0)
    assert found.seconds == pytest.approx(4.8) and found.bound <= found.seconds
    assert one.front.asked == [600, 500]
    one = tried((600, 5.0, 950, -1.0), (500, 6.0, 900, -0.5))
    assert one.least_total(5.0).plan.predicted_bytes == 950, "the other takes 5.5"
    one = tried((600, 5.0, 950, -1.0), (500, 6.0, 900, -1.2))
    assert one.cheapest(920, 5.0).plan.predicted_bytes == 900
