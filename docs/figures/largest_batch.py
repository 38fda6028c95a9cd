"""Draws largest_batch.svg: the largest batches that fit, of what the folder beside it has.

    uv run --extra cuda13 olla_xla max_batch --model=gpt2_small --target=a100_40 --time_limit=10 \
        --start=34 --out=docs/figures/largest_batch/gpt2_small_a100_40.json
    uv run python docs/figures/largest_batch.py

A file is named for its model and target.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

WAYS = {
    "xla": ("XLA alone", "#c0392b"),
    "planned": ("planned", "#1f6feb"),
    "recomputed": ("with recomputation, 5 % more predicted time", "#2e7d32"),
}
HEIGHT = 0.26


def main() -> None:
    """Draws a group of bars for each file."""
    here = Path(__file__).with_suffix("")
    files = sorted(here.glob("*.json"), reverse=True)
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "olla_xla"})
    import matplotlib.pyplot as plt

    size = (8, 0.6 + 0.85 * len(files))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for row, file in enumerate(files):
        found = json.loads(file.read_text())
        for k, (way, (name, color)) in enumerate(WAYS.items()):
            batch, y = found[way]["batch"], row + (1 - k) * HEIGHT
            axes.barh(y, batch, HEIGHT * 0.9, color=color, label="" if row else name)
            times = f" ({batch / found['xla']['batch']:.2f} x)" if k else ""
            axes.text(batch, y, f" {batch}{times}", va="center", fontsize=9)
    axes.set_yticks(range(len(files)), [file.stem.replace("_", " ") for file in files])
    axes.set_xlabel("batch")
    axes.margins(x=0.14)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.45, -0.28 / size[1] * 2), ncols=3, frameon=False
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(here.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
