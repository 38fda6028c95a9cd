"""A compiled stage's first call: what runs, and what is kept where results differ."""

import types

import pytest

from olla_xla.compile import stages
from olla_xla.compile.outcomes import Outcome
from olla_xla.compile.stages import PlannedCompiled, PlannedLowered
from olla_xla.errors import CheckError, OllaError
from tests.support.plans import made_plan

pytestmark = pytest.mark.quick


class Function:
    """The planned function of a stage; it notes what it is told."""

    __name__ = "step"
    _verify = True

    def __init__(self, difference=""):
        self.warned, self._differs = [], difference

    def _difference(self, expected, found, comparison):
        return self._differs and f"{self._differs}: {expected}, {found}"

    def _warn(self, text):
        self.warned.append(text)

    def _say(self, text):
        raise AssertionError(text)


class Lowered:
    """What is compiled again, by XLA's own schedule."""

    def compile(self, compiler_options):
        assert compiler_options == {}
        return lambda *args: ("own", *args)


def planned(*args):
    return ("planned", *args)


def compiled(function, plan=None, reason="", is_planned=True):
    outcome = Outcome(planned, plan, is_planned, reason)
    return PlannedCompiled(function, outcome, "key", Lowered())


@pytest.fixture
def due(monkeypatch):
    """Sets whether a comparison is due; returns how often that was asked."""
    asked = []

    def be(comparison):
        def found(verify, outcome, lowered, say):
            asked.append(verify)
            return comparison

        monkeypatch.setattr(stages.verification, "due", found)
        monkeypatch.setattr(stages.verification, "report", lambda name, where: f"{name} at {where}")
        return asked

    return be


def own(own, args, kwargs):
    """The expected outputs, as a comparison gives them."""
    return (own(*args),)


def test_the_plan_runs_where_nothing_is_compared(due):
    asked = due(None)
    stage = compiled(Function())
    assert [stage(1), stage(2)] == [("planned", 1), ("planned", 2)]
    assert asked == [True], "at the first call alone"


def test_the_plan_goes_on_where_results_are_the_same(due):
    due(types.SimpleNamespace(expected=own))
    function = Function()
    stage = compiled(function, made_plan())
    assert [stage(1), stage(2)] == [("planned", 1), ("planned", 2)]
    assert stage.planned and not function.warned


def test_xlas_own_runs_from_then_on_where_results_differ(due):
    due(types.SimpleNamespace(expected=own))
    function = Function("output[0]")
    stage = compiled(function, made_plan())
    assert [stage(1), stage(2)] == [("own", 1), ("own", 2)]
    assert not stage.planned and "differed" in stage.reason
    assert function.warned == ["step at output[0]: ('own', 1), ('planned', 1)"]


def test_without_expected_results_nothing_is_compared(due):
    due(types.SimpleNamespace(expected=lambda own, args, kwargs: None))
    stage = compiled(Function("output[0]"), made_plan())
    assert [stage(1), stage(2)] == [("planned", 1), ("planned", 2)] and stage.planned


@pytest.mark.parametrize(
    ("plan", "is_planned", "said"),
    [
        (made_plan(), True, "compiled: planned, 140.0 MB instead of 200.0"),
        (made_plan(), False, "compiled: not planned, too slow: 140.0 MB instead"),
        (None, False, "compiled: not planned, too slow>"),
    ],
)
def test_what_is_printed(plan, is_planned, said):
    assert said in repr(compiled(Function(), plan, "too slow", is_planned))


def test_without_a_plan_there_is_nothing_to_check():
    stage = compiled(Function(), None, "XLA has no hook", False)
    for ask in (stage.check, stage.graphs):
        with pytest.raises(CheckError, match=r"step has no plan.*XLA has no hook"):
            ask()


def test_attributes_are_those_of_jaxs_stage():
    lowered = PlannedLowered(Function(), types.SimpleNamespace(_hidden=3), "key")
    assert lowered._hidden == 3 and lowered.stage._hidden == 3
    with pytest.raises(AttributeError):
        lowered.__nothing__  # noqa: B018


def test_compiling_hands_options_on_only_where_there_are_any():
    asked = []

    class Compiles(Function):
        def _outcome(self, lowered, key, **kwargs):
            asked.append((lowered, key, kwargs))
            if kwargs.get("compiler_options") == {"bad": 1}:
                raise OllaError("no such option") from KeyError("bad")
            return Outcome(planned, None, False, "why")

    lowered = PlannedLowered(Compiles(), "stage", "key")
    assert lowered.compile().reason == "why"
    lowered.compile({})
    lowered.compile({"a": 1}, device_assignment=2)
    assert asked == [
        ("stage", "key", {}),
        ("stage", "key", {}),
        ("stage", "key", {"compiler_options": {"a": 1}, "device_assignment": 2}),
    ]
    with pytest.raises(OllaError, match="no such option") as error:
        lowered.compile({"bad": 1})
    assert isinstance(error.value.__cause__, KeyError)
