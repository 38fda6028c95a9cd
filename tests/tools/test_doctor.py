"""What `olla_xla doctor` looks at, and the page that it writes."""

import dataclasses
import json

import pytest

from olla_xla.cli import main
from olla_xla.cli.commands import doctor as report
from olla_xla.compile import first_use
from olla_xla.errors import OllaError
from olla_xla.tools.doctor import examine as doctor
from olla_xla.tools.doctor import probe
from olla_xla.tools.doctor.probe import ROWS, Check, Examination, ModelRow, RunRow
from olla_xla.tools.measure import processes
from olla_xla.tools.measure.records import Comparison, RunRequest
from tests.support.compiles import h100_device
from tests.support.measurements import measured

GPU = Check("device", True, "NVIDIA Fake, 80,000 MB for arrays, CUDA 13")
NO_GPU = Check("device", None, "JAX finds no GPU here")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine whose probes say what they are told to."""
    seen = {}
    monkeypatch.setattr(doctor, "_probed", lambda name: seen.get(name, Check(name, True, "fine")))
    monkeypatch.setattr(first_use, "user_cache", lambda: tmp_path)
    return seen


def compared(**changes):
    ours = measured(
        planned=True, device_peak_bytes=150, assigned_bytes=100, predicted_bytes=99,
        xla_predicted_bytes=120, predicted_seconds=0.011, step_seconds=(0.012,), stacks=3,
    )  # fmt: skip
    theirs = measured(
        planned=False, device_peak_bytes=121, assigned_bytes=120, predicted_seconds=0.010,
        step_seconds=(0.010,),
    )  # fmt: skip
    return Comparison(ours, theirs, **{"difference": "", **changes})


def test_on_a_gpu_each_step_runs_with_command_buffers_and_without(machine, monkeypatch):
    machine["device"] = GPU
    asked = []

    def measure(request, stage):
        asked.append(request)
        stage("running")
        if request.model == "gpt":
            raise OllaError("out of memory")
        different = request.options.max_overhead is not None
        return compared(difference="output loss differs after step 1" if different else "")

    monkeypatch.setattr(doctor, "measure", measure)
    said = []
    found = doctor.examine(ROWS, 4, "gpu", said.append)
    assert len(found.runs) == len(asked) == 2 * len(ROWS) and not found.left
    assert [run.commands for run in found.runs[:2]] == [True, False]
    assert [r.xla_flags for r in asked[:2]] == ["", "--xla_gpu_enable_command_buffer="]
    assert all(r.platform == "gpu" and r.steps == 4 for r in asked)
    assert found.device == "NVIDIA Fake" and not found.passed
    assert "resnet50, batch 4, adam, no command buffers: running" in said
    text = report.page(found)
    assert "| resnet50, batch 4, adam, command buffers | ok | the same bits; 3 scan resid" in text
    assert "| gpt, batch 4, adam, no command buffers | **failed** | out of" in text
    assert "output loss differs after step 1" in text
    assert "Failed: gpt, batch 4, adam, resnet50, batch 32" in text
    assert "adam, command buffers | 10.00 | 11.00 | 10.00 | 12.00 | 10.0 | 20.0 |" in text
    fields = json.loads(report.as_json(found))
    assert fields["passed"] is False and fields["runs"][0]["comparison"]["planned"]["planned"]


def test_without_a_gpu_it_says_what_would_run(machine):
    machine["device"] = NO_GPU
    found = doctor.examine(ROWS, 4, "gpu", lambda _: None)
    assert found.passed and not found.runs and found.left == ROWS and found.device == ""
    text = report.page(found)
    assert "Nothing failed. JAX finds no GPU on this machine, so 7 models were not run." in text
    assert "- llama_scan_saved, batch 8, adam, 5 % allowed" in text
    machine["cache"] = Check("cache", False, "cannot be written")
    wrong = doctor.examine((), 4, "gpu", lambda _: None)
    assert not wrong.passed and "Failed: cache." in report.verdict(wrong)


def test_what_first_plans_on_a_card_came_to(machine):
    first_use.FirstUse(frozenset(["order", "clones"]), "NVIDIA Fake, jaxlib 1").remember(same=True)
    machine["device"] = NO_GPU
    check = doctor.examine((), 4, "gpu", lambda _: None).checks[-1]
    assert check.passed and check.seen == "NVIDIA Fake, jaxlib 1: order same, clones same"
    first_use.FirstUse(frozenset(["order"]), "NVIDIA Fake, jaxlib 1").remember(same=False)
    check = doctor.examine((), 4, "gpu", lambda _: None).checks[-1]
    assert check.passed is False and "order different" in check.seen


def test_probes_run_in_processes_of_their_own(monkeypatch):
    found = doctor._probed("cache")
    assert found.passed and "can be written" in found.seen
    monkeypatch.setitem(doctor.PROBES, "nothing", lambda: (True, ""))
    found = doctor._probed("nothing")
    assert found.passed is False and "KeyError" in found.seen
    monkeypatch.setattr(doctor, "_SECONDS", 0.01)
    assert "no result within" in doctor._probed("cache").seen


def test_a_cache_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(probe, "user_cache", lambda: tmp_path / "file" / "folder")
    passed, seen = probe.PROBES["cache"]()
    assert passed is False and "set XDG_CACHE_HOME" in seen


@pytest.mark.cuda13
def test_the_other_probes(capsys):
    h100_device()
    assert probe.main(["executable"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] and "0 fusions would read memory with invariant loads" in found["seen"]
    passed, seen = probe.PROBES["targets"]()
    assert passed and "h100" in seen
    passed, seen = probe.PROBES["bits"]()
    assert passed and "planned, gives the same bits" in seen
    assert probe.PROBES["device"]() == (None, "JAX finds no GPU here")


def test_flags_of_a_request_reach_its_process():
    request = RunRequest("mlp", 1, "adam", 2, True, "gpu", xla_flags="--xla_one=")
    flags = processes._environment(request, "cache")["XLA_FLAGS"].split()
    assert {"--xla_one=", "--xla_gpu_autotune_level=0"} <= set(flags)
    cpu = dataclasses.replace(request, platform="cpu")
    assert "--xla_one=" in processes._environment(cpu, "cache")["XLA_FLAGS"]


def test_a_model_on_this_cpu(machine, monkeypatch):
    asked = []
    monkeypatch.setattr(doctor, "measure", lambda request, _: asked.append(request) or compared())
    (run,) = doctor.examine([ModelRow("mlp", 4, "adam")], 2, "cpu", lambda _: None).runs
    assert run.passed and run.commands is None and run.comparison == compared(), run
    (request,) = asked  # test_measure has one in real processes
    assert (request.model, request.platform, request.steps) == ("mlp", "cpu", 2)


def test_the_command_writes_both_files(machine, tmp_path, capsys):
    machine["device"] = NO_GPU
    assert main.main(["olla_xla", "doctor", f"--out={tmp_path}", "--models=gpt"]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "olla_xla-doctor.md").read_text() in out and "1 models were not" in out
    assert json.loads((tmp_path / "olla_xla-doctor.json").read_text())["left"][0]["model"] == "gpt"
    assert main.main(["olla_xla", "doctor", "--models=mlp"]) == 2


def test_rows_that_failed_have_no_figures():
    row = RunRow(ROWS[0], None, None, "it failed")
    found = Examination("now", {}, {}, {}, "cpu", (), (row,), ())
    assert not found.passed and "it failed" in report.page(found)
