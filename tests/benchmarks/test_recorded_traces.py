"""Traces of PyTorch's profiler, made by hand, and recordings: PyTorch is not needed."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.papers.recordings.recording import Recording, read_recording, write_recording
from benchmarks.papers.recordings.torch_trace import _iteration, read_torch_trace
from olla_xla.errors import InputError


def mark(start, length, name="iteration"):
    return {"cat": "user_annotation", "name": name, "ts": start, "dur": length}


def memory(at, address, size, device=0):
    given = {"Addr": address, "Bytes": size, "Device Type": device}
    return {"name": "[memory]", "ts": at, "args": given}


def read(tmp_path, *events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return read_torch_trace(path)


def test_an_iteration_begins_with_its_mark_and_ends_before_the_next(tmp_path):
    found = read(
        tmp_path,
        mark(20, 10, "iteration, long"), mark(0, 10), mark(10, 10), mark(5, 9, "step"),
        memory(-1, 1, 64), memory(0, 2, 8), memory(9, 2, -8), memory(9.5, 1, -64),
        memory(10, 3, 16), memory(12, 4, 0), memory(13, 5, 7, device=1), memory(19.9, 3, -16),
        memory(20, 6, 32), memory(21, 7, 4), memory(22, 6, -32), memory(30, 7, -4),
    )  # fmt: skip
    assert found.recording.iterations == (((0, 8), (0, -1)), ((0, 16), (0, -1)), ((0, 32), (0, -1)))
    assert found.recording.profiles == (0, 0, 1) and found.recording.name == "trace.json"
    assert (found.kept, found.kept_bytes) == (1, 4)


def test_events_of_one_time_stay_in_their_order(tmp_path):
    found = read(
        tmp_path, mark(0, 9), memory(1, 1, 8), memory(1, 1, -8), memory(1, 1, 4), memory(2, 1, -4)
    )
    assert found.recording.iterations == (((0, 8), (0, -1), (1, 4), (1, -1)),)


def test_what_is_kept_is_left_out():
    asked = [(1, 8), (2, 4), (3, 2), (2, -4), (9, -1), (1, -8), (4, 16)]
    assert _iteration(asked) == (((0, 8), (1, 4), (1, -1), (0, -1)), [2, 16])
    # An address that is asked for twice is that of the later request.
    assert _iteration([(1, 8), (1, 4), (1, -4)]) == (((0, 4), (0, -1)), [])


def test_a_recording_ends_where_the_next_begins(tmp_path):
    path = tmp_path / "loop.csv"
    recording = Recording("loop", (((0, 8), (1, 0), (0, -1)), ((0, 4),)), (7, 3))
    write_recording(path, recording)
    assert path.read_text() == (
        "iteration,profile,request,bytes\n0,7,0,8\n0,7,1,0\n0,7,0,-1\n1,3,0,4\n"
    )
    assert read_recording(path) == recording
    path.write_text(path.read_text() + "1,3,2,5\n")
    with pytest.raises(InputError, match="line 6: does not go on"):
        read_recording(path)


def test_a_trace_is_replayed_and_made_a_recording(tmp_path, capsys):
    trace, out = tmp_path / "trace.json", tmp_path / "loop.csv"
    read(tmp_path, mark(0, 9), memory(1, 1, 8), memory(2, 2, 5), memory(3, 1, -8))
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
        (json.dumps({"traceEvents": [mark(1, 1)]}), "profile_memory=True"),
    ],
)
def test_other_files(tmp_path, text, message):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_torch_trace(path)
    with pytest.raises(InputError, match="cannot read"):
        read_torch_trace(tmp_path / "missing.json")
