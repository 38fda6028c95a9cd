"""Arrays of NumPy programs as they are recorded, replayed from a planned arena."""

import dataclasses
import doctest
import functools
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.papers.profile_replay import profile, profiles
from benchmarks.papers.profile_replay.profile import Recorder
from benchmarks.papers.profile_replay.record_arrays import recorded
from benchmarks.papers.recordings import recording
from benchmarks.papers.recordings.recording import read_recording, write_recording
from olla_xla.errors import InputError


def test_what_is_made_while_interrupted_is_not_recorded():
    recorder = Recorder()
    given = recorded(np.ones(4), recorder)
    recorder.interrupt()
    lost = given + 1
    recorder.resume()
    kept = given + 1
    del lost, kept
    assert len(recorder.problem()) == 1


@pytest.fixture
def small(monkeypatch):
    """Small arrays."""
    monkeypatch.setattr(profiles, "_WIDTH", 64)
    monkeypatch.setattr(profiles, "_BATCH", 8)


@pytest.fixture
def hasty(monkeypatch):
    """Little time for each placement."""
    for name in ("PlannedAllocator", "LearningAllocator"):
        quick = functools.partial(getattr(profiles, name), time_limit=0.05)
        monkeypatch.setattr(profiles, name, quick)


def test_a_profile_for_each_length(small):
    row = profiles.measure("training, a profile for each of four lengths")
    assert row.replans == row.elsewhere == 0 and 1 < row.profiles <= 4
    assert row.live_bytes == row.arena_bytes


def test_changing_lengths_outgrow_one_profile(small, hasty):
    row = profiles.measure("inference, changing lengths")
    assert row.live_bytes <= row.arena_bytes + row.elsewhere_bytes


def test_seq2seq_is_served_as_recorded(small):
    row = profiles.measure("seq2seq training, one length")
    assert row.replans == row.elsewhere == 0
    assert row.live_bytes == row.arena_bytes <= row.caching_bytes


def test_a_recording_there_and_back(tmp_path):
    path = tmp_path / "loop.csv"
    found = profiles.record("seq2seq inference, changing lengths", iterations=2)
    write_recording(path, found)
    back = read_recording(path)
    assert back.iterations == found.iterations and back.profiles == found.profiles
    assert len(back.iterations) == 2 and back.name == "loop"


@pytest.mark.parametrize(
    "lines",
    [
        ["0,0,0,x"],  # no number
        ["0,0,0"],  # too short
        ["1,0,0,8"],  # begins with the second iteration
        ["0,0,1,8"],  # a request is left out
        ["0,0,0,8", "0,0,1,-1"],  # released before it was made
        ["0,0,0,8", "0,0,0,-1", "0,0,0,-1"],  # released twice
        ["0,0,0,8", "0,1,1,8"],  # another profile within an iteration
    ],
)
def test_what_is_no_recording(tmp_path, lines):
    path = tmp_path / "loop.csv"
    path.write_text("\n".join(["iteration,profile,request,bytes", *lines, ""]))
    with pytest.raises(InputError, match=re.escape(str(path))):
        read_recording(path)


RECORDINGS = sorted(Path(recording.__file__).parent.glob("*.csv"))
assert RECORDINGS


@pytest.mark.parametrize("path", RECORDINGS, ids=[p.stem for p in RECORDINGS])
def test_recordings_of_the_repository(path, tmp_path, hasty):
    """Replayed; the command fails where blocks that are live together overlap.

    The shortest is replayed whole, of the others about as much.
    """
    out = tmp_path / "rows.json"
    assert sum(map(len, read_recording(path).iterations)) > 2 * 500
    if path.stem != "torch_perceptron":
        path = shortened(path, tmp_path)
    assert main(["benchmarks", "profile", f"--trace={path}", f"--out={out}"]) == 0
    (row,) = json.loads(out.read_text())
    assert row["loop"] == path.stem and row["requests"] > 400
    assert row["live_bytes"] <= row["arena_bytes"] + row["elsewhere_bytes"]


def shortened(path, folder):
    """The first iterations of a recording, of 800 requests and releases or more."""
    recording = read_recording(path)
    lengths = list(itertools.accumulate(map(len, recording.iterations)))
    count = next(k for k, length in enumerate(lengths, 1) if length >= 800 and k > 1)
    first = dataclasses.replace(
        recording,
        iterations=recording.iterations[:count],
        profiles=recording.profiles[:count],
    )
    write_recording(folder / path.name, first)
    return folder / path.name


def test_recording_on_the_command_line(tmp_path):
    path = tmp_path / "loop.csv"
    flags = ["--loop=inference, one length", "--iterations=2", f"--record={path}"]
    assert main(["benchmarks", "profile", *flags]) == 0
    assert profiles.replayed(read_recording(path)).replans == 0


def test_the_example_holds():
    assert doctest.testmod(profile).failed == 0
