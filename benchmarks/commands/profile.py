"""Records NumPy loops, plans their memory from the first iteration, and replays the others.

Prints the peak of live bytes, what a caching allocator reserves, the planned arena, how often it
was repacked, and the time of a request. With --trace a recording is replayed instead, as
--record writes it: a CSV of iteration,profile,request,bytes, with -1 bytes where a request is
released; or, where the name ends in .json, a trace that PyTorch's profiler wrote of a loop on a
CPU, which --record makes such a CSV of.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from benchmarks.papers.profile_replay import profiles as bench
from benchmarks.papers.recordings.recording import Recording, read_recording, write_recording
from benchmarks.papers.recordings.torch_trace import read_torch_trace
from benchmarks.report.profiles import profiles_table
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of lengths and numbers.", flag_values=values)
    flags.DEFINE_list("trace", [], "Recordings (CSV) to replay.", flag_values=values)
    flags.DEFINE_string("record", None, "CSV file to write --loop to.", flag_values=values)
    flags.DEFINE_enum(
        "loop", "training, changing lengths", list(bench.LOOPS), "What --record records.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_integer(
        "iterations", 4, "Of what --record records.", lower_bound=1, flag_values=values
    )


def run(values: flags.FlagValues) -> int:
    """Records, or measures and prints."""
    files.check_writable(values.out)  # better now than after the measurements
    if values.record is not None:
        if len(values.trace) > 1:
            raise InputError("--record takes one --trace")
        found = [_read(path) for path in values.trace] or [
            bench.record(values.loop, values.seed, values.iterations)
        ]
        write_recording(values.record, found[0])
        return 0
    rows = []
    with Progress() as progress:
        if values.trace:
            rows = [bench.replayed(_read(path)) for path in values.trace]
        for name in () if values.trace else bench.LOOPS:
            progress.stage(name)
            rows.append(bench.measure(name, values.seed))
    profiles_table(rows).print(shared.console())
    if values.out is not None:
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        files.write_text(values.out, text + "\n")
    return 0


def _read(path: str) -> Recording:
    """A recording, or a trace of PyTorch's; says what of that is left out."""
    if not path.endswith(".json"):
        return read_recording(path)
    trace = read_torch_trace(path)
    if trace.kept:
        shared.console().print(
            f"{path}: {trace.kept:,} requests, {trace.kept_bytes:,} bytes, were not released in "
            "their iteration and are left out",
            markup=False,
            soft_wrap=True,
        )
    return trace.recording
