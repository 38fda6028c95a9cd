"""A solver-free model of orders: unit jobs, and intervals that load a resource.

Jobs 0, ..., n - 1 take one step each, one at a time. Intervals begin and end with jobs. The largest
load of any step is minimised. A backend that supports intervals solves the model directly.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Interval:
    """Steps [start, stop) at which `load` units are taken.

    Attributes:
      load: units, positive.
      start: the job with which it begins, or None for step 0.
      until: jobs that it outlasts: it stops after the last of these and of those `up_to`.
      up_to: jobs at whose step it may stop already.
      to_end: it lasts to the end.
      options: by job of `until`, options one of which, if taken, puts it among those `up_to`.
    """

    load: int
    start: int | None
    until: tuple[int, ...] = ()
    up_to: tuple[int, ...] = ()
    to_end: bool = False
    options: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclasses.dataclass(frozen=True)
class Option:
    """A yes-or-no choice.

    Attributes:
      job: the choice is about this job.
      after: jobs that must all have run before `job` where the option is taken.
      excludes: options that cannot be taken with it.
      forced: it must be taken if all of `after` have run before, unless one of `excludes` is taken
        or all of the jobs of one set of `blockers` have run before: then it must not.
      blockers: sets of jobs.
    """

    job: int
    after: tuple[int, ...]
    excludes: tuple[int, ...] = ()
    forced: bool = False
    blockers: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class IntervalModel:
    """A model.

    Attributes:
      first, last: by job, its inclusive span of steps.
      precedence: (u, v): u runs before v.
      intervals, options: as above.
      extra: by job, units taken at its step alone.
      bound: units, no order has a smaller peak. most: units, no order has a larger one.
      start: step of each job in a known order, or None.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    precedence: tuple[tuple[int, int], ...]
    intervals: tuple[Interval, ...]
    options: tuple[Option, ...]
    extra: tuple[int, ...]
    bound: int
    most: int
    start: tuple[int, ...] | None = None
