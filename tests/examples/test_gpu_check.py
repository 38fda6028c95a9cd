"""The GPU check: what it prints without a GPU, and what it makes of measurements."""

import json

import pytest

from examples import gpu_check
from olla_xla.errors import OllaError
from tests.support.measurements import measured

ARGUMENTS = ["gpu_check", "--cases=mlp/8/adam,gpt/1/adam", "--steps=3"]


def test_no_gpu(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpu_check.main(ARGUMENTS) == 0
    assert capsys.readouterr().out == "no GPU\n"


def run(capsys, monkeypatch, outcomes):
    """The exit code and the last line, with measurements in place of runs on a GPU."""
    outcomes = iter(outcomes)

    def measure(request, progress):
        progress(f"running {request.model} {request.steps}")
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(gpu_check, "gpu", lambda: "a GPU")
    monkeypatch.setattr(gpu_check, "measure", measure)
    code = gpu_check.main(ARGUMENTS)
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_rows(capsys, monkeypatch):
    one = measured(device_peak_bytes=50, step_seconds=(1.0, 3.0, 2.0))
    other = measured(planned=False, device_peak_bytes=100, step_seconds=(1.0,))
    same = gpu_check.Comparison(one, other, "")
    code, printed = run(capsys, monkeypatch, [same, same])
    assert code == 0 and printed["device"] == "a GPU" and printed["steps"] == 3
    first = printed["rows"][0]
    assert first["case"] == "mlp/8/adam" and first["identical"]
    assert first["device_peak_bytes"] == [100, 50] and first["step_seconds"] == [1.0, 2.0]


def test_a_difference_or_a_failure_is_a_failed_check(capsys, monkeypatch):
    differs = gpu_check.Comparison(measured(), measured(), "output loss differs after step 2")
    code, printed = run(capsys, monkeypatch, [differs, OllaError("out of memory")])
    assert code == 1 and [row["identical"] for row in printed["rows"]] == [False]


@pytest.mark.parametrize(
    "argument",
    ["--cases=mlp", "--cases=mlp/0/adam", "--cases=/1/adam", "--cases=mlp/1/", "--steps=1", "mlp"],
)
def test_misuse(capsys, argument):
    assert gpu_check.main(["gpu_check", argument]) == 2
    assert capsys.readouterr().err.count("\n") == 1
