"""Offsets by the paper's program with given lifetimes, from a greedy start.

Items that are live all the time are placed at the bottom: in any packing they can be moved there if
the items below them move up. The remaining items fall into independent parts, each with a program
of its own. For a large part, programs of a few items each are solved first (`windows`). Then the
part's program is solved under the pyramid of section 4.5, which leaves little to decide and proves
nothing unless the bound is met, and then without it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from benchmarks.place_ilp.locations import LocationIlp
from benchmarks.place_ilp.pyramid import pyramid
from benchmarks.place_ilp.rectangles import Rectangle, RectangleModel
from benchmarks.place_ilp.windows import Window, narrowed
from benchmarks.special_solver import solve_special
from olla_xla.errors import InputError, SolverError
from olla_xla.place.dead_space import least_height
from olla_xla.place.exact.model import MAX_PAIRS, model_of, overlapping_pairs
from olla_xla.place.exact.model import Model as Neighbours
from olla_xla.place.items import Items, independent, subset
from olla_xla.place.programs import Units, in_order_of_twins
from olla_xla.place.rules import first_fit, greedy_orders
from olla_xla.solvers.linear import SolverLimits, SolverResult, Status, Watch
from olla_xla.solvers.solve import BACKENDS, solve, whole_units

__all__ = ["FORMS", "Located", "Programs", "located"]

FORMS = {"big-m": BACKENDS, "no-overlap": ("cpsat",)}
"""Name of a form -> the backends that take it."""

_MOST_PAIRS = {"big-m": 400_000, "no-overlap": 4_000_000}
"""Pairs that are live together in the largest program that is built, by form."""

_RECTANGLES = {"cpsat": "benchmarks.place_ilp.cpsat_rectangles"}
"""What solves a model of rectangles -> its module."""

_PYRAMID = 0.3
"""Part of the time for what is left under a pyramid."""

_FEW = 150
"""Items up to which a part is one program only."""

_WINDOWS = 0.6
"""Part of the time for programs of a few items of a larger one; all of it where the whole is too
large to build."""

_WINDOW_SECONDS = 2.0
"""For one of them."""


@dataclasses.dataclass(frozen=True)
class Programs:
    """How places are found by integer programs.

    Attributes:
      backend: the solver. form: from FORMS; None: no-overlap for CP-SAT, big-m for the others.
      pruned: one binary a pair, and none where pins or twins decide it.
      pyramid: of big-m, try the preplacement of section 4.5 first.
      start: begin at the best packing of the greedy rules, repaired; else programs of a few begin
        at the one by size, and the program of all is told of none.
      bound: tell the solver the largest live sum.
      split: put what is live all the time at the bottom, and take apart what then falls apart.
      windows: of a large part, solve programs of a few items each before that of all.
      watch: told of heights and bounds, in bytes above what stands below a part.

    Raises:
      InputError: no such backend or form, or one that the other cannot take.
    """

    backend: str = "highs"
    form: str | None = None
    pruned: bool = True
    pyramid: bool = True
    start: bool = True
    bound: bool = True
    split: bool = True
    windows: bool = True
    watch: Watch | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError(f"backend={self.backend!r}: choose one of {', '.join(BACKENDS)}")
        if self.form is not None and self.backend not in FORMS.get(self.form, ()):
            raise InputError(f"form={self.form!r} does not go with backend={self.backend!r}")

    @property
    def name(self) -> str:
        """The form that is used."""
        return self.form or ("no-overlap" if self.backend == "cpsat" else "big-m")


@dataclasses.dataclass(frozen=True, eq=False)
class Located:
    """The result of a part's programs.

    Attributes:
      offsets: [items] bytes; never higher than the packing that was given.
      bound: no packing is lower, bytes.
      status: OPTIMAL, FEASIBLE at a limit, or UNKNOWN: nothing within the height that was given.
      variables, rows: of all programs that were built.
      message: what the solver said last, or why it was not asked.
      by: "windows" or "program", what lowered the packing last; "" where nothing did.
    """

    offsets: np.ndarray
    bound: int
    status: Status
    variables: int = 0
    rows: int = 0
    message: str = ""
    by: str = ""


def located(
    part: Items,
    offsets: np.ndarray,
    *,
    bound: int,
    target_height: int,
    limits: SolverLimits,
    programs: Programs,
) -> Located:
    """Lowers a packing of an independent part until it is `target_height` bytes high or the lowest
    there is.

    Args:
      part: the items. offsets: some packing, bytes.
      bound: no packing is lower. target_height: no lower one is of use, bytes.
      limits: for all programs together. programs: how.

    Raises:
      SolverError: the solver failed, or is not licensed for a program of this size.
    """
    return _Run(limits, programs).lowered(part, offsets, bound, target_height)


class _Run:
    """The programs of one part, and its parts'."""

    def __init__(self, limits: SolverLimits, programs: Programs) -> None:
        self._limits, self._programs = limits, programs
        self._deadline = time.monotonic() + limits.time_limit
        self._base = 0  # bytes of what stands below the part at hand

    def lowered(self, part: Items, offsets: np.ndarray, bound: int, target_height: int) -> Located:
        target_height = max(target_height, bound)
        if _height(part, offsets) <= target_height and self._programs.bound:
            return _at(part, offsets, bound, "a greedy rule meets the bound")
        if not self._programs.split:
            return self._solved(part, offsets, bound, target_height)
        below, rest = _standing(part)
        smaller = independent(rest)
        if len(smaller) == 1 and not len(below):
            return self._solved(part, offsets, bound, target_height)
        base = int(part.size[below].sum())
        self._base += base
        result = np.zeros(len(part), np.int64)
        result[below] = np.cumsum(part.size[below]) - part.size[below]
        given = offsets - _under(part, below, offsets)
        variables = rows = 0
        message, by, least = "", "", bound - base
        for some, low in sorted(((s, least_height(s)) for s in smaller), key=lambda pair: -pair[1]):
            height = max((int(_height(part, result)) - base, target_height - base))
            found = self.lowered(some, given[_numbers(part, some)], low, height)
            result[_numbers(part, some)] = found.offsets + base
            variables, rows = variables + found.variables, rows + found.rows
            message, by = found.message or message, found.by or by
            least = max(least, found.bound)
        self._base -= base
        done = _at(part, result, least + base, message)
        return dataclasses.replace(done, variables=variables, rows=rows, by=by)

    def _solved(self, part: Items, offsets: np.ndarray, bound: int, target_height: int) -> Located:
        """Programs of a few items each, then of all, under a pyramid first."""
        pairs, most = overlapping_pairs(part) // 2, _MOST_PAIRS[self._programs.name]
        small = pairs <= most
        if not small and pairs > MAX_PAIRS:
            why = f"too large: {pairs:,} pairs are live together, {MAX_PAIRS:,} are taken at most"
            return _at(part, offsets, bound, why)
        near = model_of(part)
        free = self._programs.windows and not (part.fixed >= 0).any()
        if free and (len(part) > _FEW or not small):
            found = self._windows(
                part, near, offsets, bound, target_height, _WINDOWS if small else 1.0
            )
            met = found.status is Status.OPTIMAL or _height(part, found.offsets) <= target_height
            if not small or met or self._left() <= 0:
                return found
            rest = self._whole(part, near, found.offsets, bound, target_height)
            return dataclasses.replace(
                rest,
                variables=found.variables + rest.variables,
                rows=found.rows + rest.rows,
                by=rest.by or found.by,
            )
        if not small:
            why = f"too large: {pairs:,} pairs are live together, {most:,} are taken at most"
            return _at(part, offsets, bound, why)
        return self._whole(part, near, offsets, bound, target_height)

    def _windows(
        self,
        part: Items,
        near: Neighbours,
        offsets: np.ndarray,
        bound: int,
        target_height: int,
        portion: float,
    ) -> Located:
        """Programs of a few items each, in a portion of the time."""
        units, size = Units(part, offsets, {}), np.zeros(2, np.int64)
        message = "no program was solved in time"

        def solved(window: Window, seconds: float) -> tuple[np.ndarray | None, bool]:
            nonlocal message
            limits = dataclasses.replace(self._limits, time_limit=seconds, watch=None)
            result, at, built = self._window(window, limits)
            size[:] += built
            message = f"{result.message}, in programs of {len(window.part)} items"
            return at, result.status is Status.OPTIMAL

        found = narrowed(
            part,
            near,
            units,
            offsets,
            target_height,
            solved,
            deadline=time.monotonic() + portion * self._left(),
            seconds=_WINDOW_SECONDS,
            seed=self._limits.seed,
        )
        lower = _height(part, found) < _height(part, offsets)
        if lower and self._limits.watch is not None:
            self._limits.watch(self._base + _height(part, found), self._base + bound)
        done = _at(part, found, bound, message)
        return dataclasses.replace(
            done, variables=int(size[0]), rows=int(size[1]), by="windows" if lower else ""
        )

    def _window(
        self, window: Window, limits: SolverLimits
    ) -> tuple[SolverResult, np.ndarray | None, tuple[int, int]]:
        """Solves one window: (the solver's result, offsets in bytes or None, (columns, rows))."""
        part, near, units = window.part, window.near, window.units
        bytes_most, name = window.most * units.unit, self._programs.name
        if name == "no-overlap":
            model = _rectangles(part, near, units, 0, bytes_most, None)
            model = dataclasses.replace(
                model,
                low=tuple(ranges[0][0] for ranges in window.gaps),
                high=tuple(ranges[-1][1] for ranges in window.gaps),
                gaps=window.gaps,
                target_height=window.target_height,
            )
            result, size = (
                solve_special(_RECTANGLES, model, limits, self._programs.backend),
                (len(part), 0),
            )
            at = result.x
        else:
            built = LocationIlp(
                part,
                near,
                units,
                bound=0,
                most=bytes_most,
                gaps=window.gaps,
                target_height=window.target_height,
            )
            result = solve(built.model, limits, [self._programs.backend])
            size = built.model.variables, built.model.rows
            at = None if result.x is None else built.offsets(result.x) // units.unit
        if result.status is Status.ERROR:
            raise SolverError(result.failures[0] if result.failures else result.message)
        if at is None:
            return result, None, size
        return result, np.rint(at).astype(np.int64) * units.unit, size

    def _whole(
        self, part: Items, near: Neighbours, offsets: np.ndarray, bound: int, target_height: int
    ) -> Located:
        """One program, or two where a pyramid is tried first."""
        first: Located | None = None
        pinned_first = self._programs.pyramid and self._programs.name == "big-m"
        pins = pyramid(part) if pinned_first else {}
        if pins:
            fixed = np.full(len(part), -1, np.int64)
            fixed[list(pins)] = list(pins.values())
            pinned = dataclasses.replace(part, fixed=fixed)
            begin = first_fit(pinned, greedy_orders(pinned)["greedy_size"])
            seconds = _PYRAMID * self._left()
            first = self._program(pinned, near, offsets, begin, bound, target_height, seconds, pins)
            # Its bound holds under the pyramid only.
            offsets, done = first.offsets, _at(part, first.offsets, bound, first.message)
            first = dataclasses.replace(first, bound=bound, status=done.status)
            if _height(part, offsets) <= target_height or self._left() <= 0:
                return first
        found = self._program(part, near, offsets, offsets, bound, target_height, self._left(), {})
        if first is None:
            return found
        return dataclasses.replace(
            found,
            variables=found.variables + first.variables,
            rows=found.rows + first.rows,
            by=found.by or first.by,
        )

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _program(
        self,
        part: Items,
        near: Neighbours,
        best: np.ndarray,
        begin: np.ndarray,
        bound: int,
        target_height: int,
        seconds: float,
        pins: Mapping[int, int],
    ) -> Located:
        """One program as solved; the best packing known is only replaced by a lower one."""
        until = time.monotonic() + seconds  # building counts
        programs, twins = self._programs, np.full(len(part), -1)
        if pins or not programs.pruned:
            near = near._replace(twin=twins)  # pins tell twins apart
        begin = in_order_of_twins(near, begin)
        units = Units(part, begin, pins)
        most = max(_height(part, begin), _height(part, best))
        least = target_height if programs.bound else 0
        watch = _in_bytes(self._limits, units, self._base)
        limits = dataclasses.replace(self._limits, watch=watch, apart=True)
        if programs.name == "no-overlap":
            model = _rectangles(part, near, units, least, most, begin if programs.start else None)
            limits = dataclasses.replace(limits, time_limit=_seconds_to(until))
            result, size = (
                solve_special(_RECTANGLES, model, limits, programs.backend),
                (len(part) + 1, 0),
            )
            at = result.x
        else:
            built = LocationIlp(part, near, units, bound=least, most=most, pruned=programs.pruned)
            built.model.start = built.start(begin) if programs.start else None
            limits = dataclasses.replace(limits, time_limit=_seconds_to(until))
            result = solve(built.model, limits, [programs.backend])
            size = built.model.variables, built.model.rows
            at = None if result.x is None else built.offsets(result.x) // units.unit
        if result.status is Status.ERROR:
            raise SolverError(result.failures[0] if result.failures else result.message)
        return self._judged(part, best, bound, target_height, result, at, units.unit, size)

    def _judged(
        self,
        part: Items,
        best: np.ndarray,
        bound: int,
        target_height: int,
        result: SolverResult,
        at: np.ndarray | None,
        unit: int,
        size: tuple[int, int],
    ) -> Located:
        """A solver's result in units as offsets and bound in bytes."""
        offsets = best
        if at is not None:
            found = np.rint(at).astype(np.int64) * unit
            offsets = min((best, found), key=lambda o: _height(part, o))
        # A solver that was told the target height proves no more than that nothing lower is of use.
        proven = whole_units(result.bound) * unit
        if proven > target_height or not self._programs.bound:
            bound = max(bound, min(proven, _height(part, offsets)))
        done = _at(part, offsets, bound, result.message)
        by = "program" if _height(part, offsets) < _height(part, best) else ""
        return dataclasses.replace(done, variables=size[0], rows=size[1], by=by)


def _seconds_to(until: float) -> float:
    """Seconds until a time of `time.monotonic()`; at least a short positive time."""
    return max(until - time.monotonic(), 0.01)


def _height(part: Items, offsets: np.ndarray) -> int:
    return int(np.max(offsets + part.need, initial=0))


def _at(part: Items, offsets: np.ndarray, bound: int, message: str) -> Located:
    status = Status.OPTIMAL if _height(part, offsets) <= bound else Status.FEASIBLE
    return Located(offsets, bound, status, message=message)


def _standing(part: Items) -> tuple[np.ndarray, Items]:
    """Items that are live in every section, which may lie at the bottom; and the others."""
    whole = np.zeros(len(part), np.bool_)
    if not (part.fixed >= 0).any() and (part.align == part.grain).all():
        single = np.diff(part.part_ptr) == 1
        first, last = part.part_first[part.part_ptr[:-1]], part.part_last[part.part_ptr[1:] - 1]
        whole = single & (first == 0) & (last == part.count - 1) & (part.need == part.size)
    if not whole.any() or whole.all():
        return np.zeros(0, np.int64), part
    numbered = dataclasses.replace(part, ids=np.arange(len(part)))
    rest = subset(numbered, np.flatnonzero(~whole))
    return np.flatnonzero(whole), dataclasses.replace(rest, ids=part.ids[rest.ids])


def _numbers(part: Items, some: Items) -> np.ndarray:
    """The items of a part that are those of some of it, by their common ids."""
    order = np.argsort(part.ids, kind="stable")
    return order[np.searchsorted(part.ids[order], some.ids)]


def _under(part: Items, below: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[items] the bytes of the standing items that lie under each."""
    at = np.sort(offsets[below])
    size = part.size[below][np.argsort(offsets[below], kind="stable")]
    total = np.concatenate([[0], np.cumsum(size)])
    return total[np.searchsorted(at, offsets, side="left")]


def _in_bytes(limits: SolverLimits, units: Units, base: int) -> Watch | None:
    """A watch that is told units above a base, for one that is told bytes."""
    watch = limits.watch
    if watch is None:
        return None

    def on_progress(value: float | None, bound: float) -> None:
        best = None if value is None else base + value * units.unit
        watch(best, base + whole_units(bound) * units.unit)

    return on_progress


def _rectangles(
    part: Items, near: Neighbours, units: Units, bound: int, most: int, begin: np.ndarray | None
) -> RectangleModel:
    """The same for a solver that knows rectangles."""
    low = np.zeros(len(part), np.int64)
    high = np.maximum((most // units.unit - units.need) // units.step * units.step, 0)
    for i, at in units.pins.items():
        low[i] = high[i] = at // units.unit
    rows = zip(
        part.owner().tolist(),
        part.part_first.tolist(),
        (part.part_last + 1).tolist(),
        (part.part_height // units.unit).tolist(),
        strict=True,
    )
    alike = np.flatnonzero(near.twin >= 0).tolist()
    return RectangleModel(
        step=tuple(units.step.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        need=tuple(units.need.tolist()),
        rectangles=tuple(Rectangle(*row) for row in rows),
        ordered=tuple((int(near.twin[i]), i) for i in alike),
        bound=min(units.up(bound), most // units.unit),
        most=most // units.unit,
        start=None if begin is None else tuple((begin // units.unit).tolist()),
    )
