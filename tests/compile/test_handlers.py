"""What a signal handler raises while a step is planned comes out of the call, as from jax.jit."""

import collections
import contextlib
import signal
import threading

import jax
import pytest

from olla_xla import planner
from olla_xla.compile import compiles, objection, plan_store
from olla_xla.compile.handlers import raises_of_handlers
from olla_xla.planner import computation, pipeline
from tests.support.planned_steps import assert_hook_idle
from tests.support.steps import assert_same, branches, plan, rows, weights


class Preempted(Exception):
    """What a program's handler raises."""


def raising(error):
    def handler(*_):
        raise error

    return handler


def leaving(*_):
    raise SystemExit(3)


KINDS = {
    "Ctrl-C": (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
    "preemption": (signal.SIGTERM, raising(Preempted("soon")), Preempted),
    "a watchdog": (signal.SIGALRM, raising(TimeoutError("late")), TimeoutError),
    "sys.exit": (signal.SIGUSR1, leaving, SystemExit),
    "what planning raises too": (signal.SIGUSR2, raising(ValueError("mine")), ValueError),
}

MOMENTS = {
    "capture": (compiles.Compiles, "taken"),
    "parse": (pipeline, "scheduled_module"),
    "search": (computation.phases, "search"),
    "referee": (objection, "check_planned"),
    "the executable's": (objection, "check_places"),
    "apply": (planner, "apply_plan"),
}


@contextlib.contextmanager
def handled(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        assert signal.signal(number, before) is handler  # it was put back


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_out_of_the_call(kind, moment, monkeypatch):
    number, handler, error = KINDS[kind]
    owner, name = MOMENTS[moment]
    real, arrived = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        if not arrived:
            arrived.append(moment)
            with contextlib.suppress(Exception):  # as some of what is called here has it
                signal.raise_signal(number)
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)
    plan_store.process_store().clear()
    step, given = plan(branches, donate_argnums=0), lambda: (weights(), rows())
    with handled(number, handler), pytest.raises(error) as found:
        step(*given())
    assert type(found.value) is error and arrived == [moment]
    assert found.value.__cause__ is None
    assert_hook_idle()
    assert not step.plans
    if moment == "capture":  # nothing is left of it: the next call plans
        assert_same(step(*given()), jax.jit(branches)(*given()))
        assert step.plans


def test_it_comes_out_of_compile_and_of_a_step_that_is_not_planned(monkeypatch):
    def interrupted(*_):
        signal.raise_signal(signal.SIGTERM)

    step = plan(branches)
    lowered = step.lower(weights(), rows())
    monkeypatch.setattr(compiles.Compiles, "taken", interrupted)
    with handled(signal.SIGTERM, raising(Preempted)), pytest.raises(Preempted):
        lowered.compile()

    def no_key(self, *_):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(jax.stages.Traced, "lower", no_key)
    with handled(signal.SIGTERM, raising(Preempted)), pytest.raises(Preempted):
        step(weights(), rows())


def test_the_last_of_several_is_raised_and_other_handlers_just_run():
    seen = collections.Counter()

    def both():
        signal.raise_signal(signal.SIGUSR1)
        assert seen["noted"] == 1
        try:
            signal.raise_signal(signal.SIGALRM)
        except Exception:
            seen["caught"] += 1
        finally:
            signal.raise_signal(signal.SIGTERM)

    cause = KeyError("cause")

    def handler(*_):
        raise Preempted from cause

    with (
        handled(signal.SIGUSR1, lambda *_: seen.update(["noted"])),
        handled(signal.SIGALRM, raising(TimeoutError)),
        handled(signal.SIGTERM, handler),
        pytest.raises(Preempted) as found,
    ):
        raises_of_handlers(both)()
    assert seen == {"noted": 1} and found.value.__cause__ is cause


def test_an_inner_wait_ends_and_the_outer_one_too():
    reached = []

    def inner():
        signal.raise_signal(signal.SIGTERM)
        reached.append("inner")

    def outer():
        with contextlib.suppress(Exception):
            raises_of_handlers(inner)()
        reached.append("outer")

    with handled(signal.SIGTERM, raising(Preempted)), pytest.raises(Preempted):
        raises_of_handlers(outer)()
    assert not reached


def test_a_handler_that_another_sets_meanwhile_stays():
    def another(*_):
        pass

    before = signal.signal(signal.SIGTERM, raising(Preempted))
    raises_of_handlers(lambda: signal.signal(signal.SIGTERM, another))()
    assert signal.signal(signal.SIGTERM, before) is another


def test_other_threads_have_no_handlers():
    found = []
    thread = threading.Thread(target=raises_of_handlers(lambda: found.append(1)))
    thread.start()
    thread.join()
    assert found == [1]
