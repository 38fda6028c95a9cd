"""Traces of PyTorch's profiler, made by hand: PyTorch is not needed."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.papers.recordings.recording import read_recording
from benchmarks.papers.recordings.torch_trace import read_torch_trace
from olla_xla.errors import InputError


def memory(ts, address, size, device=0):
    arguments = {"Addr": address, "Bytes": size, "Device Type": device, "Device Id": -1}
    return {"ph": "i", "name": "[memory]", "ts": ts, "args": arguments}


def mark(ts, end, name="iteration"):
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": ts, "dur": end - ts}


EVENTS = [
    memory(1, 7, 64),  # before: not of an iteration
    mark(10, 20, "iteration 3"),
    memory(11, 8, 100),
    memory(12, 9, 50, device=1),  # another device's
    memory(13, 9, 30),
    memory(14, 7, -64),  # of before
    memory(15, 8, -100),
    memory(16, 8, 24),  # the same address again
    memory(17, 9, -30),
    memory(18, 10, 5),  # outlives its iteration
    memory(19, 8, -24),
    mark(30, 40, "iteration 4"),
    memory(32, 8, 200),
    memory(31, 10, -5),
    memory(39, 8, -200),
    mark(50, 60, "iteration 3"),
    memory(51, 8, 1),
    memory(52, 8, -1),
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return path


def test_requests_of_iterations(trace):
    found = read_torch_trace(trace)
    assert found.recording.iterations == (
        ((0, 100), (1, 30), (0, -1), (2, 24), (1, -1), (2, -1)),
        ((0, 200), (0, -1)),
        ((0, 1), (0, -1)),
    )
    assert found.recording.profiles == (0, 1, 0)
    assert (found.kept, found.kept_bytes) == (1, 5)


def test_a_trace_is_replayed_and_made_a_recording(trace, tmp_path, capsys):
    out = tmp_path / "loop.csv"
    assert main(["benchmarks", "profile", f"--trace={trace}", f"--record={out}"]) == 0
    assert "1 requests, 5 bytes, were not released" in capsys.readouterr().out
    kept = read_recording(out)
    assert kept.iterations == read_torch_trace(trace).recording.iterations
    assert main(["benchmarks", "profile", f"--trace={trace}"]) == 0
    assert "trace.json" in capsys.readouterr().out
    two = f"--trace={trace},{trace}"
    assert main(["benchmarks", "profile", two, f"--record={out}"]) == 2
    assert "--record takes one --trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a trace of PyTorch's profiler"),
        ("{", "not a trace of PyTorch's profiler"),
        (json.dumps({"traceEvents": [{"name": "[memory]", "ts": 1}]}), "not a trace"),
        (json.dumps({"traceEvents": [memory(1, 2, 3)]}), "record_function"),
        (json.dumps({"traceEvents": [mark(1, 2)]}), "profile_memory=True"),
    ],
)
def test_other_files(tmp_path, text, message):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_torch_trace(path)
    with pytest.raises(InputError, match="cannot read"):
        read_torch_trace(tmp_path / "missing.json")
