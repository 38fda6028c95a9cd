"""What `olla_xla.plan` jits of what it is given: unwrapped, or inlined as it is."""

import jax
import pytest

import olla_xla
from olla_xla.compile import decorator
from olla_xla.compile.planned_function import PlanSettings
from olla_xla.errors import InputError, JitError, VersionError
from olla_xla.problem.options import PlanOptions

pytestmark = pytest.mark.quick


def step(state, x):
    return state + x


def settings(**options):
    return PlanSettings(PlanOptions(**options), None, None, True)


def test_a_function_is_jitted_as_it_is():
    assert decorator._to_jit(step, {}, None) == (step, {})
    assert decorator._to_jit(step, {"donate_argnums": 0}, settings()) == (
        step,
        {"donate_argnums": 0},
    )


def test_a_jitted_function_is_unwrapped_with_its_arguments():
    jitted = jax.jit(step, donate_argnums=1)
    function, options = decorator._to_jit(jitted, {}, None)
    assert function is step and options["donate_argnums"] == (1,)
    given = {"donate_argnums": 0}
    assert decorator._to_jit(jitted, given, None) == (jitted, given), "inlined, with these alone"


def test_a_planned_function_is_unwrapped_only_to_be_planned_otherwise():
    planned = olla_xla.plan(step, donate_argnums=1, seed=3)
    assert decorator._to_jit(planned, {}, None) == (planned, {})
    assert decorator._to_jit(planned, {}, planned._plan_settings) == (planned, {})
    function, options = decorator._to_jit(planned, {}, settings(seed=4))
    assert function is step and options["donate_argnums"] == 1


def test_stages_and_other_things_are_no_functions():
    lowered = jax.jit(step).lower(1.0, 2.0)
    with pytest.raises(JitError, match="takes a function, not Lowered"):
        decorator._to_jit(lowered, {}, None)
    with pytest.raises(JitError, match="takes a function, not int"):
        decorator._to_jit(3, {}, None)


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


def test_a_plan_is_a_plan():
    with pytest.raises(InputError, match=r"Plan\.load"):
        olla_xla.plan(step, plan="step.plan")


@pytest.mark.parametrize(
    ("version", "allowed", "said"),
    [((0, 1, 0), True, "needs jax>="), ((99, 0, 0), False, "OLLA_XLA_ANY_JAX=1")],
)
def test_versions_of_jax(monkeypatch, version, allowed, said):
    monkeypatch.setattr(decorator.jax, "__version_info__", version)
    monkeypatch.setattr(decorator.environment, "any_jax", lambda: allowed)
    with pytest.raises(VersionError, match=said):
        decorator._check_jax()
    monkeypatch.setattr(decorator.environment, "any_jax", lambda: True)
    if version[0] > 1:
        decorator._check_jax()
