"""Predicted against measured step times of several models on this machine's CPU, in XLA's order.

Each model runs in a fresh process. The prediction is that of the cost model behind --max_overhead:
work of each operator over the machine's rates, which are measured once and kept in a file.
"""

from __future__ import annotations

from absl import flags

from benchmarks.report.cost import cost_summary, cost_table
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.tools.measure.processes import measure_one
from olla_xla.tools.measure.records import RunRequest

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
    flags.DEFINE_list(
        "cases", ",".join(_CASES), "model/batch_size/optimizer, several.", flag_values=values
    )
    flags.DEFINE_integer("steps", 6, "Steps to run.", lower_bound=2, flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table."""
    requests = [_request(case, values.steps) for case in values.cases]
    rows = []
    with Progress() as progress:
        for number, request in enumerate(requests, 1):
            progress.stage(f"{request.model} ({number} of {len(requests)})")
            found = measure_one(request, progress.stage)
            rows.append((request, found))
            progress(
                f"{request.model}: {found.predicted_seconds or 0:.3f} s predicted, "
                f"{found.seconds:.3f} s measured"
            )
    console = shared.console()
    cost_table(rows).print(console)
    console.print(cost_summary(rows), markup=False)
    return 0


def _request(case: str, steps: int) -> RunRequest:
    parts = case.split("/")
    if len(parts) != 3 or not parts[1].isdigit() or int(parts[1]) < 1:
        raise InputError(f"case {case!r} is not model/batch_size/optimizer, as gpt/1/adam")
    return RunRequest(parts[0], int(parts[1]), parts[2], steps=steps, planned=False)
