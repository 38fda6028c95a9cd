"""Profile and replay on real loops: NumPy programs, recorded, then served from a planned arena.

Sekiyama et al. (2018), section 5: a recurrent network over sequences and one that translates a
sequence into another (seq2seq), trained and run, of one length, of changing lengths, and of lengths
padded to one of a few, each with a profile of its own. Each iteration's requests are recorded as
NumPy makes them, or come from a recorded trace. The first of its kind is the profile; all are
replayed by the planned allocator, by the one that learns its profiles, by the simulated caching
allocator and by the C library's malloc.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.papers.eager.allocator import BlockSplittingAllocator
from benchmarks.papers.eager.allocator_time import malloc_seconds
from benchmarks.papers.profile_replay.profile import PlannedAllocator, Recorder
from benchmarks.papers.profile_replay.record_arrays import RecordedArray, recorded
from benchmarks.papers.profile_replay.replay import LearningAllocator
from benchmarks.papers.recordings.recording import Event, Recording
from olla_xla.errors import CheckError

_BATCH, _WIDTH = 32, 256
_ITERATIONS = 20
_LENGTHS = (10, 40)
_TEN = range(13, 41, 3)
"""Lengths of which each comes once in a round, rounds in random order."""
_ROUNDS = 4


class RequestLog:
    """Records all requests and releases of a loop, by iteration."""

    def __init__(self) -> None:
        self.iterations: list[list[Event]] = []

    def begin(self) -> None:
        """Starts a new iteration."""
        self.iterations.append([])
        self._count = 0

    def allocate(self, size: int) -> tuple[int, int]:
        """Records a request of `size` bytes; returns a handle for `free`."""
        self._count += 1
        self.iterations[-1].append((self._count - 1, size))
        return len(self.iterations) - 1, self._count - 1

    def free(self, request: tuple[int, int]) -> None:
        """Records a release."""
        self.iterations[request[0]].append((request[1], -1))


def _forward(
    inputs: RecordedArray, weights: Sequence[RecordedArray], keep: bool
) -> list[np.ndarray]:
    """The states of a recurrent network: all of them if `keep`, else only the last."""
    states = [inputs[0] @ weights[0]]
    for x in inputs:
        states.append(np.tanh(x @ weights[0] + states[-1] @ weights[1]))
        if not keep:
            del states[0]
    return states


def _inference(inputs: RecordedArray, weights: Sequence[RecordedArray]) -> None:
    _forward(inputs, weights, keep=False)


def _training(inputs: RecordedArray, weights: Sequence[RecordedArray]) -> None:
    """A training step: backpropagation through time."""
    states = _forward(inputs, weights, keep=True)
    gradient = states[-1] - 1.0
    sums = [weights[0] * 0.0, weights[1] * 0.0]
    for x in inputs[::-1]:
        local = gradient * (1.0 - states.pop() ** 2)
        sums[0] += x.T @ local
        sums[1] += states[-1].T @ local
        gradient = local @ weights[1].T


def _translating(inputs: RecordedArray, weights: Sequence[RecordedArray], train: bool) -> None:
    """Encodes a sequence and decodes one of three quarters of its length, step by step.

    Training goes back through both; running keeps the last state alone.
    """
    encoded = _forward(inputs, weights, keep=train)
    decoded = [encoded[-1]]
    for _ in range(3 * len(inputs) // 4):
        decoded.append(np.tanh(decoded[-1] @ weights[1] + encoded[-1]))
        if not train:
            del decoded[0]
    if not train:
        return
    gradient, context = decoded[-1] - 1.0, encoded[-1] * 0.0
    sums = [weights[0] * 0.0, weights[1] * 0.0]
    for states, xs in ((decoded, None), (encoded, inputs[::-1])):
        for step in range(len(states) - 1):
            local = gradient * (1.0 - states.pop() ** 2)
            sums[1] += states[-1].T @ local
            gradient = local @ weights[1].T
            if xs is None:
                context += local
            else:
                sums[0] += xs[step].T @ local
        gradient = gradient + context


def _translation_training(inputs: RecordedArray, weights: Sequence[RecordedArray]) -> None:
    _translating(inputs, weights, train=True)


def _translation(inputs: RecordedArray, weights: Sequence[RecordedArray]) -> None:
    _translating(inputs, weights, train=False)


_KINDS = (
    "one length",
    "changing lengths",
    "a profile for each of four lengths",
    "ten lengths in random order",
)

LOOPS: dict[str, tuple[Callable[..., None], int]] = {
    f"{what}, {kind}": (run, number)
    for what, run in (
        ("training", _training),
        ("inference", _inference),
        ("seq2seq training", _translation_training),
        ("seq2seq inference", _translation),
    )
    for number, kind in enumerate(_KINDS)
}
"""Name -> an iteration, and which kind of lengths sequences have."""


def record(name: str, seed: int = 0, iterations: int = _ITERATIONS) -> Recording:
    """Runs a loop of LOOPS and records it."""
    log = RequestLog()
    profiles = []
    for run, inputs, weights, profile in _iterations(name, seed, iterations):
        log.begin()
        profiles.append(profile)
        run(recorded(inputs, log), [recorded(w, log) for w in weights])
    return Recording(name, tuple(map(tuple, log.iterations)), tuple(profiles))


def _iterations(
    name: str, seed: int, iterations: int
) -> Iterator[tuple[Callable[..., None], np.ndarray, list[np.ndarray], int]]:
    """For each iteration: what it runs, its inputs, its weights, the number of its profile."""
    run, kind = LOOPS[name]
    random = np.random.default_rng(seed)
    weights = [random.standard_normal((_WIDTH, _WIDTH)) * 0.05 for _ in range(2)]
    rounds = [int(n) for _ in range(_ROUNDS) for n in random.permutation(_TEN)] if kind == 3 else []
    for k in range(len(rounds) or iterations):
        length = int(random.integers(*_LENGTHS)) if kind else _LENGTHS[1]
        if kind == 2:
            length = -(-length // _LENGTHS[0]) * _LENGTHS[0]
        if kind == 3:
            length = rounds[k]
        inputs = random.standard_normal((length, _BATCH, _WIDTH))
        yield run, inputs, weights, length if kind >= 2 else 0


@dataclasses.dataclass(frozen=True)
class Row:
    """A loop replayed. Bytes; seconds for one request or release.

    Attributes:
      loop: its name. iterations, requests: how many in all.
      live_bytes: the most that was live. caching_bytes: what the caching allocator reserved.
      arena_bytes: of the planned allocator, grown as it was. profiles: how many there were.
      replans: how often it repacked.
      elsewhere: requests past the profile's end, which the caching allocator served beside it;
        elsewhere_bytes: what it reserved for them.
      planned_seconds, caching_seconds: of the two allocators, both in Python; replans count.
      serving_seconds: of the planned one without its replans. malloc_seconds: of the C library's.
      learned: iterations that the learning allocator had not known, each a profile from then on.
      learned_bytes: the largest arena of an iteration that it knew, 0 if there was none;
        learning_bytes: of any.
      learned_seconds: of the learning allocator, placing included.
      step_seconds: median of one iteration in NumPy, not recorded; None of a trace.
    """

    loop: str
    iterations: int
    requests: int
    live_bytes: int
    caching_bytes: int
    arena_bytes: int
    profiles: int
    replans: int
    elsewhere: int
    elsewhere_bytes: int
    planned_seconds: float
    serving_seconds: float
    caching_seconds: float
    malloc_seconds: float
    learned: int
    learned_bytes: int
    learning_bytes: int
    learned_seconds: float
    step_seconds: float | None = None


def measure(name: str, seed: int = 0) -> Row:
    """Records a loop, replays it (see `replayed`), and times the loop itself."""
    row = replayed(record(name, seed))
    seconds = []
    for run, inputs, weights, _ in _iterations(name, seed, _ITERATIONS):
        started = time.perf_counter()
        run(inputs, weights)
        seconds.append(time.perf_counter() - started)
    return dataclasses.replace(row, step_seconds=statistics.median(seconds))


def replayed(recording: Recording) -> Row:
    """Replays a recording by each allocator.

    Raises:
      CheckError: blocks that were live together overlapped in the arena (a bug).
    """
    iterations, keys = recording.iterations, recording.profiles
    beside = BlockSplittingAllocator()
    count = sum(map(len, iterations))
    planned: dict[int, PlannedAllocator] = {}
    seconds = replanning = 0.0
    elsewhere = 0
    for key, events in zip(keys, iterations, strict=True):
        if key not in planned:
            planned[key] = PlannedAllocator(_profile(events))
        spent, again, others = _replay([events], planned[key], beside)
        seconds, replanning, elsewhere = seconds + spent, replanning + again, elsewhere + others
    caching = BlockSplittingAllocator()
    started = time.perf_counter()
    live = peak = 0
    for number, size, handles in _flat(iterations):
        if size >= 0:
            handles[number] = (caching.allocate(size), size)
            live += size
            peak = max(peak, live)
        else:
            handle, freed = handles.pop(number)
            caching.free(handle)
            live -= freed
    own = time.perf_counter() - started
    requests, sizes = _numbered(iterations)
    learning, known_bytes, learned_seconds = learn(iterations)
    return Row(
        loop=recording.name,
        iterations=len(iterations),
        requests=sum(size >= 0 for events in iterations for _, size in events),
        live_bytes=peak,
        caching_bytes=caching.reserved,
        arena_bytes=max(p.arena_bytes for p in planned.values()),
        profiles=len(planned),
        replans=sum(p.replans for p in planned.values()),
        elsewhere=elsewhere,
        elsewhere_bytes=beside.reserved,
        planned_seconds=seconds / count,
        serving_seconds=(seconds - replanning) / count,
        caching_seconds=own / count,
        malloc_seconds=malloc_seconds(requests, sizes) / count,
        learned=learning.recorded,
        learned_bytes=known_bytes,
        learning_bytes=learning.largest_arena_bytes,
        learned_seconds=learned_seconds / count,
    )


def learn(iterations: Sequence[Sequence[Event]]) -> tuple[LearningAllocator, int, float]:
    """Replays by the learning allocator; (it, its largest arena where it knew, seconds).

    Raises:
      CheckError: blocks that were live together overlapped in the arena (a bug).
    """
    learning = LearningAllocator()
    known_bytes = 0
    seconds = 0.0
    learning.begin()
    for events in iterations:
        recorded_before = learning.recorded
        places = _Places()
        for number, size in events:
            started = time.perf_counter()
            found = learning.allocate(size) if size >= 0 else learning.free(number)
            seconds += time.perf_counter() - started
            if found is None:
                places.release(number)
            else:
                places.take(number, found[1], size)
        arena = learning.arena_bytes
        started = time.perf_counter()
        learning.begin()
        seconds += time.perf_counter() - started
        if learning.recorded == recorded_before:
            known_bytes = max(known_bytes, arena)
    return learning, known_bytes, seconds


class _Places:
    """The offsets of the live requests of an iteration, to check that none overlap."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, int]] = {}

    def take(self, number: int, at: int, size: int) -> None:
        """Adds a live request. Raises CheckError if it overlaps another one."""
        if any(at < o + s and o < at + size for o, s in self._places.values()):
            raise CheckError(f"request {number} at {at} overlaps one that is live")
        self._places[number] = (at, size)

    def release(self, number: int) -> None:
        """Removes a request; one that was never added is ignored."""
        self._places.pop(number, None)


def _profile(events: Sequence[Event]):
    recorder = Recorder()
    for number, size in events:
        if size >= 0:
            recorder.allocate(size)
        else:
            recorder.free(number)
    return recorder.problem()


def _flat(iterations: Sequence[Sequence[Event]]) -> Iterator[tuple[int, int, dict]]:
    """Every event, with a dictionary that is new for each iteration."""
    for events in iterations:
        handles: dict = {}
        for number, size in events:
            yield number, size, handles


def _replay(
    iterations: Sequence[Sequence[Event]],
    planned: PlannedAllocator,
    beside: BlockSplittingAllocator,
) -> tuple[float, float, int]:
    """(seconds in the allocator, the part of them in replans, requests served elsewhere)."""
    seconds = replanning = 0.0
    elsewhere = 0
    for events in iterations:
        planned.begin()
        served: dict[int, int] = {}
        others: dict[int, int] = {}
        places = _Places()
        for number, size in events:
            before, started = planned.replans, time.perf_counter()
            if size >= 0:
                found = planned.allocate(size)
            elif number in served:
                planned.free(served.pop(number))
                found = None
            taken = time.perf_counter() - started
            seconds += taken
            replanning += taken if planned.replans > before else 0.0
            if size < 0:
                if number in others:
                    beside.free(others.pop(number))
                places.release(number)
                continue
            if found is None:
                others[number] = beside.allocate(size)
                elsewhere += 1
                continue
            served[number], at = found
            places.take(number, at, size)
    return seconds, replanning, elsewhere


def _numbered(iterations: Sequence[Sequence[Event]]) -> tuple[list[int], list[int]]:
    """The requests as `malloc_seconds` takes them, all iterations end to end."""
    requests: list[int] = []
    sizes: list[int] = []
    for events in iterations:
        base = len(sizes)
        for number, size in events:
            requests.append(base + number + 1 if size >= 0 else -(base + number + 1))
            if size >= 0:
                sizes.append(max(size, 1))
    return requests, sizes
