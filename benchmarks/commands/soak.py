"""Plans again and again in one process: new shapes of one function; functions that are forgotten.

Nothing may grow, in memory or seconds, but by what a signature keeps; the exit code is 1 otherwise.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from absl import flags

from benchmarks.report.soak import soak_table
from benchmarks.soak.figure import write_curves_png
from benchmarks.soak.job import Curve, soak
from benchmarks.soak.worker import PARTS
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError

_SAMPLES = 50


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_list("parts", list(PARTS), "What is done again and again.", flag_values=values)
    flags.DEFINE_integer("count", 1000, "Times, of each part.", 8, flag_values=values)
    flags.DEFINE_float("minutes", 60.0, "At most, of each part and way.", 0.01, flag_values=values)
    flags.DEFINE_bool("jit", True, "Do the same with jax.jit, to compare.", flag_values=values)
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_string("figure", None, "PNG file to draw.", flag_values=values)
    shared.define_limits(values)


def run(values: flags.FlagValues) -> int:
    """Soaks, and prints what grew."""
    files.check_writable(values.out)
    if unknown := [part for part in values.parts if part not in PARTS]:
        raise InputError(f"--parts: {unknown[0]!r} is not known; use {', '.join(PARTS)}")
    limits = dataclasses.asdict(shared.options(values))
    options = {name: limits[name] for name in ("time_limit", "step_limit", "seed")}
    every = max(values.count // _SAMPLES, 1)
    found: list[tuple[Curve, str]] = []
    with Progress() as progress:
        for part in values.parts:
            jit = None
            for way in ("jit", "plan") if values.jit else ("plan",):
                curve = Curve(part, way, ())
                for curve in soak(part, way, values.count, 60 * values.minutes, every, options):
                    last = curve.samples[-1]
                    text = f"{last.count} times, {last.resident_bytes / 2**20:.0f} MB"
                    progress.stage(f"{part}, {way}: {text}")
                jit = curve if way == "jit" else jit
                found.append((curve, curve.wrong(jit) if way == "plan" else ""))
    soak_table([pair for pair in found if pair[0].samples]).print(shared.console())
    if values.out is not None:
        text = json.dumps([dataclasses.asdict(curve) for curve, _ in found], indent=1)
        files.write_text(values.out, text + "\n")
    if values.figure is not None:
        write_curves_png([curve for curve, _ in found], Path(values.figure))
    return int(any(wrong for _, wrong in found))
