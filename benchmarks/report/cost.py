"""Predicted and measured step times as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from olla_xla.cli.report.measured import prediction
from olla_xla.cli.report.tables import Table
from olla_xla.tools.measure.records import Measured, RunRequest


def cost_table(rows: Sequence[tuple[RunRequest, Measured]]) -> Table:
    """Predicted and measured step times of several models in XLA's order."""
    cells = [
        (r.model, str(r.batch_size), r.optimizer, *prediction(m.predicted_seconds, m.seconds))
        for r, m in rows
    ]
    headings = ("model:", "batch", "optimizer:", "predicted ms", "measured ms", "err. %")
    return Table(headings, cells)


def cost_summary(rows: Sequence[tuple[RunRequest, Measured]]) -> str:
    """One line: how far the predictions are off."""
    found = [(m.predicted_seconds or math.nan) / m.seconds for _, m in rows]
    off = [max(ratio, 1 / ratio) for ratio in found]
    return (
        f"Predicted over measured: {min(found):.2f} to {max(found):.2f}, "
        f"off by {statistics.median(off):.2f} times in the median."
    )
