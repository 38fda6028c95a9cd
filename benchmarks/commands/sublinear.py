"""Feature-map memory of deep ResNets and long LSTMs, and the step time of sublinear training.

Memory is counted on the unfused graph: every tensor its own, operators in place, memory shared,
both, what is cheap recomputed, and recomputing in segments. Step time is that of real runs, of
smaller networks. Exit code 1 if a figure misses what is expected: sharing at least 2 times under
none, on the LSTM sublinear at least 4 times under sharing, the ResNet of 1,000 layers as far under
sharing as the paper's, step time within 1.3 times.
"""

from __future__ import annotations

import json

from absl import flags

from benchmarks.papers import sublinear_training as bench
from benchmarks.report.baselines import memory_table, time_table
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list("depths", "128,256,512,1024", "Layers of the ResNets.", flag_values=values)
    flags.DEFINE_list(
        "steps", "64,128,256,512,1024,2048", "Steps of the LSTMs.", flag_values=values
    )
    flags.DEFINE_bool(
        "exact", True, "Whether to count every budget, three times as long.", flag_values=values
    )
    flags.DEFINE_bool(
        "recursive", False, "Whether to count segments of segments too, O(log n).",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_list(
        "timed", list(bench.TIMED), "Networks whose step is timed.", flag_values=values
    )
    flags.DEFINE_integer(
        "turns", 7, "Runs of each timed network; 0: none is timed.", lower_bound=0,
        flag_values=values,
    )  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Measures, prints both tables and writes the file."""
    depths, steps = _sizes("depths", values.depths), _sizes("steps", values.steps)
    for name in values.timed:
        if name not in bench.TIMED:
            raise InputError(f"--timed: {name!r} is not one of {', '.join(bench.TIMED)}")
    files.check_writable(values.out)  # better now than after the measurements
    targets.prepare_environment("cpu")

    networks = [*map(bench.resnet, depths), *map(bench.lstm, steps)]
    memory, times = [], []
    with Progress() as progress:
        for network in networks:
            progress.stage(f"memory of {network.name} {network.size}")
            memory.append(
                bench.measure_memory(network, exact=values.exact, recursive=values.recursive)
            )
        for name in values.timed if values.turns else ():
            network = bench.TIMED[name]()
            progress.stage(f"time of {network.name} {network.size}")
            times.append(bench.measure_time(network, values.turns))
    console = shared.console()
    if memory:
        memory_table(memory).print(console)
    if times:
        time_table(times).print(console)
    misses = bench.misses(memory, times)
    for line in misses:
        console.print(line, markup=False, soft_wrap=True)
    if values.out is not None:
        files.write_text(values.out, json.dumps(bench.as_json(memory, times), indent=1) + "\n")
    return 1 if misses else 0


def _sizes(flag: str, texts: list[str]) -> list[int]:
    for text in texts:
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"--{flag}: {text!r} is not a positive number; give --{flag}=64,128")
    return [int(text) for text in texts]
