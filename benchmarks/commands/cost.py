"""Predicted against measured step times of several models on this machine's CPU, in XLA's order.

Each model runs in a fresh process. The prediction is that of the cost model behind --max_overhead:
work of each operator over the machine's rates, which are measured once and kept in a file.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence

from absl import flags

from benchmarks.driver import Flags, measured
from olla_xla.cli.commands import shared
from olla_xla.cli.commands.measure import prediction
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError
from olla_xla.tools.measure.processes import measure_one
from olla_xla.tools.measure.records import Measured, RunRequest

_CASES = (
    "mlp/2048/momentum",
    "resnet50/4/momentum",
    "efficientnet_b0/2/adam",
    "vgg11/1/sgd",
    "gpt/1/adam",
    "vit_b16/1/adam",
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.names("cases", _CASES, "model/batch_size/optimizer, several.")
    define.whole("steps", 6, "Steps to run.", least=2)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table; 1 if one fails."""
    requests = [_request(case, values.steps) for case in values.cases]

    def row(request: RunRequest, progress: Progress) -> tuple[RunRequest, Measured]:
        with tempfile.TemporaryDirectory() as cache:
            return request, measure_one(request, progress.stage, cache)

    rows, failed = measured(requests, row, name=lambda request: request.model)
    console = shared.console()
    if rows:
        cost_table(rows).print(console)
        console.print(cost_summary(rows), markup=False)
    return int(failed > 0)


def _request(case: str, steps: int) -> RunRequest:
    parts = case.split("/")
    if len(parts) != 3 or not parts[1].isdigit() or int(parts[1]) < 1:
        raise InputError(f"case {case!r} is not model/batch_size/optimizer, as gpt/1/adam")
    return RunRequest(parts[0], int(parts[1]), parts[2], steps=steps, planned=False)


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
