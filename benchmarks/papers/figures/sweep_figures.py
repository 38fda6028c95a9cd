"""The figures of the OLLA paper (Steiner et al. 2022, section 5) from the rows of a sweep.

Each figure is a CSV, and a PNG with a bar for each model and batch size, the means of each batch
size as lines, and beside them what the paper prints.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.eager import unfused
from benchmarks.papers.eager.unfused import LOOP_STEPS
from benchmarks.papers.figures.files import new_canvas, save_png, write_table
from benchmarks.papers.figures.published import (
    FRAGMENTATION,
    MARK_STYLES,
    REORDERING,
    TOTAL_REDUCTION,
    Mark,
)
from olla_xla.errors import InputError
from olla_xla.tools.sweep import grid

Row = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
      number: in the paper, or "" for one of our own. name: of its files. title: above it.
      unit: of its values. mode: which rows of the sweep it shows.
      values: label -> what it shows of a row.
      needs: a row is shown if it has this column. limit: and was planned within this, in seconds.
      log: whether its axis is logarithmic. marks: what the paper prints.
    """

    number: str
    name: str
    title: str
    unit: str
    mode: str
    values: Mapping[str, Callable[[Row], float]]
    needs: str = ""
    limit: float | None = None
    log: bool = False
    marks: tuple[Mark, ...] = ()

    def shows(self, row: Row) -> bool:
        """Whether a row belongs in it."""
        if row["mode"] != self.mode or (self.needs and not row[self.needs]):
            return False
        return self.limit is None or planning_seconds(row) <= self.limit


@dataclasses.dataclass(frozen=True)
class Series:
    """What a figure shows: one entry for each row.

    Attributes:
      names: "model, batch n" (and the target where the rows have several).
      values: label -> values, in the order of the names.
      batches: the batch size of each.
    """

    names: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    batches: tuple[int, ...]

    def mean(self, label: str, batch_size: int) -> float | None:
        """The mean over the rows of one batch size; None if there is none."""
        return statistics.fmean(of) if (of := self._of(label, batch_size)) else None

    def median(self, label: str, batch_size: int) -> float | None:
        """The median over the rows of one batch size; None if there is none."""
        return statistics.median(of) if (of := self._of(label, batch_size)) else None

    def _of(self, label: str, batch_size: int) -> list[float]:
        pairs = zip(self.values[label], self.batches, strict=True)
        return [value for value, batch in pairs if batch == batch_size]


STEPS = 1_000_000
"""Train steps whose allocator time figure 14 shows."""


def planning_seconds(row: Row) -> float:
    """Ordering and placing of a row of mode eager."""
    return float(row["order_seconds"]) + float(row["place_seconds"])


def _less(before: str, after: str) -> Callable[[Row], float]:
    """By how many percent one column is below another."""
    return lambda row: 100 * (1 - float(row[after]) / float(row[before]))


def _more(before: str, after: str) -> Callable[[Row], float]:
    """By how many percent one column is above another."""
    return lambda row: 100 * (float(row[after]) / float(row[before]) - 1)


def _share(column: str) -> Callable[[Row], float]:
    return lambda row: 100 * float(row[column])


def _seconds(column: str) -> Callable[[Row], float]:
    return lambda row: float(row[column])


def _steps(column: str) -> Callable[[Row], float]:
    """Seconds of all steps."""
    return lambda row: STEPS * float(row[column])


def _minutes_saved(column: str) -> Callable[[Row], float]:
    """Minutes that the allocations of all steps take, less those that planning takes."""
    return lambda row: (STEPS * float(row[column]) - planning_seconds(row)) / 60


FIGURES = (
    Figure(
        "7", "reordering", "Peak reduction by reordering", "%", "eager",
        {"reordering": _less("eager_live_bytes", "peak_bytes")}, marks=REORDERING,
    ),
    Figure(
        "8", "fragmentation", "Reserved bytes that hold nothing", "%", "eager",
        {
            "caching allocator, when the reservation last grew (the paper's count)": _share(
                "eager_fragmentation"
            ),
            "caching allocator, when most is live": _less(
                "eager_reserved_bytes", "eager_live_bytes"
            ),
            "planned": _more("peak_bytes", "placed_bytes"),
        },
        marks=FRAGMENTATION,
    ),
    Figure(
        "8", "fragmentation_in_a_loop",
        f"Reserved bytes that hold nothing, in a loop of {LOOP_STEPS} steps", "%", "eager",
        {
            "caching allocator, when the reservation last grew (the paper's count)": _share(
                "loop_fragmentation"
            ),
        },
        needs="loop_reserved_bytes", marks=FRAGMENTATION,
    ),
    Figure(
        "9", "ordering_time", "Ordering time", "s", "eager",
        {"ordering": _seconds("order_seconds")},
    ),
    Figure(
        "11", "placement_time", "Placement time", "s", "eager",
        {"placement": _seconds("place_seconds")},
    ),
    Figure(
        "13", "total_reduction", "Total reduction, planned within five minutes", "%", "eager",
        {"order and places": _less("eager_reserved_bytes", "placed_bytes")}, limit=300.0,
        marks=TOTAL_REDUCTION,
    ),
    Figure(
        "13", "total_reduction_in_a_loop",
        f"Total reduction against a loop of {LOOP_STEPS} steps, planned within five minutes", "%",
        "eager", {"order and places": _less("loop_reserved_bytes", "placed_bytes")},
        needs="loop_reserved_bytes", limit=300.0, marks=TOTAL_REDUCTION,
    ),
    Figure(
        "14", "allocator_time", "Planning once, and what allocations take", "s", "eager",
        {
            "planning": planning_seconds,
            f"caching allocator (compiled), {STEPS:,} steps": _steps("caching_seconds"),
            f"malloc and free, {STEPS:,} steps": _steps("request_seconds"),
        },
        needs="caching_seconds", log=True,
    ),
    Figure(
        "14", "minutes_saved", f"A caching allocator's time in {STEPS:,} steps, less planning",
        "minutes", "eager",
        {"caching allocator, less planning": _minutes_saved("caching_seconds")},
        needs="caching_seconds",
    ),
    Figure(
        "", "break_even", "Steps after which allocations have taken as long as planning", "steps",
        "eager",
        {
            "caching allocator": lambda row: planning_seconds(row) / float(row["caching_seconds"]),
            "malloc and free": lambda row: planning_seconds(row) / float(row["request_seconds"]),
        },
        needs="caching_seconds", log=True,
    ),
    Figure(
        "", "against_xla", "Total below XLA's own", "%", "order",
        {"order and in-place reuse": _less("xla_bytes", "planned_bytes")},
    ),
    Figure(
        "", "against_memory_optimized", "Total below XLA's memory-optimized scheduler's", "%",
        "order",
        {"order and in-place reuse": _less("memory_optimized_bytes", "planned_bytes")},
        needs="memory_optimized_bytes",
    ),
    Figure(
        "", "against_xla_overhead", "Total below XLA's own, within 5 % time", "%", "overhead",
        {"with recomputation": _less("xla_bytes", "planned_bytes")},
    ),
)  # fmt: skip
"""All figures with bars, in the order of the paper. Those of progress over time (10 and 12) and of
best fit against blocks are in `curves`."""


COLUMNS = tuple(dict.fromkeys((*grid.COLUMNS, *unfused.COLUMNS)))
"""Those of both kinds of sweep."""


def read_rows(path: str) -> list[dict[str, str]]:
    """The rows of a sweep's CSV that did not fail, with "" for what another kind of sweep says.

    Raises InputError if it is none.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {*grid.KEY, "error"} <= set(reader.fieldnames or ()):
                raise InputError(f"{path} is not a sweep's CSV; make one with olla_xla sweep")
            return [{**dict.fromkeys(COLUMNS, ""), **row} for row in reader if not row["error"]]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"cannot read {path}: {reason}") from error


def series(figure: Figure, rows: Sequence[Row]) -> Series:
    """What a figure shows of the rows of its mode; empty if there are none."""
    mine = [row for row in rows if figure.shows(row)]
    several = len({row["target"] for row in mine}) > 1
    names = tuple(
        f"{row['model']}, batch {row['batch_size']}" + (f", {row['target']}" if several else "")
        for row in mine
    )
    values = {label: tuple(map(value, mine)) for label, value in figure.values.items()}
    return Series(names, values, tuple(int(row["batch_size"]) for row in mine))


def mean_lines(figure: Figure, shown: Series) -> list[tuple[str, float, int, bool]]:
    """(label, height, batch size, whether it is the paper's) of each line across a figure.

    Means are of its first label, by batch size; the paper's values are those of batch sizes that
    the figure has.
    """
    first = next(iter(shown.values))
    found = []
    for size in sorted(set(shown.batches)):
        mean = shown.mean(first, size)
        if mean is not None and not figure.log:
            label = f"mean of batch {size}: {mean:,.1f} {figure.unit}"
            found.append((label, mean, size, False))
        found += [
            (f"{mark.label}: {mark.value:,.1f} {figure.unit}", mark.value, size, True)
            for mark in figure.marks
            if mark.batch_size == size
        ]
    return found


_BATCH_COLORS = ("#8250df", "#1a7f37", "#9a6700", "#57606a")
"""Of the lines of each batch size, smallest first; solid ours, broken the paper's."""


def _draw_means(axes: Any, figure: Figure, shown: Series) -> None:
    sizes = sorted(set(shown.batches))
    marks = {size: iter(MARK_STYLES) for size in sizes}
    for label, height, size, is_paper in mean_lines(figure, shown):
        color = _BATCH_COLORS[sizes.index(size) % len(_BATCH_COLORS)]
        style = next(marks[size]) if is_paper else "-"
        axes.axhline(height, linestyle=style, color=color, linewidth=1.2, label=label)


def write_csv(figure: Figure, shown: Series, path: Path) -> None:
    """Writes a figure's values: a line for each name, a column for each label."""
    columns = zip(shown.names, *shown.values.values(), strict=True)
    write_table(
        path,
        ["name", *(f"{label} ({figure.unit})" for label in shown.values)],
        ([name, *(f"{v:.3f}" for v in values)] for name, *values in columns),
    )


def write_png(figure: Figure, shown: Series, path: Path) -> None:
    """Draws a figure. Raises InputError if matplotlib is not installed."""
    canvas = new_canvas(max(6.0, 0.3 * len(shown.names) + 2), 5)
    axes = canvas.subplots()
    width = 0.8 / len(shown.values)
    for k, (label, values) in enumerate(shown.values.items()):
        places = [j + (k + 0.5) * width - 0.4 for j in range(len(values))]
        axes.bar(places, values, width, label=label)
    _draw_means(axes, figure, shown)
    axes.set_xticks(range(len(shown.names)), shown.names, rotation=90, fontsize=7)
    number = f"OLLA, figure {figure.number}: " if figure.number else ""
    axes.set_title(number + figure.title, fontsize=9)
    axes.set_ylabel(figure.unit)
    if figure.log:
        axes.set_yscale("log")
    axes.margins(x=0.01)
    axes.grid(axis="y", linewidth=0.3)
    canvas.legend(fontsize=7, loc="outside lower center")
    save_png(canvas, path)
