"""Transfers hide what they hid, unless time is allowed for it: then memory falls for that."""

import dataclasses
import itertools
import math

import jax
import pytest

from benchmarks.gain_steps import remedy_step
from hlo.module import module_from_bytes
from hlo.text import from_hlo_text
from olla_xla import planner
from olla_xla.planner.passes.relax_overlap import hidden_seconds, relaxed
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.roofline import H100, CostModel
from tests.support.compiles import on_h100, xla_schedule

COST = CostModel(H100, "cuda")
# Between the start and its done XLA has `a` and `b` made. Done early, `big` could die before them.
TEXT = """HloModule m, is_scheduled=true

small {
  x = f32[1024,1024] parameter(0)
  y = f32[1024,1024] parameter(1)
  sum = f32[1024,1024] add(x, y)
  ROOT cut = f32[1,1024] slice(sum), slice={[0:1],[0:1024]}
}

ENTRY e {
  p = f32[1024] parameter(0)
  q = f32[1024] parameter(1)
  big = f32[1024,1024] broadcast(p), dimensions={0}
  s = (f32[1024,1024], f32[1024,1024]) collective-permute-start(big), source_target_pairs={{0,1}}
  a = f32[1024,1024] broadcast(q), dimensions={0}
  b = f32[1024,1024] exponential(a)
  f = f32[1,1024] fusion(a, b), kind=kLoop, calls=small
  d = f32[1024,1024] collective-permute-done(s)
  g = f32[1,1024] fusion(d, big), kind=kLoop, calls=small
  ROOT c = f32[1,1024] add(f, g)
}
"""
MODULE = from_hlo_text(TEXT)
# The work between takes several times as long as the transfer.
_MORE = "".join(
    f"  {y} = f32[1024,1024] exponential({x})\n" for x, y in itertools.pairwise("ahijklr")
)
LONG = from_hlo_text(TEXT.replace("exponential(a)", "sqrt(r)").replace("  b = ", f"{_MORE}  b = "))


def planned(module=MODULE, **options):
    return planner.plan_module(module, PlanOptions(step_limit=300, **options), target="cuda")


def hidden(plan, module=MODULE):
    return hidden_seconds(module_from_bytes(module), plan.order, COST)["s"]


def test_by_default_nothing_is_given_up():
    view = module_from_bytes(MODULE)
    own = hidden_seconds(view, view.order, COST)
    assert own.keys() == {"s"} and own["s"] > 0
    for plan in (planned(), planned(max_overhead=1e-6)):
        assert hidden(plan) >= own["s"] and not plan.exposed_seconds
        names = plan.order["e"]
        for between in "abf":
            assert names.index("s") < names.index(between) < names.index("d")


def test_within_an_allowance_it_is():
    base, less = planned(), planned(max_overhead=10.0)
    assert less.predicted_bytes < base.predicted_bytes
    assert 0 < less.exposed_seconds <= less.added_seconds <= 10 * less.step_seconds
    # By the streams' clock, which counts no work that stands beside after the transfer has ended.
    assert less.path_seconds - base.path_seconds == pytest.approx(less.exposed_seconds)
    assert less.exposed_seconds <= hidden(base) - hidden(less)
    assert "overlapping less" in less.source and "exposed" in less.summary()
    # What may not be added is not: the price of all of it is known.
    share = less.exposed_seconds / less.step_seconds
    for part in (0.9, 0.5, 0.1):
        some = planned(max_overhead=part * share)
        assert some.overhead <= part * share
        assert less.predicted_bytes <= some.predicted_bytes <= base.predicted_bytes


def test_no_more_counts_than_the_transfer_takes():
    base, less = planned(LONG), planned(LONG, max_overhead=10.0)
    assert less.predicted_bytes < base.predicted_bytes
    assert 0 < less.exposed_seconds < (hidden(base, LONG) - hidden(less, LONG)) / 4
    some = planned(LONG, max_overhead=1.01 * less.exposed_seconds / less.step_seconds)
    assert some.predicted_bytes == less.predicted_bytes


def test_what_giving_it_up_would_save_is_told():
    base = planned()
    asked = COST, math.inf, PlanOptions(step_limit=300)
    found = relaxed(module_from_bytes(MODULE), base, *asked)
    assert found is not None and found[1] > 0
    assert found[0].predicted_bytes == planned(max_overhead=10.0).predicted_bytes
    free = dataclasses.replace(base, predicted_bytes=0)
    assert relaxed(module_from_bytes(MODULE), free, *asked) is None


def test_work_in_loops_counts_as_often_as_it_runs():
    text = """HloModule m, is_scheduled=true

body {
  t = (s32[], f32[1024,1024]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[1024,1024] get-tuple-element(t), index=1
  s = (f32[1024,1024], f32[1024,1024]) collective-permute-start(x), source_target_pairs={{0,1}}
  a = f32[1024,1024] exponential(x)
  d = f32[1024,1024] collective-permute-done(s)
  b = f32[1024,1024] add(a, d)
  ROOT r = (s32[], f32[1024,1024]) tuple(i, b)
}

cond {
  t = (s32[], f32[1024,1024]) parameter(0)
  ROOT c = pred[] constant(false)
}

ENTRY e {
  t = (s32[], f32[1024,1024]) parameter(0)
  ROOT w = (s32[], f32[1024,1024]) while(t), condition=cond, body=body, CONFIG
}
"""
    config = 'backend_config={"known_trip_count":{"n":"7"}}'
    one, seven = (
        hidden_seconds(view, view.order, COST)
        for view in (
            module_from_bytes(from_hlo_text(text.replace(", CONFIG", more)))
            for more in ("", f", {config}")
        )
    )
    assert list(one) == list(seven)
    assert [seven[name] for name in one] == pytest.approx([7 * s for s in one.values()])


def test_a_step_that_fits_only_so_hides_less_by_default():
    base, less = planned(), planned(max_overhead=10.0)
    for size, expected in ((base.predicted_bytes, base), (less.predicted_bytes, less)):
        options = PlanOptions(step_limit=300)
        plan = planner.plan_module(MODULE, options, target="cuda", device_bytes=size)
        assert plan.predicted_bytes == expected.predicted_bytes
        assert plan.exposed_seconds == pytest.approx(expected.exposed_seconds)
        assert plan.fingerprint == base.fingerprint
        assert plan.xla_predicted_bytes == base.xla_predicted_bytes
    # What does not fit either way is left as it is.
    plan = planner.plan_module(
        MODULE, PlanOptions(step_limit=300), target="cuda", device_bytes=less.predicted_bytes - 1
    )
    assert plan.predicted_bytes == base.predicted_bytes and not plan.exposed_seconds


def test_a_step_that_does_not_fit_takes_no_more_time_than_was_allowed():
    less = planned(max_overhead=10.0)
    plan = planner.plan_module(
        MODULE,
        PlanOptions(step_limit=300, max_overhead=1e-6),
        target="cuda",
        device_bytes=less.predicted_bytes,
    )
    assert plan.overhead <= 1e-6 and plan.predicted_bytes > less.predicted_bytes


@pytest.mark.cuda13
@pytest.mark.parametrize("name", ["scan, tanh", "scan, softplus", "recurrent, gated"])
def test_more_time_never_gives_more_memory(name):
    """Clones that gain next to nothing leave the time to transfers that overlap with less."""
    step, arguments, options = remedy_step(name)
    module = xla_schedule(jax.jit(step, **options).lower(*on_h100(arguments)))
    parts = (0.05, 0.1, 0.2, 0.35, 0.5)
    found = [
        planner.plan_module(module, PlanOptions(step_limit=1_000, max_overhead=p), target="cuda")
        for p in parts
    ]
    totals = [plan.predicted_bytes for plan in found]
    assert totals == sorted(totals, reverse=True) and totals[-1] < totals[0]
    assert all(plan.overhead <= part for plan, part in zip(found, parts, strict=True))
