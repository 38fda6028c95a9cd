"""Curves of a soak: resident memory, and seconds of a first call and of a call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.figures.files import new_canvas, save_png
from benchmarks.soak.job import Curve

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
