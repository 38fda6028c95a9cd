"""The largest batch that fits a memory: XLA's order, planned, with recomputation, host memory.

A compile up to XLA's schedule is enough to predict the totals of a batch size in all ways. Totals
are nearly linear in the batch, so two sizes give a line that points at each answer. One full
compile for each way confirms or corrects it: the totals that are reported are XLA's own. The
remaining compiles go, one by one, to the way whose answer is least certain. After six compiles an
answer may still be between a size that fits and one that does not, or have no size above it that
was compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

import jax

from olla_xla.errors import InputError, LimitError
from olla_xla.problem.options import PlanOptions, parse_bytes, parse_positive
from olla_xla.tools import batch_ways
from olla_xla.tools.batch_bounds import Bounds, rounded
from olla_xla.tools.batch_ways import Batches, BatchWay, Make, Planned, Progress, Recomputed, Xla

_LEAST_COMPILES = 5
"""Two for predictions, and one for each of three ways."""


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch found to fit when the step is compiled in one way.

    Attributes:
      way: "xla" (XLA's order), "planned" (a plan's), "recomputed" or "spilled" (to host memory).
      batch: the largest that was found to fit; 0 where none was.
      bytes: XLA's assigned total for it, on each device; 0 where none fits.
      next_batch: the least that was found not to fit; 0 where none was.
      next_bytes: total of `next_batch`: XLA's assigned one, or if `next_is_predicted` the predicted
        one, and more than the memory.
      predicted_bytes: the predicted total of the batch.
      overhead: predicted time that is added, as a part of the step's.
      host_bytes: XLA's total in host memory, which `bytes` does not count.
      reason: why the answer is that of the previous way: a size cannot be compiled this way, or
        none larger was found to fit; or "".
      is_largest: whether `next_batch` is the next size, so that no size between the two is open.
      expected: the largest that fits by a line through the known totals.
    """

    way: str
    batch: int
    bytes: int
    next_batch: int
    next_bytes: int
    next_is_predicted: bool = False
    predicted_bytes: int = 0
    overhead: float = 0.0
    host_bytes: int = 0
    reason: str = ""
    is_largest: bool = True
    expected: int = 0


@dataclasses.dataclass(frozen=True)
class MaxBatch:
    """The largest batches that fit, as `max_batch` found them.

    Attributes:
      memory_bytes: a device's memory for the step.
      xla, planned, recomputed, spilled: the largest batch in each way to compile the step;
        `recomputed` is None where no recomputation was allowed, `spilled` where no host memory was.
      points: every predicted total, as (way, batch, bytes), in order; of "recomputed" the least.
      seconds: of the whole search.
      compiles: of the whole search, up to XLA's schedule or in full.
      refusals: compiles that XLA ended, since the size does not fit its device; beside `compiles`.
    """

    memory_bytes: int
    xla: LargestBatch
    planned: LargestBatch
    recomputed: LargestBatch | None
    points: tuple[tuple[str, int, int], ...]
    seconds: float
    compiles: int = 0
    refusals: int = 0
    spilled: LargestBatch | None = None


def max_batch(
    make: Make,
    memory: int | str,
    *,
    max_overhead: float = 0.05,
    multiple_of: int = 1,
    start: int = 8,
    compiles: int = 6,
    options: PlanOptions | None = None,
    progress: Progress | None = None,
    host_budget: int | str | None = None,
) -> MaxBatch:
    """Finds the largest batch that fits a memory, for XLA alone, planned, and with recomputation.

    XLA's own rematerialization is off: near the device's memory it would add time that is not
    predicted, to XLA's order and to ours. That of XLA:TPU stays on, as in each compile there: it
    acts after the plan, and near the memory all totals are less than predicted. Larger batches are
    assumed to need more memory. No order or choice of recomputation is proven to be the best, so a
    larger batch than was found may fit.

    Args:
      make: lowers the step for a batch size: `lambda n: jax.jit(step).lower(state, batch_of(n))`,
        with shapes as arguments. For a compile-only target the shapes are those that its `place`
        gives (`olla_xla.targets`). A batch that is sharded counts as a whole.
      memory: of each device for the step, in bytes or as in "30GiB".
      max_overhead: predicted time that recomputation may add, as a part of the step's; 0: none.
      multiple_of: batches are multiples of it, for example of the number of devices.
      start: the first size that is tried.
      compiles: how many at most, for all ways together. More of them narrow an answer that is
        between two sizes. As many that XLA refuses are not counted: it ends them early.
      options: limits and seed of each plan; their budget and overhead are ignored.
      progress: called with a line at each size.
      host_budget: as of `olla_xla.plan`, a further way. `make` then gives steps that can be traced,
        `lambda n: (jax.jit(step), (state, batch_of(n)))`. Two compiles more are made; one of this
        way compiles several plans.

    Raises:
      InputError: an argument is of the wrong type.
      LimitError: it is not positive, `compiles` is below 5, or no size is too large.
      OllaError: the backend does not show its schedule.
    """
    started, memory_bytes = time.monotonic(), parse_bytes(memory, "memory")
    for name, value in (("memory", memory_bytes), ("multiple_of", multiple_of), ("start", start)):
        if value <= 0:
            raise LimitError(f"{name}={value} must be positive")
    if compiles < _LEAST_COMPILES:
        raise LimitError(f"compiles={compiles} must be at least {_LEAST_COMPILES}")
    base = dataclasses.replace(options or PlanOptions(), memory_budget=None, max_overhead=None)
    again = dataclasses.replace(base, memory_budget=memory_bytes, max_overhead=max_overhead)
    work = Batches(make, memory_bytes, progress or (lambda line: None))
    ways: list[BatchWay] = [Xla(work), Planned(work, base)]
    if max_overhead > 0:
        ways.append(Recomputed(work, again))
    if host_budget is not None:
        if not isinstance(make(rounded(start, multiple_of)), tuple):
            raise InputError("with host_budget=, make must return (jax.jit(step), arguments)")
        least, most = dataclasses.replace(again, memory_budget=None), host_budget
        ways.append(batch_ways.WithHost(work, least, parse_positive(most, "host_budget")))
        compiles += 2
    with _no_rematerialization():
        answers = {a.way: a for a in _answers(ways, multiple_of, start, compiles)}
    return MaxBatch(
        memory_bytes,
        answers["xla"],
        answers["planned"],
        answers.get("recomputed"),
        tuple(work.points),
        spilled=answers.get("spilled"),
        seconds=time.monotonic() - started,
        compiles=work.compiles,
        refusals=work.refusals,
    )


@contextlib.contextmanager
def _no_rematerialization() -> Iterator[None]:
    """Context manager that turns XLA's own rematerialization off, in all of the process."""
    before = jax.config.jax_compiler_enable_remat_pass  # pyright: ignore
    jax.config.update("jax_compiler_enable_remat_pass", False)
    try:
        yield
    finally:
        jax.config.update("jax_compiler_enable_remat_pass", before)


def _answers(ways: Sequence[BatchWay], unit: int, start: int, most: int) -> list[LargestBatch]:
    """Searches for the largest batch in each way to compile; what fits in one fits in all later.

    Args:
      ways: in order. unit: sizes are multiples of it. start: to try first.
      most: compiles of all ways together.
    """
    work, bounds = ways[0].work, [Bounds(way, unit) for way in ways]
    bounds[0].schedule(start, most - len(bounds))
    off = 1.0
    for k, one in enumerate(bounds):
        kept = len(bounds) - k  # a compile for this way and each that follows
        one.predict(off)
        one.compile(one.next(_floors(bounds)[k], is_last=False))
        if not k:
            off = one.off()
            if (
                one.doubt(0) == math.inf and work.compiles + kept <= most
            ):  # a size that fits here fits in all ways
                one.compile(one.next(0, is_last=work.compiles + kept == most))
    while (spent := work.compiles + max(work.refusals - most, 0)) < most:
        floors = _floors(bounds)
        doubts = [one.doubt(floor) for one, floor in zip(bounds, floors, strict=True)]
        k = doubts.index(max(doubts))
        if not doubts[k]:
            break
        bounds[k].compile(bounds[k].next(floors[k], is_last=spent + 1 >= most))
    answers: list[LargestBatch] = []
    for one in bounds:
        answers.append(_answer(one, answers[-1] if answers else None))
    return answers


def _floors(bounds: Sequence[Bounds]) -> list[int]:
    """Returns for each way to compile the largest size found to fit in an earlier way, or 0."""
    return [max((one.low for one in bounds[:k]), default=0) for k in range(len(bounds))]


def _answer(bounds: Bounds, before: LargestBatch | None) -> LargestBatch:
    """Returns the largest batch in one way to compile, from a search that is over.
    If that of the way `before` is larger, or this way cannot be compiled, returns that one.
    """
    way, low, high = bounds.way, bounds.low, bounds.high
    floor = before.batch if before else 0
    if before and bounds.refused:
        return dataclasses.replace(before, way=way.name, reason=bounds.refused)
    if before and 0 < high <= floor:
        why = f"no plan was found with which a batch of {high:,} fits"
        return dataclasses.replace(before, way=way.name, reason=why)
    expected = bounds.expected(floor)
    answer = LargestBatch(
        way=way.name,
        batch=low,
        bytes=way.assigned(low) if low else 0,
        next_batch=high,
        next_bytes=way.assigned(high) if high else 0,
        next_is_predicted=high > 0 and not way.is_compiled(high),
        predicted_bytes=way.predicted(low) if low else 0,
        overhead=way.overhead(low) if low else 0.0,
        host_bytes=way.host_bytes.get(low, 0),
        is_largest=high > 0 and high == max(low, floor) + bounds.unit,
        expected=expected,
    )
    if before and floor > low:
        why = f"a batch of {high:,} does not fit, and " if high else ""
        same = ("batch", "bytes", "predicted_bytes", "overhead", "host_bytes")
        taken = {name: getattr(before, name) for name in same}
        reason = f"{why}no batch above {floor:,} was found that fits"
        answer = dataclasses.replace(answer, **taken, reason=reason)
    return answer
