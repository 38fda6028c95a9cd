"""Which number of pieces is chosen, by totals and times that are given: nothing is compiled."""

import pytest

from olla_xla.errors import InputError
from olla_xla.pieces.in_pieces import PiecesTrial, _Search

pytestmark = pytest.mark.quick


class Region:
    def __init__(self, units):
        self.units = units


class Plan:
    def __init__(self, units):
        self.regions = [Region(units)]


class Table(_Search):
    """The search over a table: pieces -> (XLA's total, planned total, seconds, planned seconds)."""

    def __init__(self, budget, rows, units=64, cannot=""):
        self._budget, self._rows, self._units, self._cannot = budget, rows, units, cannot
        self._trials, self._planned, self._plans, self._reason = {}, {}, {}, ""
        self._args, self._kwargs, self.compiled, self.plans = (), {}, [], []

    def _jitted(self, pieces):
        table = self

        class Traced:
            def trace(self):
                if table._cannot:
                    raise InputError(table._cannot)
                table._plans[pieces] = Plan(table._units)

        return Traced()

    def _compile(self, pieces):
        self.compiled.append(pieces)
        self._plans[pieces] = Plan(self._units)
        total, _, seconds, _ = self._rows[pieces]
        self._trials[pieces] = PiecesTrial(pieces, total, seconds, seconds)

    def _plans_within(self, pieces):
        self.plans.append(pieces)
        xla, planned, seconds, slower = self._rows[pieces]
        self._trials[pieces] = PiecesTrial(pieces, xla, seconds, slower, planned)
        if planned <= self._budget:
            self._planned[pieces] = f"function of {pieces}"
        return planned <= self._budget


def test_pieces_are_doubled_until_xla_fits_and_fewer_are_planned():
    rows = {
        1: (400, 300, 1.0, 1.0),
        2: (250, 190, 1.1, 1.2),
        4: (150, 95, 1.2, 1.25),
        8: (100, 80, 1.3, 1.3),
    }
    search = Table(100, rows)
    choice, function = search.run()
    assert search.compiled == [1, 2, 4, 8], "each one compiled, no more than needed"
    assert (choice.pieces, function) == (4, "function of 4"), "a plan in 4 fits and is faster"
    assert search.plans == [8, 4, 2], "2 pieces do not fit, so 1 is not tried"
    assert [t.pieces for t in choice.trials] == [1, 2, 4, 8]
    assert choice.plan is search._plans[4]


def test_fewer_pieces_that_take_longer_are_not_chosen():
    rows = {1: (400, 400, 1.0, 1.0), 2: (150, 95, 1.2, 1.5), 4: (100, 80, 1.3, 1.4)}
    choice, function = Table(100, rows).run()
    assert (choice.pieces, function) == (4, "function of 4")
    rows[2] = (150, 95, 1.2, 1.4)
    assert Table(100, rows).run()[0].pieces == 2, "as long is not longer"


def test_where_more_pieces_save_nothing_the_plan_of_the_fewest_as_good_is_taken():
    rows = {1: (400, 380, 1.0, 1.0), 2: (200, 99, 1.1, 1.2), 4: (199, 98, 1.3, 1.4)}
    search = Table(100, rows)
    choice, _ = search.run()
    assert search.compiled == [1, 2, 4] and choice.pieces == 2
