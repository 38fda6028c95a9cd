"""Plans again and again in one process: new shapes of one function; functions that are forgotten.

Nothing may grow, in memory or seconds, but by what a signature keeps; the exit code is 1 otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from benchmarks.driver import Column, Flags, fixed, known, table_of, write_json
from benchmarks.papers.figures.files import new_canvas, save_png
from benchmarks.soak.job import Curve, Sample, soak
from benchmarks.soak.worker import PARTS
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import megabytes

_SAMPLES = 50


def _middle(pair: tuple[Curve, str]) -> Sample:
    samples = pair[0].samples
    return samples[len(samples) // 2]


def _last(pair: tuple[Curve, str]) -> Sample:
    return pair[0].samples[-1]


_COLUMNS = (
    Column("part:", lambda pair: pair[0].part),
    Column("way:", lambda pair: pair[0].way),
    Column("times", lambda pair: _last(pair).count),
    Column("resident, half way", lambda pair: _middle(pair).resident_bytes, megabytes),
    Column("in the end", lambda pair: _last(pair).resident_bytes, megabytes),
    Column("KB each time", lambda pair: pair[0].bytes_each, fixed(1, 1 / 2**10)),
    Column("first call s, half way", lambda pair: _middle(pair).first_seconds, fixed(3)),
    Column("in the end", lambda pair: _last(pair).first_seconds, fixed(3)),
    Column("a call ms, half way", lambda pair: _middle(pair).call_seconds, fixed(2, 1e3)),
    Column("in the end", lambda pair: _last(pair).call_seconds, fixed(2, 1e3)),
    Column("wrong:", lambda pair: pair[1]),
)
"""Of a curve and the reason for which it fails, or ""."""


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("parts", list(PARTS), "What is done again and again.")
    define.whole("count", 1000, "Times, of each part.", least=8)
    define.real("minutes", 60.0, "At most, of each part and way.", least=0.01)
    define.switch("jit", True, "Do the same with jax.jit, to compare.")
    define.out()
    define.text("figure", None, "PNG file to draw.")
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Soaks, and prints what grew."""
    files.check_writable(values.out)
    limits = dataclasses.asdict(shared.options(values))
    options = {name: limits[name] for name in ("time_limit", "step_limit", "seed")}
    every = max(values.count // _SAMPLES, 1)
    found: list[tuple[Curve, str]] = []
    with Progress() as progress:
        for part in known("parts", values.parts, PARTS):
            jit = None
            for way in ("jit", "plan") if values.jit else ("plan",):
                curve = Curve(part, way, ())
                for curve in soak(part, way, values.count, 60 * values.minutes, every, options):
                    last = curve.samples[-1]
                    text = f"{last.count} times, {last.resident_bytes / 2**20:.0f} MB"
                    progress.stage(f"{part}, {way}: {text}")
                jit = curve if way == "jit" else jit
                found.append((curve, curve.wrong(jit) if way == "plan" else ""))
    title = "one process each; MB of 2^20 bytes; each time: median slope of the second half"
    sampled = [pair for pair in found if pair[0].samples]
    table_of(sampled, _COLUMNS, title).print(shared.console())
    write_json(values.out, [curve for curve, _ in found])
    if values.figure is not None:
        write_curves_png([curve for curve, _ in found], Path(values.figure))
    return int(any(wrong for _, wrong in found))


_PANELS = (
    ("resident_bytes", 2.0**-20, "resident, MB"),
    ("first_seconds", 1.0, "first call, s"),
    ("call_seconds", 1e3, "a call, ms"),
)


def write_curves_png(curves: Sequence[Curve], path: Path) -> None:
    """Draws one panel for each figure, one line for each part and way, against how often.

    Raises:
      InputError: matplotlib is not installed, or the file cannot be written.
    """
    canvas = new_canvas(10, 3.2)
    for axes, (field, scale, label) in zip(canvas.subplots(1, 3), _PANELS, strict=True):
        for curve in curves:
            counts = [s.count for s in curve.samples]
            values = [scale * getattr(s, field) for s in curve.samples]
            axes.plot(counts, values, linewidth=1, label=f"{curve.part}, {curve.way}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("times")
        axes.set_ylabel(label)
        axes.grid(linewidth=0.3)
        axes.legend(fontsize=7)
    save_png(canvas, path, dpi=150)
