"""Replay that learns its profiles: places hold, arenas are small, nothing is asked of callers."""

import doctest
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.profile_replay import profiles, replay
from benchmarks.papers.profile_replay.replay import LearningAllocator
from benchmarks.papers.recordings import recording
from benchmarks.papers.recordings.recording import read_recording
from olla_xla.errors import InputError, LimitError


def run(allocator, sizes, freed=()):
    """An iteration: requests, each followed by a release where `freed` says of which."""
    allocator.begin()
    releases = dict(freed)
    live = {}
    for number, size in enumerate(sizes):
        given_number, offset = allocator.allocate(size)
        assert given_number == number
        for other, at in live.items():
            assert offset >= at + sizes[other] or at >= offset + size, (number, other)
        assert offset + size <= allocator.arena_bytes
        live[number] = offset
        if number in releases:
            allocator.free(releases[number])
            del live[releases[number]]
    for number in live:
        allocator.free(number)


def live_peak(events):
    live = peak = 0
    sizes = {}
    for number, size in events:
        live += size if size >= 0 else -sizes.pop(number)
        sizes |= {number: size} if size >= 0 else {}
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("what", ["training", "seq2seq training"])
def test_ten_lengths_in_random_order(what, monkeypatch):
    """From the second round on, at most 1.1 times the largest live peak."""
    monkeypatch.setattr(profiles, "_ROUNDS", 2)
    monkeypatch.setattr(profiles, "_WIDTH", 64)
    found = profiles.record(f"{what}, ten lengths in random order")
    assert len(found.iterations) == 20 and len(set(map(len, found.iterations))) == 10
    allocator, arena_bytes, _ = profiles.learn(found.iterations)
    assert allocator.recorded == allocator.profiles == 10
    live_bytes = max(map(live_peak, found.iterations))
    assert live_bytes <= arena_bytes <= 1.1 * live_bytes


def test_one_length_is_learned_at_once():
    path = Path(recording.__file__).with_name("numpy_rnn_training.csv")
    events = read_recording(path).iterations[0]
    allocator, arena_bytes, _ = profiles.learn([events] * 3)
    assert allocator.recorded == 1 and arena_bytes == live_peak(events)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_places_hold_whatever_comes(data):
    """Iterations drawn from a few, so that they share beginnings, part and come again."""
    known = []
    allocator = LearningAllocator(most_profiles=data.draw(st.integers(1, 3)), time_limit=0.05)
    for _ in range(data.draw(st.integers(1, 8))):
        if known and data.draw(st.booleans()):
            sizes, freed = data.draw(st.sampled_from(known))
        else:
            start = data.draw(st.sampled_from([[], [4, 8], [4, 8, 2]]))
            sizes = [*start, *data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))]
            freed = {}
            for number in range(len(sizes)):
                left = sorted(set(range(number + 1)) - set(freed.values()))
                if data.draw(st.booleans()):
                    freed[number] = data.draw(st.sampled_from(left))
            known.append((sizes, freed))
        run(allocator, sizes, freed.items())
    assert allocator.profiles <= 3


def test_misuse():
    with pytest.raises(LimitError, match="at least 1"):
        LearningAllocator(most_profiles=0)
    allocator = LearningAllocator()
    allocator.begin()
    with pytest.raises(InputError, match="-1 bytes"):
        allocator.allocate(-1)
    with pytest.raises(InputError, match="not allocated"):
        allocator.free(0)
    allocator.allocate(8)
    with pytest.raises(InputError, match="was not freed"):
        allocator.begin()


def test_the_example_holds():
    assert doctest.testmod(replay).failed == 0
