"""Replay that learns its profiles: places hold, arenas are small, nothing is asked of callers."""

import doctest
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import profiles
from benchmarks.profile_replay import replay
from benchmarks.profile_replay.profile import PlannedAllocator
from benchmarks.profile_replay.replay import LearningAllocator
from benchmarks.recordings.recording import read_recording
from olla_xla.errors import InputError, LimitError
from olla_xla.place import PlacementProblem, placer


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
    path = Path(profiles.__file__).parent / "recordings" / "numpy_rnn_training.csv"
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


def test_what_leaves_a_profile_enters_it():
    allocator = LearningAllocator()
    run(allocator, [64, 32])
    run(allocator, [64, 32, 100])  # goes on where the first ends
    run(allocator, [64, 48])  # a larger request
    allocator.begin()
    assert allocator.recorded == 3
    for sizes in ([64, 48], [64, 32, 100], [64, 32]):
        run(allocator, sizes)
    allocator.begin()
    assert allocator.recorded == allocator.profiles == 3
    assert allocator.arena_bytes == 196


def test_a_larger_iteration_gets_the_better_places():
    """The arena of the largest is the live peak, whatever was known before."""
    allocator = LearningAllocator()
    run(allocator, [10, 20, 30], {1: 0, 2: 1}.items())
    run(allocator, [10, 20, 30, 40, 50], {1: 0, 2: 1, 4: 2}.items())
    allocator.begin()
    assert allocator.arena_bytes == 120


def test_the_largest_is_placed_first():
    """The small one alone has its larger block at the bottom, where the large one pays for it."""
    allocator = LearningAllocator()
    small, large = ([30, 20], {}), ([30, 20, 40], {1: 0})
    for sizes, freed in (small, large):
        run(allocator, sizes, freed.items())
    allocator.begin()
    assert allocator.arena_bytes == 60
    for sizes, freed in (small, large):
        run(allocator, sizes, freed.items())
    assert allocator.recorded == 2 and allocator.arena_bytes == 60


def test_the_oldest_is_forgotten():
    allocator = LearningAllocator(most_profiles=2)
    for size in (1000, 1, 2):
        run(allocator, [size])
    allocator.begin()
    assert allocator.profiles == 2 and allocator.arena_bytes == 2
    assert allocator.largest_arena_bytes == 1000


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


def test_loops_of_the_documents():
    """A loop's lengths make the requests and states that the stored rows have: 4 a step, and 1."""
    stored = Path(__file__).parents[2] / "docs" / "figures" / "papers" / "profile.json"
    rows = {row["loop"]: row for row in json.loads(stored.read_text())}
    assert set(rows) == set(profiles.LOOPS)
    for name in (name for name in rows if name.startswith("inference")):
        row = rows[name]
        ran = list(profiles._iterations(name, 0, profiles._ITERATIONS))
        assert (len(ran), len({key for *_, key in ran})) == (row["iterations"], row["profiles"])
        assert sum(4 * len(inputs) + 1 for _, inputs, *_ in ran) == row["requests"]
        for _, inputs, weights, _ in ran:
            assert inputs.shape[1:] == (32, 256) and 4 * inputs[0].nbytes == row["live_bytes"]
            assert [w.shape for w in weights] == [(256, 256)] * 2
            assert weights[0].std() == pytest.approx(0.05, rel=0.05)


def test_64_iterations_are_remembered(monkeypatch):
    """By default, and each placement has a second; a place alone has ten."""
    asked = []
    budget = placer.Budget
    monkeypatch.setattr(
        replay, "_placed", lambda profile, *given: asked.append(given[-1]) or [0] * 66
    )
    allocator = LearningAllocator()
    for size in range(66):
        allocator.begin()
        allocator.free(allocator.allocate(size)[0])
    allocator.begin()
    assert (allocator.recorded, allocator.profiles) == (66, 64)
    limits = {"time_limit": 1.0, "node_limit": None}
    assert all(given == limits for given in asked)
    asked.clear()
    monkeypatch.setattr(placer, "Budget", lambda *given: asked.append(given) or budget(*given))
    PlannedAllocator(profiles._profile([(0, 8), (0, -1)]))
    placer.place(PlacementProblem.of([0], [1], [4]))
    assert asked == [(1.0, None), (10.0, None)]
