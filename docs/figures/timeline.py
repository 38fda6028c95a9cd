"""Draws timeline.svg: live bytes over the schedule of one train step, in XLA's order and planned.

    JAX_PLATFORMS=cpu uv run python docs/figures/timeline.py

The step is compiled twice on this machine's CPU, once by `jax.jit` and once by `olla_xla.plan`.
Both lines are the lifetimes of the tensors in the executable's own order; both assigned totals are
XLA's. Nothing is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np

import olla_xla
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.memory.lifetimes import timeline
from olla_xla.planner import graphs
from olla_xla.tools import models

MODEL, BATCH_SIZE, OPTIMIZER = "resnet18", 4, "adam"
MEGABYTE = 2**20
XLA, PLANNED, BOUND = "#c0392b", "#1f6feb", "#57606a"


def live_megabytes(compiled: Any) -> np.ndarray:
    """Live MB at each step of an executable's entry computation."""
    entry = graphs(final_module(compiled), "cpu")[-1]
    return timeline(entry, range(len(entry.operators))) / MEGABYTE


def main() -> None:
    """Compiles both ways and writes the figure beside this file."""
    model = models.build(MODEL, batch_size=BATCH_SIZE, optimizer=OPTIMIZER)
    own = jax.jit(model.step, **model.jit_options).lower(*model.arguments).compile()
    planned = olla_xla.plan(model.step, step_limit=200_000, **model.jit_options)
    ours = planned.lower(*model.arguments).compile()
    bound = ours.plan.lower_bound_bytes / MEGABYTE

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "olla_xla"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    both = (("XLA's order", own, XLA, 0.0), ("planned order", ours, PLANNED, 0.15))
    for name, compiled, color, shade in both:
        live = live_megabytes(compiled)
        total = assigned_bytes(compiled) / MEGABYTE
        label = f"{name}: peak {live.max():.1f} MB, XLA assigns {total:.1f} MB"
        changes = np.flatnonzero(np.diff(live)) + 1
        edges = np.concatenate(([0], changes, [len(live)]))
        values = live[edges[:-1]]
        if shade:
            axes.stairs(values, edges, fill=True, color=color, alpha=shade)
        axes.stairs(values, edges, color=color, lw=1.3, label=label)
        print(f"{label}, {len(live)} steps")
    axes.axhline(bound, color=BOUND, ls="--", lw=1, label=f"bound for every order: {bound:.1f} MB")
    print(f"bound {bound:.1f} MB, {ours.plan.status}, jax {jax.__version__}")
    axes.set(
        title=f"{MODEL}, batch {BATCH_SIZE}, {OPTIMIZER}, CPU: live memory over one train step",
        xlabel="step of the schedule",
        ylabel="live, MB",
    )
    axes.set_ylim(0, 1.32 * live_megabytes(own).max())
    axes.set_xlim(0, len(live))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
