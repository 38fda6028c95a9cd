"""Draws largest_batch.svg: totals by batch size in each way, and the largest batches that fit.

    uv run --extra cuda13 olla_xla max_batch --model=gpt2_small --target=a100_40 --time_limit=10 \
        --out=docs/figures/largest_batch.json
    uv run python docs/figures/largest_batch.py

Totals are predicted at each size that the search came by; those of the answers are XLA's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

MEGABYTE = 2**20
WAYS = {
    "xla": ("XLA alone", "#c0392b"),
    "planned": ("planned", "#1f6feb"),
    "recomputed": ("with recomputation", "#2e7d32"),
}


def main() -> None:
    """Draws what the command left beside this file."""
    here = Path(__file__)
    found: dict[str, Any] = json.loads(here.with_suffix(".json").read_text())
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "olla_xla"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    memory = found["memory_bytes"] / MEGABYTE
    axes.axhline(memory, color="#57606a", ls="--", lw=1)
    axes.text(0, memory, f" {memory:,.0f} MB", va="bottom", color="#57606a")
    for way, (name, color) in WAYS.items():
        answer = found[way]
        if answer is None:
            continue
        points = sorted((b, size / MEGABYTE) for w, b, size in found["points"] if w == way)
        if way == "recomputed":  # a plan that fits takes what it may
            points = [(answer["batch"], answer["bytes"] / MEGABYTE)]
        axes.plot(*zip(*points, strict=True), "o-", ms=3, lw=1.3, color=color)
        axes.axvline(answer["batch"], color=color, lw=1, ls=":", label=f"{name}: {answer['batch']}")
    axes.set_xlabel("batch")
    axes.set_ylabel("MB")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(here.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
