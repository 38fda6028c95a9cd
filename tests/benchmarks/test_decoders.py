"""Twelve scanned decoders, on a CPU or a GPU: no choice of what they recompute is refused."""

import jax
import pytest

from benchmarks.decoders import DECODERS, train_step
from benchmarks.refused import collected
from olla_xla.planner import pipeline
from olla_xla.problem.options import PlanOptions
from olla_xla.remat.cost.roofline import H100, Device
from tests.support import plugins
from tests.support.compiles import on_h100, xla_schedule

CPU = Device("CPU", 2e11, 2e11, 2e10, 2e10, 2e-6)


ON = {
    "cpu": ("gpt", "gpt_bf16", "gpt_checkpointed", "llama", "llama_fused", "llama_library"),
    "cuda": ("gpt_library", "gpt_separate", "rms_gelu_library", "mha_swiglu",
             "llama_library_bf16", "llama_checkpointed"),
}  # fmt: skip
"""Each decoder once, and all that they differ in on both; `benchmarks loops` has any of them."""


def _marks(name, target):
    slow = [] if (name, target) == ("llama", "cpu") else [pytest.mark.slow]
    return slow if target == "cpu" else [*slow, plugins.mark("cuda13")]


def test_every_decoder_is_planned():
    assert {name for names in ON.values() for name in names} == {*DECODERS}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param(name, target, marks=_marks(name, target))
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
