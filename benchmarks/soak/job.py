"""Soaks in processes of their own, planned and by jax.jit, and what may not grow."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.soak.worker import PARTS
from benchmarks.worker_lines import worker_lines
from olla_xla.errors import InputError

_MORE_MEMORY = 0.02
"""Part of its resident memory that a process may grow by in its second half: malloc's noise."""
_MORE_SECONDS = 0.5  # likewise of the seconds of a call, on a machine that does other things too
_TIMES_JIT = 2.0
"""Times what jax.jit keeps of a signature that a planned function may keep, its plan included."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The memory (bytes) and the times (seconds) of a process after `count` repetitions.

    Attributes:
      count: how often it was done. resident_bytes: of the process, without what malloc holds free.
      first_seconds: median of first calls since the last sample, compiled and planned in.
      call_seconds: of a call of what is compiled.
    """

    count: int
    resident_bytes: int
    first_seconds: float
    call_seconds: float


@dataclasses.dataclass(frozen=True)
class Curve:
    """A soak of one part ("signatures", "forgotten") one way ("plan", "jit")."""

    part: str
    way: str
    samples: tuple[Sample, ...]

    def growth(self, field: str) -> float:
        """What a field grows by over the second half, as a part of its median."""
        counts = [s.count for s in self.samples]
        return growth(counts, [getattr(s, field) for s in self.samples])

    @property
    def bytes_each(self) -> float:
        """Resident bytes that each repetition adds, over the second half."""
        late = self.samples[len(self.samples) // 2 :]
        return slope([s.count for s in late], [s.resident_bytes for s in late])

    def wrong(self, jit: Curve | None) -> str:
        """Which figure grows too much, or "".

        Args:
          jit: the same by jax.jit, which keeps the executables of all signatures too, and whose
            calls take longer where the machine has more to do.
        """
        if len(self.samples) < 4:
            return f"{len(self.samples)} samples are too few; give it more time"
        for what, field in (("a call", "call_seconds"), ("a first call", "first_seconds")):
            grown = self.growth(field)
            alike = 0.0 if jit is None else max(jit.growth(field), 0.0)
            if grown > _MORE_SECONDS + alike:
                return f"{what} takes {grown:.0%} longer in the end"
        if self.part == "forgotten" and self.growth("resident_bytes") > _MORE_MEMORY:
            return f"resident memory grows by {self.bytes_each:,.0f} bytes each time"
        if self.part == "signatures" and jit is not None:
            if self.bytes_each > _TIMES_JIT * jit.bytes_each:
                return f"a signature keeps {self.bytes_each / 2**20:.2f} MB"
        return ""


def slope(counts: Sequence[int], values: Sequence[float]) -> float:
    """The growth of a value for each count, the median of all pairwise slopes; 0 for one sample.

    Theil, "A rank-invariant method of linear and polynomial regression analysis" (1950); Sen (JASA
    1968). A few disturbed samples do not change the median.
    """
    points = itertools.combinations(zip(counts, values, strict=True), 2)
    slopes = [(y - b) / (x - a) for (a, b), (x, y) in points if x != a]
    return statistics.median(slopes) if slopes else 0.0


def growth(counts: Sequence[int], values: Sequence[float]) -> float:
    """The growth of a value over the second half of its samples, as a fraction of their median."""
    half = len(counts) // 2
    counts, values = counts[half:], values[half:]
    if len(counts) < 2:
        return 0.0
    return slope(counts, values) * (counts[-1] - counts[0]) / max(statistics.median(values), 1e-12)


def soak(
    part: str, way: str, count: int, seconds: float, every: int, options: dict[str, Any]
) -> Iterator[Curve]:
    """Runs one part; yields the curve so far at each sample.

    Args:
      part, way, count, seconds, every, options: see `worker.main`.

    Raises:
      InputError: there is no such part. OllaError: the process ended with an error.
    """
    if part not in PARTS:
        raise InputError(f"no part {part!r}; parts are {', '.join(PARTS)}")
    about = {"part": part, "way": way, "count": count, "seconds": seconds, "every": every}
    samples: tuple[Sample, ...] = ()
    given = {**about, "options": options}
    for line in worker_lines("benchmarks.soak.worker", given, "the process that soaks"):
        samples += (Sample(**line),)
        yield Curve(part, way, samples)
