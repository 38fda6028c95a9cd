"""The figures of Chen et al. (2016) and Sekiyama et al. (2018), from what our benchmarks wrote.

`benchmarks sublinear --out` and `benchmarks profile --out` write JSON; each figure is a CSV and a
PNG.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.eager.estimate import ModelEstimates
from benchmarks.papers.figures.files import new_canvas, save_png, write_table
from benchmarks.papers.figures.published import (
    LAYERS_1000,
    LESS_BY_PROFILE,
    LESS_IN_INFERENCE,
    LESS_IN_RECURRENT_INFERENCE,
    LSTMS_SAY,
    MARK_STYLES,
    TIME_OF_SUBLINEAR,
    Mark,
)
from olla_xla.errors import InputError

_MB = 2**20


@dataclasses.dataclass(frozen=True)
class Chart:
    """Lines over a number, or bars over names.

    Attributes:
      name: of its files. title: above it. x: what the horizontal axis says, y: the vertical one.
      at: where the values stand: numbers for lines, names for bars.
      lines: label -> values, in the order of `at`.
      marks: what the paper prints. log: whether the vertical axis is logarithmic.
    """

    name: str
    title: str
    x: str
    y: str
    at: tuple[float, ...] | tuple[str, ...]
    lines: Mapping[str, tuple[float, ...]]
    marks: tuple[Mark, ...] = ()
    log: bool = False


_MEMORY = {
    "none": "none_bytes",
    "in place": "in_place_bytes",
    "sharing": "sharing_bytes",
    "both": "both_bytes",
    "both, what is cheap dropped": "cheap_bytes",
    "both, sublinear": "sublinear_bytes",
    "both, sublinear, exact budget": "exact_bytes",
}


def sublinear_charts(paths: Sequence[str | os.PathLike[str]]) -> list[Chart]:
    """Figures 5 to 7 of Chen et al. 2016 from JSON of `benchmarks sublinear`, rows of all files.

    Raises InputError if one is none.
    """
    parts = [_read(path, dict, "benchmarks sublinear") for path in paths]
    charts = []
    try:
        memory, times = (sum((part[key] for part in parts), []) for key in ("memory", "time"))
        memory.sort(key=lambda row: row["size"])
        for number, network, x in (("5", "resnet", "layers"), ("6", "lstm", "steps")):
            rows = [row for row in memory if row["network"] == network]
            if rows:
                said = LSTMS_SAY if network == "lstm" else ""
                charts.append(
                    Chart(
                        f"sublinear_{network}",
                        f"Feature maps, {network} (figure {number} of Chen et al. 2016{said})",
                        x, "MB", tuple(row["size"] for row in rows),
                        {label: tuple(math.nan if row[c] is None else row[c] / _MB for row in rows)
                         for label, c in _MEMORY.items()},
                        LAYERS_1000 if network == "resnet" else (), log=True,
                    )
                )  # fmt: skip
        if times:
            names = tuple(f"{row['network']} {row['size']}" for row in times)
            charts.append(
                Chart(
                    "sublinear_totals",
                    "Totals of runs on a CPU (after figures 5b and 6b of Chen et al. 2016)",
                    "", "MB", names,
                    {
                        "plain": tuple(row["plain_total_bytes"] / _MB for row in times),
                        "sublinear": tuple(row["sublinear_total_bytes"] / _MB for row in times),
                    },
                    log=True,
                )
            )  # fmt: skip
            charts.append(
                Chart(
                    "sublinear_time",
                    "Step time, recomputing in segments (figure 7 of Chen et al. 2016)",
                    "", "times that without", names,
                    {"sublinear": tuple(row["ratio"] for row in times)}, TIME_OF_SUBLINEAR,
                )
            )  # fmt: skip
    except (KeyError, TypeError) as error:
        names = ", ".join(map(str, paths))
        raise InputError(f"{names}: not of this version's benchmarks sublinear") from error
    return charts


def profile_charts(paths: Sequence[str | os.PathLike[str]]) -> list[Chart]:
    """After figures 2 and 3 of Sekiyama et al. 2018, from JSON of `benchmarks profile`.

    Rows of all files. (4, best fit's time against the number of blocks, comes from a sweep.) Raises
    InputError if one is none.
    """
    command = "python -m benchmarks profile"
    rows = [row for path in paths for row in _read(path, list, command)]
    try:
        names = tuple(row["loop"] for row in rows)

        def column(*keys: str, scale: float = _MB) -> tuple[float, ...]:
            return tuple(sum(row[key] for key in keys) / scale for row in rows)

        arena, caching = column("arena_bytes", "elsewhere_bytes"), column("caching_bytes")
        learned = tuple((row["learned_bytes"] or row["learning_bytes"]) / _MB for row in rows)
        charts = [
            Chart(
                "profile_memory", "Memory of a loop (after figure 2 of Sekiyama et al. 2018)", "",
                "MB",
                names,
                {
                    "live at most": column("live_bytes"),
                    "planned arena, and what is served beside it": arena,
                    "arena of learned profiles, once they are known": learned,
                    "caching allocator": caching,
                },
            ),
            Chart(
                "profile_less", "Below the caching allocator (after Sekiyama et al. 2018)", "", "%",
                names,
                {
                    "planned": _less(arena, caching),
                    "planned, profiles learned": _less(learned, caching),
                },
                (*LESS_BY_PROFILE, *LESS_IN_RECURRENT_INFERENCE),
            ),
            Chart(
                "profile_time", "Time of a request (after figure 3 of Sekiyama et al. 2018)", "",
                "microseconds", names,
                {
                    "planned, placing anew included": column("planned_seconds", scale=1e-6),
                    "planned, serving alone": column("serving_seconds", scale=1e-6),
                    "caching allocator (Python)": column("caching_seconds", scale=1e-6),
                    "malloc (C)": column("malloc_seconds", scale=1e-6),
                },
                log=True,
            ),
        ]  # fmt: skip
        timed = [row for row in rows if row["step_seconds"] is not None]
        if timed:
            charts.append(_step_chart(timed))
    except (KeyError, TypeError) as error:
        given = ", ".join(map(str, paths))
        raise InputError(f"{given}: not of this version's {command}") from error
    return charts


def _step_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    """A step's time beside what its requests and releases take."""

    def requests(key: str) -> tuple[float, ...]:
        return tuple(2e3 * row["requests"] / row["iterations"] * row[key] for row in rows)

    return Chart(
        "profile_step", "Time of a step on a CPU (after figure 3 of Sekiyama et al. 2018)", "",
        "ms", tuple(row["loop"] for row in rows),
        {
            "step in NumPy": tuple(1e3 * row["step_seconds"] for row in rows),
            "of it requests, by malloc (C)": requests("malloc_seconds"),
            "requests, planned (Python)": requests("serving_seconds"),
            "requests, caching allocator (Python)": requests("caching_seconds"),
        },
        log=True,
    )  # fmt: skip


def _less(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """By how many percent ours are below theirs."""
    return tuple(100 * (1 - a / b) for a, b in zip(ours, theirs, strict=True))


_POOL, _BEST_FIT = "eager, block splitting", "best fit by profile"


def estimate_charts(rows: Sequence[ModelEstimates]) -> list[Chart]:
    """After figures 2a and 2b of Sekiyama et al. 2018, from rows of `benchmarks estimate --models`.

    By mode: what the caching allocator reserves for a step run eagerly, and the arena of best fit
    from its profile.
    """
    charts = []
    for mode, figure, marks in (
        ("training", "2a", LESS_BY_PROFILE),
        ("inference", "2b", LESS_IN_INFERENCE),
    ):
        mine = [row for row in rows if row.mode == mode]
        if not mine:
            continue
        names = tuple(f"{row.model}, batch {row.batch_size}" for row in mine)
        pool, arena = [], []
        for row in mine:
            by_planner = {found.planner: found for found in row.found.rows}
            pool.append((by_planner[_POOL].reserved_bytes or 0) / _MB)
            arena.append((by_planner[_BEST_FIT].total_bytes or 0) / _MB)
        less = _less(arena, pool)
        after = f"after figure {figure} of Sekiyama et al. 2018"
        charts += [
            Chart(
                f"best_fit_{mode}", f"Memory of a step, {mode} ({after})", "", "MB", names,
                {"caching allocator": tuple(pool), "best fit from its profile": tuple(arena)},
            ),
            Chart(
                f"best_fit_{mode}_less", f"Below the caching allocator, {mode} ({after})", "", "%",
                names, {"best fit from its profile": less}, marks,
            ),
        ]  # fmt: skip
    return charts


def write_csv(chart: Chart, path: Path) -> None:
    """Writes a line for each place of a chart, a column for each label."""
    columns = zip(chart.at, *chart.lines.values(), strict=True)
    write_table(
        path,
        [chart.x or "name", *(f"{label} ({chart.y})" for label in chart.lines)],
        ([at, *(f"{v:.4g}" for v in values)] for at, *values in columns),
    )


def write_png(chart: Chart, path: Path) -> None:
    """Draws a chart. Raises InputError if matplotlib is not installed."""
    bars = isinstance(chart.at[0], str)
    height = 1.5 + 0.12 * len(chart.at) * (len(chart.lines) + 1) if bars else 5.0
    canvas = new_canvas(7, max(height, 3.0))
    axes = canvas.subplots()
    (_draw_bars if bars else _draw_lines)(axes, chart)
    axes.set_title(chart.title, fontsize=9)
    axes.grid(axis="x" if bars else "y", linewidth=0.3)
    canvas.legend(fontsize=7, loc="outside lower center", ncols=2)
    save_png(canvas, path)


def _draw_lines(axes: Any, chart: Chart) -> None:
    for label, values in chart.lines.items():
        axes.plot(chart.at, values, marker=".", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(chart.at, [f"{at:,}" for at in chart.at])
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    if chart.log:
        axes.set_yscale("log")
    axes.margins(y=0.1)
    for mark in chart.marks:
        axes.plot([mark.x], [mark.value], "D", color="#c0392b", markersize=5)
        axes.annotate(
            mark.label, (mark.x, mark.value), (-6, 4), textcoords="offset points",
            fontsize=7, color="#c0392b", ha="right",
        )  # fmt: skip


def _draw_bars(axes: Any, chart: Chart) -> None:
    """Draws bars, names from top to bottom; with values below -100 on a symmetric log scale."""
    width = 0.8 / len(chart.lines)
    for k, (label, values) in enumerate(chart.lines.items()):
        places = [j + (k + 0.5) * width - 0.4 for j in range(len(values))]
        bars = axes.barh(places, values, width, label=label)
        clear = {"facecolor": "white", "linewidth": 0, "pad": 0.5}  # of the paper's lines
        texts = [f"{v:,.4g}" for v in values]
        axes.bar_label(bars, texts, padding=2, fontsize=5, bbox=clear)
    axes.set_yticks(range(len(chart.at)), chart.at, fontsize=7)
    axes.set_ylim(len(chart.at) - 0.5, -0.5)
    axes.set_xlabel(chart.y)
    if chart.log:
        axes.set_xscale("log")
    elif min(map(min, chart.lines.values())) < -100:
        axes.set_xscale("symlog", linthresh=100)
        axes.set_xticks([-100, -50, 0, 50, 100])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.margins(x=0.1)  # room for the values
    for mark, style in zip(chart.marks, MARK_STYLES, strict=False):
        axes.axvline(mark.value, color="#c0392b", linestyle=style, label=mark.label)


def _read(path: str | os.PathLike[str], kind: type, command: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise InputError(f"cannot read {path}: {reason}") from error
    if not isinstance(found, kind):
        raise InputError(f"{path} is not what {command} --out writes")
    return found
