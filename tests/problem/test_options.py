"""What a caller may ask for."""

import pytest

import olla_xla
from olla_xla.errors import BudgetError, InputError
from olla_xla.problem.options import PlanOptions, parse_bytes, parse_overhead

pytestmark = pytest.mark.quick


def test_collectives_are_for_loops():
    assert not PlanOptions().collectives
    assert PlanOptions(collectives=True, max_overhead=0.1).collectives
    with pytest.raises(InputError, match="collectives=1 must be True or False"):
        PlanOptions(collectives=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="needs loops=True"):
        PlanOptions(collectives=True, loops=False)


def test_control_edges_go_with_the_integer_program():
    assert PlanOptions(method="ilp", early_updates=True).early_updates
    with pytest.raises(InputError, match="needs method='ilp'"):
        PlanOptions(early_updates=True)
    with pytest.raises(InputError, match="early_updates=1 must be True or False"):
        PlanOptions(method="ilp", early_updates=1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "budget, least, said",
    [
        (5 * 2**20, 24_000_000, "5.0 MB cannot be met.*is 22.9 MB.*'23MiB'"),
        (100_000, 123_456, "97.7 KB cannot be met.*is 120.6 KB.*'121KiB'"),
        (2**20, 2**20 + 2**15, "1,048,576 bytes cannot be met.*is 1,081,344 bytes.*'1056KiB'"),
        (100, 130, "100 bytes cannot be met.*is 130 bytes.*'1KiB'"),
    ],
)
def test_a_budget_that_cannot_be_met_reads_otherwise_than_the_least(budget, least, said):
    with pytest.raises(BudgetError, match=said) as error:
        raise BudgetError(budget, least)
    asked = str(error.value).split("'")[1]
    assert least <= parse_bytes(asked) <= 1.05 * least + 1024


def test_time_in_per_cent():
    assert parse_overhead("5%") == parse_overhead("0.05") == 0.05
    assert parse_overhead("500%") == 5 == PlanOptions(max_overhead=5).max_overhead


@pytest.mark.parametrize("value", [5, "5", 5.0])
def test_a_number_that_is_likely_per_cent_is_asked_about(value):
    with pytest.raises(InputError, match='500 %.*write "5.*%" for 5.* %, or "500%"'):
        olla_xla.plan(lambda x: x, max_overhead=value)
