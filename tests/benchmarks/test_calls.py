"""What a call of a planned function costs beside one of `jax.jit`'s."""

import sys
import types

import jax
import numpy as np
import pytest

import olla_xla
from benchmarks import calls


def python_calls(function, argument):
    """Calls of Python functions while this one runs."""
    met = []

    def profile(frame, event, _):
        if event == "call":
            met.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        function(argument)
    finally:
        sys.setprofile(None)
    return met


@pytest.mark.parametrize("leaves", [10, 200])
def test_a_call_adds_one_call_in_python_to_those_of_jit(leaves):
    """All else is JAX's own way to the executable, in C++."""
    for function, expected in (
        (jax.jit(calls.step), []),
        (olla_xla.plan(calls.step, step_limit=100), ["PlannedFunction.__call__"]),
    ):
        state = function(function(calls.make_state(leaves)))
        assert python_calls(function, state) == expected


def test_functions_take_turns_and_each_turn_is_timed(monkeypatch):
    clock, met = [0.0], []

    def taking(name, seconds):
        def function(state):
            met.append(name)
            clock[0] += seconds
            return state

        return function

    monkeypatch.setattr(calls, "time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    functions = [taking("a", 1.0), taking("b", 3.0)]
    seconds = calls.seconds_per_call(functions, leaves=2, calls=2, turns=3)
    assert seconds.tolist() == [[1.0, 3.0]] * 3
    assert "".join(met) == "aabb" + "aabb" + "bbaa" + "aabb"


def test_the_ratio_is_the_median_of_neighbouring_turns(monkeypatch):
    times = np.array([[1.0, 2.0], [4.0, 5.0], [2.0, 9.0]])
    monkeypatch.setattr(calls, "seconds_per_call", lambda *_: times)
    result = calls.compare(leaves=10, calls=1, turns=3, time_limit=5.0)
    assert result == calls.Comparison(2.0, 5.0, 2.0, True)
