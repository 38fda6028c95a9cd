"""Scanned decoders, on a CPU or a GPU: no choice of what they recompute is refused."""

import dataclasses

import jax
import pytest

from benchmarks.decoders import DECODERS, train_step
from benchmarks.refused import collected
from olla_xla.planner import pipeline
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.roofline import H100, Device
from tests.support import plugins
from tests.support.compiles import on_h100, xla_schedule

pytestmark = pytest.mark.slow

CPU = Device("CPU", 2e11, 2e11, 2e10, 2e10, 2e-6)


ON = {
    "cpu": ("gpt_bf16", "gpt_checkpointed", "llama_fused", "llama_library"),
    "cuda": ("gpt_separate", "rms_gelu_library", "mha_swiglu", "llama_checkpointed"),
}
"""All that decoders differ in; `benchmarks loops` has any of them."""


def test_all_that_decoders_differ_in_is_planned():
    def values(names):
        return {value for name in names for value in dataclasses.asdict(DECODERS[name]).items()}

    assert values(name for names in ON.values() for name in names) == values(DECODERS)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=[] if target == "cpu" else plugins.mark("cuda13"))
        for target, names in ON.items()
        for name in names
    ],
)
@pytest.mark.usefixtures("any_choices_will_do")
def test_no_choice_is_refused(name, target, monkeypatch):
    monkeypatch.setattr(pipeline, "device", lambda *_: CPU if target == "cpu" else H100)
    step, arguments, options = train_step(DECODERS[name], batch_size=8, optimizer="adam")
    arguments = on_h100(arguments) if target == "cuda" else arguments
    module = xla_schedule(jax.jit(step, **options).lower(*arguments))
    with collected() as refused:
        options = PlanOptions(step_limit=500, time_limit=6.0, max_overhead=0.35)
        plan = pipeline.plan_module(module, options, target=target)
    assert not refused
    assert plan.loops and plan.predicted_bytes < plan.xla_predicted_bytes
