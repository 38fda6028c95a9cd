"""What `olla_xla.plan` jits of what it is given: unwrapped, or inlined as it is."""

import pytest

import olla_xla
from olla_xla.compile import decorator
from olla_xla.errors import InputError

pytestmark = pytest.mark.quick


def step(state, x):
    return state + x


@pytest.mark.parametrize("backend", ["highs", "cpsat"])
def test_a_backend_is_jaxs_unless_it_names_a_solver(backend):
    assert not decorator._is_jits("backend", backend)
    assert decorator._is_jits("backend", "cpu") and decorator._is_jits("donate_argnums", 0)
    assert not decorator._is_jits("seed", 0)


@pytest.mark.parametrize("switch", ["enabled", "fission"])
@pytest.mark.parametrize("value", [0, None, "yes"])
def test_switches_are_true_or_false(switch, value):
    with pytest.raises(InputError, match=f"{switch}=.* must be True or False"):
        olla_xla.plan(step, **{switch: value})
