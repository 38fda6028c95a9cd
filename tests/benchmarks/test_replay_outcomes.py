"""The allocators that replay, to the last byte: random loops, small recorded ones, and by hand.

Seconds are left out, and placements are counted: no machine is too slow for the same places.
"""

import dataclasses

import numpy as np
import pytest

from benchmarks.papers.profile_replay import profiles
from benchmarks.papers.profile_replay.profile import PlannedAllocator, Recorder
from benchmarks.papers.profile_replay.record_arrays import recorded
from benchmarks.papers.profile_replay.replay import LearningAllocator
from benchmarks.papers.recordings.recording import Recording
from olla_xla.errors import InputError
from tests.support.outcomes import outcome

LONG = 1e9


def loop(seed, count=8):
    """Iterations of (request, size or -1), which share beginnings and part."""
    random = np.random.default_rng(seed)
    kinds = []
    for _ in range(3):
        events, live, made = [], [], 0
        for _ in range(int(random.integers(8, 40))):
            if live and random.random() < 0.45:
                events.append((live.pop(int(random.integers(len(live)))), -1))
            else:
                events.append((made, max(int(random.integers(-3, 40)), 0)))
                live.append(made)
                made += 1
        kinds.append([*events, *((k, -1) for k in live)])
    iterations = []
    for _ in range(count):
        events = list(kinds[int(random.integers(3))])
        if random.random() < 0.5:  # one request grows, or shrinks
            at = int(random.integers(len(events)))
            if events[at][1] >= 0:
                events[at] = (events[at][0], max(events[at][1] + int(random.integers(-5, 20)), 0))
        if random.random() < 0.3:  # one is released at the end
            ends = [k for k, (_, size) in enumerate(events) if size < 0]
            events.append(events.pop(ends[int(random.integers(len(ends)))]))
        iterations.append(tuple(events))
    return iterations


def planned(seed):
    iterations = loop(seed)
    recorder = Recorder()
    for number, size in iterations[0]:
        recorder.allocate(size) if size >= 0 else recorder.free(number)
    problem = recorder.problem(alignment=1 + 3 * (seed % 2))
    allocator = PlannedAllocator(problem, time_limit=LONG, node_limit=300)
    told = [problem.lower, problem.upper, problem.size]
    for events in iterations:
        allocator.begin()
        served = {}
        for number, size in events:
            if size >= 0:
                found = allocator.allocate(size)
                told.append(found)
                if found is not None:
                    served[number] = found[0]
            elif number in served:
                allocator.free(served[number])
        told.append((allocator.arena_bytes, allocator.replans))
    return told


def learned(seed):
    allocator = LearningAllocator(most_profiles=2 + seed % 3, time_limit=LONG, node_limit=300)
    told = []
    for events in loop(seed, 12):
        allocator.begin()
        for number, size in events:
            told.append(allocator.allocate(size) if size >= 0 else allocator.free(number))
        told.append((allocator.arena_bytes, allocator.largest_arena_bytes))
        told.append((allocator.recorded, allocator.profiles))
    return told


SERVED = {
    "planned": lambda: outcome([planned(seed) for seed in range(25)]),
    "learned": lambda: outcome([learned(seed) for seed in range(25)]),
}


def test_random_loops():
    assert {name: told() for name, told in SERVED.items()} == SERVED_TOLD


def counts(row):
    return {k: v for k, v in dataclasses.asdict(row).items() if "seconds" not in k}


def test_a_loop_by_hand():
    """Two kinds of iterations; the second's own profile, and what goes on past the first's end."""
    first = ((0, 512), (1, 1024), (0, -1), (2, 512), (1, -1), (2, -1))
    longer = (*first, (3, 4096), (4, 2048), (3, -1), (4, -1))
    grown = ((0, 512), (1, 2048), (0, -1), (2, 512), (1, -1), (2, -1))
    found = profiles.replayed(Recording("by hand", (first, longer, grown, first), (0, 0, 1, 0)))
    assert counts(found) == {
        "loop": "by hand",
        "iterations": 4,
        "requests": 3 + 5 + 3 + 3,
        "live_bytes": 6144,
        "caching_bytes": 2 << 20,
        "arena_bytes": 2560,  # of 512 + 1024 and of 512 + 2048
        "profiles": 2,
        "replans": 0,
        "elsewhere": 2,
        "elsewhere_bytes": 2 << 20,
        "learned": 3,
        "learned_bytes": 6144,  # the arena holds the largest iteration it knows
        "learning_bytes": 6144,
    }
    grows = profiles.replayed(Recording("grows", (first, grown), (0, 0)))
    assert (grows.replans, grows.elsewhere, grows.profiles) == (1, 0, 1)
    # Block 1 lies below block 0, which is live when it grows: 2048 bytes go above both.
    assert (grows.arena_bytes, grows.live_bytes) == (512 + 1024 + 2048, 2560)
    assert (grows.learned, grows.learned_bytes) == (2, 0)
    assert grows.planned_seconds > grows.serving_seconds > 0
    assert min(grows.caching_seconds, grows.malloc_seconds, grows.learned_seconds) > 0


def test_the_caching_allocator_gets_back_what_is_released():
    """12 MB at a time, three times; and 5 MB beside them, in a segment of 20 MB."""
    events = ((0, 12 << 20), (0, -1), (1, 12 << 20), (2, 5 << 20), (1, -1), (2, -1))
    found = profiles.replayed(Recording("large", (events, events), (0, 0)))
    assert (found.live_bytes, found.caching_bytes) == (17 << 20, 32 << 20)


def test_arrays_are_recorded_once():
    recorder = Recorder()
    given = recorded(np.ones((4, 8)), recorder)
    assert recorded(given[1:], recorder)[0].shape == (8,) and not len(recorder.problem())
    made = given * 2
    views = [made[1:], made.T, made.reshape(-1)]
    assert recorder.problem().size.tolist() == [256]
    del made
    assert recorder.problem().upper.tolist() == [2]  # views hold it
    del views
    recorder.allocate(8)
    assert recorder.problem().upper.tolist() == [1, 4]  # to the end
    with pytest.raises(InputError, match="not allocated"):
        recorder.free(0)
    with pytest.raises(InputError, match="not allocated"):
        recorder.free(2)
    recorder.free(1)
    assert recorder.problem(alignment=8).alignment.tolist() == [8, 8]


SERVED_TOLD = {
    "planned": "fabd016c4bd1",
    "learned": "17d518fbd872",
}
