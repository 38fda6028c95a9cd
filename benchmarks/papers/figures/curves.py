"""Quality of orders and places over time, and best fit against the number of blocks.

Each point on a curve is a separate run with its own time limit, timed as a whole: the result that a
user with this limit gets. Only the public entry points of the search are used.
"""

from __future__ import annotations

import csv
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.arenas import arenas
from benchmarks.papers.eager.estimate import ModelEstimates
from benchmarks.papers.eager.unfused import load_machine_code
from benchmarks.papers.figures.files import new_canvas, save_png, write_table
from olla_xla import schedule
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.forced_live import forced_live_bound
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.problem.graph import TensorGraph
from olla_xla.problem.plan_parts import StopReason
from olla_xla.schedule.search import phases

Row = Mapping[str, str]

_ORDER_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclasses.dataclass(frozen=True)
class Point:
    """The best known after `seconds`: `bytes`, found by `source`."""

    seconds: float
    bytes: int
    source: str


@dataclasses.dataclass(frozen=True)
class Curve:
    """Progress on one case.

    Attributes:
      name: of the case. points: by time, each lower than the one before but for the last.
      bound_bytes: what no order, or no packing, can be below.
    """

    name: str
    points: tuple[Point, ...]
    bound_bytes: int


def hardest(rows: Sequence[Row], column: str, count: int) -> list[Row]:
    """The rows of mode eager with the largest values in a column, largest first."""
    mine = [row for row in rows if row["mode"] == "eager"]
    return sorted(mine, key=lambda row: -float(row[column]))[:count]


def row_of(rows: Sequence[Row], name: str) -> Row:
    """The row of mode eager that is named model/batch_size. Raises InputError if there is none."""
    for row in rows:
        if row["mode"] == "eager" and f"{row['model']}/{row['batch_size']}" == name:
            return row
    raise InputError(f"the sweeps have no unfused row {name!r}, as model/batch_size")


def _falling(points: Sequence[Point]) -> tuple[Point, ...]:
    """Those that improve on all before them in time, and the last as it stood."""
    kept: list[Point] = []
    ordered = sorted(points, key=lambda p: (p.seconds, p.bytes))
    for point in ordered:
        if not kept or point.bytes < kept[-1].bytes:
            kept.append(point)
    if kept and ordered[-1].seconds > kept[-1].seconds:
        kept.append(dataclasses.replace(kept[-1], seconds=ordered[-1].seconds))
    return tuple(kept)


def order_curve(
    name: str, graph: TensorGraph, *, seed: int = 0, limits: Sequence[float] = _ORDER_SECONDS
) -> tuple[Curve, np.ndarray]:
    """Orders of a graph: program order, the best rule, and the search under growing limits.

    Args:
      name: of the case. graph: a TensorGraph in program order. seed: of the search.
      limits: seconds of search; the curve ends where a longer limit is not used up.

    Returns:
      (the curve, the order of the last run).
    """
    arrays = GraphArrays.of(graph)
    load_machine_code(arrays)
    program = np.arange(arrays.n)
    points = [Point(0.0, peak_bytes(arrays, program), "program order")]
    started = time.monotonic()
    starts = {"program": program, **schedule.candidates(arrays)}
    rule = min(starts, key=lambda s: peak_bytes(arrays, starts[s]))
    bound = forced_live_bound(arrays)[0]
    before = time.monotonic() - started
    points.append(Point(before, peak_bytes(arrays, starts[rule]), rule))
    order = starts[rule]
    for limit in limits:
        started = time.monotonic()
        found = phases.search(arrays, starts, time_limit=limit, seed=seed, bound_bytes=bound)
        seconds = before + time.monotonic() - started
        points.append(Point(seconds, found.peak_bytes, f"search, {limit:g} s"))
        order, bound = found.order, max(bound, found.bound_bytes)
        if found.stopped_by is not StopReason.TIME_LIMIT:
            break
    return Curve(name, _falling(points), bound), order


def place_curve(
    name: str, graph: TensorGraph, order: Sequence[int], seconds: float = 120.0
) -> Curve:
    """Places under an order: each heuristic, then the search under growing limits."""
    found = arenas(graph, order, seconds)
    points = [Point(p.seconds, p.bytes, p.source) for p in found]
    return Curve(name, _falling(points), found[-1].live_bytes)


@dataclasses.dataclass(frozen=True)
class BestFit:
    """Best fit alone on one case: blocks, seconds, share above the largest live sum, mode."""

    name: str
    blocks: int
    seconds: float
    above: float
    mode: str = "training"

    @property
    def optimal(self) -> bool:
        """Proven: it meets the bound."""
        return self.above <= 0


def best_fits(rows: Sequence[Row]) -> list[BestFit]:
    """One for each row of mode eager that has it, by the number of blocks."""
    found = [
        BestFit(
            f"{row['model']}, batch {row['batch_size']}",
            int(row["blocks"]),
            float(row["best_fit_seconds"]),
            int(row["best_fit_bytes"]) / int(row["load_bytes"]) - 1,
        )
        for row in rows
        if row["mode"] == "eager" and row["blocks"]
    ]
    return sorted(found, key=lambda f: (f.blocks, f.name))


def estimated_best_fits(rows: Sequence[ModelEstimates]) -> list[BestFit]:
    """One for each row of `benchmarks estimate --models` whose best fit was timed, by blocks."""
    found = []
    for row in rows:
        for planner in row.found.rows:
            if planner.blocks and planner.seconds and planner.live_bytes and planner.total_bytes:
                above = planner.total_bytes / planner.live_bytes - 1
                name = f"{row.model}, batch {row.batch_size}, {row.mode}"
                found.append(BestFit(name, planner.blocks, planner.seconds, above, row.mode))
    return sorted(found, key=lambda f: (f.blocks, f.name))


def write_curves_csv(curves: Sequence[Curve], path: Path) -> None:
    """Writes a line for each point."""
    write_table(
        path,
        ["name", "seconds", "bytes", "bound_bytes", "source"],
        (
            (curve.name, f"{p.seconds:.3f}", p.bytes, curve.bound_bytes, p.source)
            for curve in curves
            for p in curve.points
        ),
    )


def read_curves(path: str) -> list[Curve]:
    """The curves that `write_curves_csv` wrote. Raises InputError if the file is none."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        points: dict[tuple[str, int], list[Point]] = {}
        for row in rows:
            point = Point(float(row["seconds"]), int(row["bytes"]), row["source"])
            points.setdefault((row["name"], int(row["bound_bytes"])), []).append(point)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"cannot read {path}: {reason}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a progress file that benchmarks figures --hardest wrote"
        ) from error
    return [Curve(name, tuple(mine), bound) for (name, bound), mine in points.items()]


def write_best_fit_csv(found: Sequence[BestFit], path: Path) -> None:
    """Writes a line for each case."""
    write_table(
        path,
        ["name", "blocks", "seconds", "above the bound (%)", "proven optimal"],
        (
            (
                f.name,
                f.blocks,
                f"{f.seconds:.6f}",
                f"{100 * f.above:.3f}",
                "yes" if f.optimal else "no",
            )
            for f in found
        ),
    )


def write_curves_png(title: str, curves: Sequence[Curve], path: Path) -> None:
    """Draws steps over time, each as a percentage above its bound."""

    def draw(axes: Any) -> None:
        for curve in curves:
            base = max(curve.bound_bytes, 1)
            values = [100 * (p.bytes / base - 1) for p in curve.points]
            seconds = [max(p.seconds, 1e-3) for p in curve.points]
            axes.step(seconds, values, where="post", marker=".", label=curve.name)
        axes.set_xscale("log")
        axes.set_xlabel("s")
        axes.set_ylabel("above the bound, %")

    _draw(title, draw, path)


def write_best_fit_png(title: str, found: Sequence[BestFit], path: Path) -> None:
    """Draws best fit's time against the number of blocks, by mode and whether it was proven.

    Raises InputError if matplotlib is not installed.
    """
    kinds = sorted({(f.mode, not f.optimal) for f in found})
    several = len({f.mode for f in found}) > 1

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        for mode, above in kinds:
            mine = [f for f in found if (f.mode, not f.optimal) == (mode, above)]
            label = "not proven" if above else "proven optimal"
            label = f"{mode}, {label}" if several else label
            axes.scatter([f.blocks for f in mine], [f.seconds for f in mine], 12, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("blocks")
        axes.set_ylabel("s")

    _draw(title, draw, path)


def _draw(title: str, draw: Callable[[Any], None], path: Path) -> None:
    canvas = new_canvas(6.5, 4)
    axes = canvas.subplots()
    draw(axes)
    axes.set_title(title, fontsize=9)
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=7)
    save_png(canvas, path)
