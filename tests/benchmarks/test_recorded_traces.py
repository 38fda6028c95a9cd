"""Traces of PyTorch's profiler and recordings, to the edge of an iteration."""

import json

import pytest

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
