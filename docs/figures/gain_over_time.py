"""Draws gain_over_time.svg: how near a plan comes to the best one, by seconds of search.

    JAX_PLATFORMS=cpu uv run --extra cuda13 python docs/figures/gain_over_time.py

The steps of `benchmarks schedule` are compiled as far as XLA's schedule, and planned with one time
limit after another and with none, as the decorator does. The totals are predicted; they are
kept in gain_over_time.json, and are not computed again while that is there.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import matplotlib

from benchmarks.schedule import CASES, Case
from olla_xla import targets
from olla_xla.compile.compiles import Compiles
from olla_xla.planner import plan_module
from olla_xla.planner.warm_up import loaded
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import StopReason
from olla_xla.tools import models

LIMITS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
DATA = Path(__file__).with_suffix(".json")
COLORS = {"cpu": "#c0392b", "h100": "#1f6feb"}


def measure(case: Case) -> dict[str, Any]:
    """Predicted totals of one step, in bytes, by seconds of search."""
    model = models.build(case.model, batch_size=case.batch_size, optimizer=case.optimizer)
    arguments = targets.target(case.target).place(model.arguments)
    with models.tracing(case.model):
        lowered = jax.jit(model.step, **model.jit_options).lower(*arguments)
    started = time.monotonic()
    captured = Compiles(lowered, None, {}).capture()
    seconds = time.monotonic() - started
    target, curve = captured.platform, []
    for limit in LIMITS:
        plan = plan_module(captured.module, PlanOptions(time_limit=limit), target=target)
        curve.append((plan.seconds, plan.predicted_bytes))
        if plan.stopped_by is not StopReason.TIME_LIMIT:
            break
    plan = plan_module(captured.module, PlanOptions(), target=target, schedule_seconds=seconds)
    return {
        "case": case.name,
        "xla_bytes": plan.xla_predicted_bytes,
        "bound_bytes": plan.lower_bound_bytes,
        "curve": curve,
        "default": (plan.seconds, plan.predicted_bytes),
    }


def draw(rows: list[dict[str, Any]]) -> None:
    """Writes the figure beside the data."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "olla_xla"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for row in rows:
        target = row["case"].rsplit("/", 1)[1]
        best = min(total for _, total in (*row["curve"], row["default"]))
        seconds, totals = zip(*sorted(map(tuple, row["curve"])), strict=True)
        excess = [100 * (t / best - 1) for t in itertools.accumulate(totals, min)]
        axes.step(seconds, excess, where="post", color=COLORS[target], alpha=0.5, lw=1.2)
        at, total = row["default"]
        axes.plot(at, 100 * (total / best - 1), "o", color=COLORS[target], ms=4)
    for target, color in COLORS.items():
        axes.plot([], [], color=color, label=f"{target}; dots: without a limit")
    axes.set_xscale("log")
    axes.set_xlabel("seconds of planning")
    axes.set_ylabel("predicted total above the best, %")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


def main() -> None:
    """Measures what is not yet measured, and draws."""
    rows = json.loads(DATA.read_text()) if DATA.exists() else []
    known = {row["case"] for row in rows}
    targets.prepare_environment("h100")
    loaded()
    for case in CASES:
        if case.name not in known:
            rows.append(measure(case))
            DATA.write_text(json.dumps(rows, indent=1) + "\n")
            print(case.name, file=sys.stderr)
    draw(rows)


if __name__ == "__main__":
    main()
