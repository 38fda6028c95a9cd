"""Memory over the schedule as a figure for papers: PNG, SVG or PDF."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from olla_xla.analysis.analysis import Analysis
from olla_xla.analysis.category import COLORS
from olla_xla.analysis.memory_view import MemoryView
from olla_xla.errors import InputError
from olla_xla.problem.whole_file import written_for_user

_MEGABYTE = 2**20
_SUFFIXES = (".png", ".svg", ".pdf")


def draw(analysis: Analysis, path: Path) -> None:
    """Draws each order's bytes by category over its schedule, total and lower bound to a file.
    Raises InputError if the suffix is of no known format, or the file cannot be written.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"the name of a figure must end in {', '.join(_SUFFIXES)}, not {path}")
    views = analysis.views
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "olla_xla"}):
        figure = Figure(figsize=(8, 1.1 + 2.4 * len(views)), layout="constrained", dpi=160)
        axes = figure.subplots(len(views), 1, sharey=True, squeeze=False)[:, 0]
        for axis, view in zip(axes, views, strict=True):
            _view(axis, view, analysis.lower_bound_bytes)
        axes[-1].set_xlabel("step of the schedule")
        figure.suptitle(analysis.title, fontsize=11)
        handles = {}
        for axis in axes:
            handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=4,
            fontsize=8,
            frameon=False,
        )
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
        with written_for_user(path) as beside:
            figure.savefig(beside, metadata=metadata)


def _view(axis: Any, view: MemoryView, bound: int) -> None:
    """Draws one order's bytes by category over its steps, with its total, its peak, the bound."""
    edges = np.arange(view.steps + 1)
    below = np.zeros(view.steps)
    for category, line in view.timeline.items():
        above = below + line / _MEGABYTE
        axis.stairs(
            above, edges, baseline=below, fill=True, color=COLORS[category], label=str(category)
        )
        below = above
    total = view.total_bytes / _MEGABYTE
    axis.axhline(total, color="#57606a", lw=1, label="allocated")
    axis.axhline(bound / _MEGABYTE, color="#57606a", lw=1, ls=":", label="lower bound")
    axis.axvline(view.step + 0.5, color="#c0392b", lw=0.8, ls="--", label="peak")
    kind = "assigned" if view.assigned else "predicted"
    axis.set_title(f"{view.name}: {total:,.1f} MB {kind}", fontsize=10, loc="left")
    axis.set(ylabel="in use, MB", xlim=(0, max(view.steps, 1)))
    axis.spines[["top", "right"]].set_visible(False)
