"""Planned and unplanned steps run in fresh processes and are compared."""

import pytest

from olla_xla.cli import main
from olla_xla.cli.commands import measure as command
from olla_xla.cli.commands.measure import measured_verdict, memory_table, recomputation_table
from olla_xla.errors import OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.tools.child import run_module
from olla_xla.tools.measure.processes import measure
from olla_xla.tools.measure.records import Comparison, Recomputation, RunRequest, Variant, compare
from tests.support.measurements import measured

OPTIONS = PlanOptions(time_limit=5.0, step_limit=2000)
REQUEST = RunRequest("mlp", 8, "adam", steps=3, planned=True, options=OPTIONS)


def test_the_first_difference_is_named():
    assert compare(measured(), measured()) == ""
    other = measured(digests=(("a", "b"), ("c", "x")))
    assert compare(measured(), other) == "output loss differs after step 2"
    assert "structures" in compare(measured(), measured(leaves=("loss",)))
    assert compare(measured(), measured(digests=(("a", "b"),))) == "2 steps planned, 1 unplanned"


def test_real_processes_agree_bit_for_bit_and_recomputation_is_measured():
    """Three steps of each, then six in turns with XLA's own order."""
    stages = []
    options = PlanOptions(time_limit=10.0, step_limit=2000, max_overhead=0.3)
    request = RunRequest("mlp", 2048, "momentum", steps=3, planned=True, options=options)
    result = measure(request, stages.append, turns=6)
    assert result.difference == ""
    ours, theirs = result.planned, result.unplanned
    assert ours.cached and theirs.cached  # nothing compiled while measuring
    assert len(ours.digests) == 3 and len(ours.step_seconds) == 2
    assert ours.xla_bytes == theirs.assigned_bytes
    assert ours.process_peak_bytes > ours.assigned_bytes < theirs.assigned_bytes
    assert ours.digests[0] != ours.digests[1]  # the state went around: later steps are compared
    assert stages[0] == "unplanned: compiling" and "planned: running 3 steps" in stages
    assert ours.clones and result.recomputation
    kept, again = result.recomputation.kept, result.recomputation.again
    assert again.assigned_bytes == ours.assigned_bytes < kept.assigned_bytes
    assert again.digests == kept.digests == theirs.digests[0]
    assert len(again.step_seconds) == len(kept.step_seconds) == 6
    assert 0 < again.predicted_seconds and result.recomputation.predicted <= 0.3
    assert result.recomputation.planned == ours.overhead > 0 and ours.predicted_seconds > 0
    assert stages[-1] == "timing 6 steps of XLA's own order and as many of the plan"


def test_noise_that_meets_both_variants_alike_cancels():
    kept = Variant(100, 2.0, (1.0, 4.0, 2.0), ("a",))
    again = Variant(90, 2.2, (1.1, 4.4, 9.0), ("a",))
    found = Recomputation(kept, again, planned=0.12)
    assert found.overhead == pytest.approx(0.1) and found.predicted == pytest.approx(0.1)
    without, with_ = recomputation_table(found).rows
    assert without[2:] == ("2000.0", "2000.0", "0.0", "", "", "", "")
    assert with_[2:] == ("2200.0", "4400.0", "-50.0", "12.0", "10.0", "10.0", "10.0 to 350.0")
    ours = measured(clones=3, overhead=0.08)
    verdict = measured_verdict(Comparison(ours, measured(planned=False), "", found))
    assert "3 instructions are computed again; the predicted added time is 8.0 %" in verdict
    assert "the measured added time is 10.0 %" in verdict


@pytest.mark.parametrize(("turns", "first"), [(5, 0), (6, 0), (9, 1), (40, 13), (100, 39)])
def test_the_interval_encloses_the_median_in_95_of_100_cases(turns, first):
    kept = Variant(100, 2.0, (1.0,) * turns, ("a",))
    again = Variant(90, 2.2, tuple(1.0 + k for k in range(turns)), ("a",))
    assert Recomputation(kept, again, 0.0).interval == (first, turns - 1 - first)


@pytest.mark.parametrize(("difference", "code"), [("", 0), ("output loss differs", 1)])
def test_a_gpu_runs_both(monkeypatch, capsys, difference, code):
    asked = []

    def on_gpu(request, progress, turns):
        asked.append(request)
        ours = measured(device_peak_bytes=50 << 20)
        return Comparison(ours, measured(planned=False, device_peak_bytes=100 << 20), difference)

    monkeypatch.setattr(command, "gpu_kind", lambda: "a GPU")
    monkeypatch.setattr(command, "measure", on_gpu)
    flags = ["--target=gpu", "--model=mlp", "--steps=3"]
    assert main.main(["olla_xla", "measure", *flags]) == code
    (request,) = asked
    assert (request.platform, request.model, request.steps) == ("gpu", "mlp", 3)
    printed = capsys.readouterr().out
    assert "mlp, batch 4, adam, a GPU" in printed
    (peak,) = [line for line in printed.splitlines() if "peak on the device" in line]
    assert "100.0 MB" in peak and "50.0 MB" in peak and "-50.0 %" in peak
    assert ("bit-identical outputs" in printed) == (code == 0)


def test_predicted_assigned_and_measured_stand_in_a_row():
    mb = 2**20
    theirs = measured(
        planned=False, assigned_bytes=9 * mb, device_peak_bytes=8 * mb, arguments_bytes=mb,
        profiled_bytes=7 * mb,
    )  # fmt: skip
    ours = measured(assigned_bytes=5 * mb, predicted_bytes=4 * mb, xla_predicted_bytes=6 * mb)
    assert memory_table(Comparison(ours, theirs, "")).rows == [
        ("XLA's order", "6.0", "9.0", "8.0", "1.0", "7.0"),
        ("planned", "4.0", "5.0", "not measured", "-", "-"),
    ]
    assert measured(steps_peak_bytes=3, device_peak_bytes=4).measured_bytes == 4
    assert measured(steps_peak_bytes=3).measured_bytes == 3


@pytest.mark.cuda13
def test_a_card_that_is_not_here_is_compiled_for(capsys):
    flags = ("--target=a100_40", "--model=mlp", "--batch_size=8", "--time_limit=2")
    assert main.main(["olla_xla", "measure", *flags]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA A100-SXM4-40GB" in out and out.count("not measured") == 2
    assert "Nothing was measured: for --target=" in out


def test_without_a_gpu_there_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert main.main(["olla_xla", "measure", "--target=gpu", "--model=mlp"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "JAX finds no GPU on this machine" in line


def test_a_process_that_dies_is_reported(monkeypatch):
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "nonsense")
    with pytest.raises(OllaError, match="the unplanned process failed with exit code"):
        measure(REQUEST, print)


def test_a_process_whose_last_line_is_not_json_is_in_trouble():
    child = run_module("platform", "", {})
    assert child.code == 0 and child.answer is None and "is not JSON: " in child.trouble
