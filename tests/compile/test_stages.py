"""Lowered stages: attributes of JAX's own, and the options of a compile."""

import types

import pytest

from olla_xla.compile.outcomes import Outcome
from olla_xla.compile.stages import PlannedLowered
from olla_xla.errors import OllaError

pytestmark = pytest.mark.quick


class Function:
    """The planned function of a stage."""

    __name__ = "step"


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
            return Outcome(None, None, False, "why")

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
