"""The front of total against time, its knee, and what a plan without recomputation tells of it."""

import functools

import jax
import jax.numpy as jnp
import pytest

import olla_xla
from olla_xla.errors import InputError
from olla_xla.planner import plan_module
from olla_xla.planner.knee import front, knee
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.report import Report
from tests.support.compiles import xla_schedule


def test_a_front_has_four_points_at_most():
    points = [(0.0, 100), (1.0, 90), (1.5, 95), (2.0, 60), (3.0, 58), (4.0, 30), (5.0, 29)]
    assert front(points) == ((0.0, 100), (2.0, 60), (4.0, 30), (5.0, 29))
    assert front([(-1e-9, 7), (0.0, 9)]) == ((0.0, 7),)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0.0, 3338), (10.0, 0)], (10.0, 0)),
        ([(0.0, 3427), (10.0, 89), (26.0, 0)], (10.0, 89)),  # MaxText: the rest is not worth it
        ([(0.0, 100), (1.0, 50), (2.0, 40), (3.0, 36)], (2.0, 40)),
        ([(0.0, 100), (1.0, 99), (2.0, 50)], (2.0, 50)),  # not convex: one step to the second
        ([(0.0, 100), (1e-9, 99), (2.0, 50)], (2.0, 50)),  # next to no time is a hundredth
        ([(0.0, 100)], (0.0, 100)),
    ],
)
def test_the_knee_is_where_more_time_saves_little(points, expected):
    assert knee(points, 100.0) == expected


def layers(w, x):
    def loss(w):
        h = x
        for k in range(8):
            h = jnp.tanh(jnp.tanh(h @ w[k]) @ w[k].T) + h
        return (h**2).mean()

    return w - 0.1 * jax.grad(loss)(w)


SHAPES = (
    jax.ShapeDtypeStruct((8, 64, 64), jnp.float32),
    jax.ShapeDtypeStruct((1 << 13, 64), jnp.float32),
)


@functools.cache
def module():
    return xla_schedule(jax.jit(layers, donate_argnums=0).lower(*SHAPES))


@functools.cache
def planned(**options):
    return plan_module(module(), PlanOptions(step_limit=2000, **options), target="cuda")


def test_an_order_that_saves_nothing_tells_what_time_would_save():
    """Without a search, and not far below what the search for it finds."""
    plain, again = planned(), planned(max_overhead=0.2)
    assert 0.85 * again.predicted_bytes < plain.recomputed_bytes < 0.9 * plain.predicted_bytes
    assert "max_overhead=0.2 takes about" in plain.summary()
    assert again.recomputed_bytes == 0 == planned(max_overhead=0).recomputed_bytes


def test_plans_list_what_less_time_would_save():
    plan = planned(max_overhead=0.2)
    times, sizes = zip(*plan.front, strict=True)
    assert 2 <= len(times) <= 4
    assert list(times) == sorted(times) and list(sizes) == sorted(sizes, reverse=True)
    assert plan.front[0] == (0.0, planned().predicted_bytes)
    assert plan.front[-1] == (pytest.approx(plan.added_seconds), plan.predicted_bytes)
    assert plan.summary().count("with less added time") == len(plan.front) - 2
    assert planned().front == ()


def test_a_plan_at_the_knee():
    plan = planned(max_overhead="knee")
    base = planned().predicted_bytes
    gain = (base - plan.predicted_bytes) / max(plan.added_seconds, 0.01 * plan.step_seconds)
    assert 0 < plan.overhead <= 0.5 and plan.predicted_bytes < 0.9 * base
    for seconds, size in plan.front[1:-1]:
        assert (base - size) / max(seconds, 0.01 * plan.step_seconds) <= 10 * gain


def test_the_knee_needs_no_budget():
    with pytest.raises(InputError, match="leave out max_overhead"):
        PlanOptions(max_overhead="knee", memory_budget="1GiB")
    with pytest.raises(InputError, match="or 'knee'"):
        PlanOptions(max_overhead="elbow")
    assert olla_xla.plan(layers, max_overhead="knee")._options.recomputes


def test_events_and_the_report_say_what_would_help():
    events = []
    stop = olla_xla.on_plan(events.append)
    try:
        olla_xla.plan(layers, step_limit=200).lower(*SHAPES).compile()
    finally:
        stop()
    (event,) = events
    assert event.help.startswith("max_overhead=0.2 takes about ")
    assert "donate_argnums=0 saves that memory" not in event.help  # less than 1 MB
    assert f"what would help: {event.help}" in str(event)
    assert "layers: what would help: max_overhead=0.2" in str(Report((event,)))


def test_an_event_says_that_no_order_needs_less():
    def momentum(w, m, x):
        m = 0.9 * m + jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        return w - m, m

    shapes = [jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 2
    events = []
    stop = olla_xla.on_plan(events.append)
    try:
        x = jax.ShapeDtypeStruct((8, 512), jnp.float32)
        olla_xla.plan(momentum, step_limit=200).lower(*shapes, x).compile()
    finally:
        stop()
    assert "no order needs less; " in str(events[0])
    assert "donate_argnums=(0, 1) saves that memory" in events[0].help
