"""Pictures of packings: time to the right, offsets upwards; a block shows when it was placed.

Three things are drawn. First, the fragmentation of an allocator that places each block when it is
requested, as in figure 4 of the OLLA paper. Second, a packing in which the pyramid of section 4.5
of that paper is placed first. Third, the steps of best fit, as in figure 1 of Sekiyama et al., with
blocks of our own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.figures.files import new_canvas, save_png, write_table
from benchmarks.place_ilp.pyramid import pyramid
from olla_xla.place.items import items_of
from olla_xla.place.placer import place
from olla_xla.place.problem import PlacementProblem

EXAMPLE = PlacementProblem.of(
    [0, 1, 2, 3, 4, 5], [9, 4, 7, 6, 10, 8], [2, 3, 2, 1, 2, 3], names=list("abcdef")
)
"""Six blocks on which best fit is shown."""

_PLACEMENTS = 20_000
"""Of the search around a pyramid: counted, so that no machine is too slow for the same picture."""


@dataclasses.dataclass(frozen=True)
class Way:
    """A packing, and in which order its blocks were placed.

    Attributes:
      name: of the method. offsets: by block, bytes.
      steps: by block, its number in the order of placing, from 1 on; 0 for blocks that were placed
        together at the end.
      first: blocks that are highlighted: those of the pyramid.
    """

    name: str
    offsets: np.ndarray
    steps: np.ndarray
    first: frozenset[int] = frozenset()


def ways(problem: PlacementProblem) -> list[Way]:
    """Packings in the order of requests, with the pyramid first, and by best fit; all checked."""
    found = [_as_asked(problem), _pyramid_first(problem), _best_fit(problem)]
    for way in found:
        problem.check(way.offsets)
    return found


def _as_asked(problem: PlacementProblem) -> Way:
    """First fit in the order of the requests, without knowledge of later ones."""
    offsets = np.zeros(len(problem), np.int64)
    steps = np.zeros(len(problem), np.int64)
    for step, b in enumerate(np.argsort(problem.lower, kind="stable").tolist(), 1):
        earlier = [
            k for k in range(len(problem)) if steps[k] and problem.upper[k] > problem.lower[b]
        ]
        at = 0
        for k in sorted(earlier, key=lambda k: offsets[k]):
            if offsets[k] >= at + problem.size[b]:
                break
            at = max(at, int(offsets[k] + problem.size[k]))
        offsets[b], steps[b] = at, step
    return Way("as asked for", offsets, steps)


def _pyramid_first(problem: PlacementProblem) -> Way:
    """The blocks of the pyramid, stacked on each other, then the other blocks around them."""
    items, item = items_of(problem, 0)
    placed = pyramid(items)
    order = {i: k for k, i in enumerate(placed, 1)}
    steps = np.array([order.get(int(i), 0) for i in item], np.int64)
    fixed = np.array([placed.get(int(i), -1) for i in item], np.int64)
    packing = place(
        dataclasses.replace(problem, fixed=fixed), time_limit=math.inf, node_limit=_PLACEMENTS
    )
    assert packing.offsets is not None
    first = frozenset(np.flatnonzero(steps).tolist())
    return Way("the pyramid first", packing.offsets, steps, first)


def _best_fit(problem: PlacementProblem) -> Way:
    *_, last = best_fit_steps(problem)
    steps = np.zeros(len(problem), np.int64)
    steps[list(last.placed)] = np.arange(1, len(problem) + 1)
    return Way("best fit", last.offsets, steps)


@dataclasses.dataclass(frozen=True)
class Step:
    """A state of best fit.

    Attributes:
      placed: blocks, in the order they were placed. offsets: of those, bytes; else 0.
      lines: (start, stop, level): during steps [start, stop) all bytes from `level` on are free.
      action: the last action, in words.
    """

    placed: tuple[int, ...]
    offsets: np.ndarray
    lines: tuple[tuple[int, int, int], ...]
    action: str


def best_fit_steps(problem: PlacementProblem) -> Iterator[Step]:
    """Sekiyama et al.'s rule, one step after the other; `place.rules` has the quick one.

    The lowest line takes the block of longest life that fits in it, or rises to its lower
    neighbour.
    """
    lines = [(int(problem.lower.min()), int(problem.upper.max()), 0)]
    life = problem.upper - problem.lower
    left = sorted(range(len(problem)), key=lambda b: (-life[b], -problem.size[b], b))
    offsets = np.zeros(len(problem), np.int64)
    placed: list[int] = []
    while left:
        at = min(range(len(lines)), key=lambda k: (lines[k][2], k))
        start, stop, level = lines[at]
        fits = [b for b in left if start <= problem.lower[b] and problem.upper[b] <= stop]
        if fits:
            b = fits[0]
            left.remove(b)
            placed.append(b)
            offsets[b] = level
            first, last = int(problem.lower[b]), int(problem.upper[b])
            parts = [(start, first, level), (first, last, level + int(problem.size[b]))]
            lines[at : at + 1] = [p for p in [*parts, (last, stop, level)] if p[0] < p[1]]
            action = f"{problem.names[b]} placed"
        else:
            near = [lines[k][2] for k in (at - 1, at + 1) if 0 <= k < len(lines)]
            lines[at] = start, stop, min(near)
            action = f"line at {level} lifted"
        lines = _joined(lines)
        yield Step(tuple(placed), offsets.copy(), tuple(lines), action)


def _joined(lines: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The lines, with neighbours of the same level joined."""
    found = [lines[0]]
    for start, stop, level in lines[1:]:
        if found[-1][2] == level:
            found[-1] = found[-1][0], stop, level
        else:
            found.append((start, stop, level))
    return found


def draw_ways(problem: PlacementProblem, found: Sequence[Way], folder: Path) -> None:
    """Writes packing.csv and packing.png."""
    write_table(
        folder / "packing.csv",
        ["way", "block", "lower", "upper", "size", "offset", "step"],
        (
            (w.name, problem.names[b], *(int(a[b]) for a in (
                problem.lower, problem.upper, problem.size, w.offsets, w.steps)))
            for w in found
            for b in range(len(problem))
        ),
    )  # fmt: skip
    live = _largest_sum(problem)
    height = max(int((w.offsets + problem.size).max()) for w in found)
    canvas = new_canvas(4.5 * len(found), 4.2)
    for axes, way in zip(canvas.subplots(1, len(found), sharey=True), found, strict=True):
        colors = {b: "#f4a582" for b in way.first}
        _blocks(axes, problem, range(len(problem)), way.offsets, way.steps, colors)
        top = int((way.offsets + problem.size).max())
        axes.axhline(live, color="#c0392b", linestyle="--", linewidth=1)
        axes.set_title(f"{way.name}: {100 * (top / live - 1):.1f} % above the live sum", fontsize=9)
        axes.set_xlim(int(problem.lower.min()), int(problem.upper.max()))
        axes.set_ylim(0, 1.04 * height)
        axes.set_xlabel("request or release", fontsize=8)
    canvas.axes[0].set_ylabel("offset, bytes; dashed: the largest live sum", fontsize=8)
    save_png(canvas, folder / "packing.png")


def draw_steps(problem: PlacementProblem, found: Sequence[Step], folder: Path) -> None:
    """Writes best_fit_steps.png: a panel for each step, free space's lowest offsets as lines."""
    columns = 4
    rows = -(-len(found) // columns)
    canvas = new_canvas(3.0 * columns, 2.3 * rows)
    panels = canvas.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat
    height = max(level for step in found for *_, level in step.lines)
    for number, axes in enumerate(panels):
        if number >= len(found):
            axes.set_axis_off()
            continue
        step = found[number]
        steps = np.array([step.placed.index(b) + 1 if b in step.placed else 0
                          for b in range(len(problem))])  # fmt: skip
        _blocks(axes, problem, step.placed, step.offsets, steps, {})
        for start, stop, level in step.lines:
            axes.plot([start, stop], [level, level], color="#c0392b", linewidth=1.5)
        axes.set_title(f"{number + 1}. {step.action}", fontsize=8)
        axes.set_ylim(-0.3, height + 0.5)
    save_png(canvas, folder / "best_fit_steps.png")


def _blocks(
    axes: Any,
    problem: PlacementProblem,
    chosen: Sequence[int],
    offsets: np.ndarray,
    steps: np.ndarray,
    colors: dict[int, str],
) -> None:
    """Rectangles; a number in each that is large enough to hold one."""
    width = int(problem.upper.max() - problem.lower.min())
    height = int(problem.size.max())
    for b in chosen:
        low, high = int(problem.lower[b]), int(problem.upper[b])
        axes.bar(
            low, int(problem.size[b]), high - low, int(offsets[b]), align="edge",
            color=colors.get(b, "#9ec5e8"), edgecolor="#57606a", linewidth=0.5,
        )  # fmt: skip
        roomy = (high - low) > 0.03 * width and problem.size[b] > 0.08 * height
        if steps[b] and roomy:
            middle = (low + high) / 2, int(offsets[b]) + int(problem.size[b]) / 2
            axes.text(*middle, str(int(steps[b])), ha="center", va="center", fontsize=7)


def _largest_sum(problem: PlacementProblem) -> int:
    """The largest live sum in bytes."""
    times = np.unique(problem.lower)
    live = (problem.lower <= times[:, None]) & (problem.upper > times[:, None])
    return int((live * problem.size).sum(axis=1).max())
