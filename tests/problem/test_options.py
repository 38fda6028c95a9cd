"""What a caller may ask for."""

import pytest

from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions

pytestmark = pytest.mark.quick


def test_collectives_are_for_loops():
    assert not PlanOptions().collectives
    assert PlanOptions(collectives=True, max_overhead=0.1).collectives
    with pytest.raises(InputError, match="collectives=1 must be True or False"):
        PlanOptions(collectives=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="leave out loops=False"):
        PlanOptions(collectives=True, loops=False)


def test_control_edges_go_with_the_integer_program():
    assert PlanOptions(method="ilp", early_updates=True).early_updates
    with pytest.raises(InputError, match="is of method='ilp'"):
        PlanOptions(early_updates=True)
    with pytest.raises(InputError, match="early_updates=1 must be True or False"):
        PlanOptions(method="ilp", early_updates=1)  # pyright: ignore[reportArgumentType]
