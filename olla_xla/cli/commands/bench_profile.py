"""Records NumPy loops, plans their memory from the first iteration, and replays the others.

Prints the peak of live bytes, what a caching allocator reserves, the planned arena, how often it
was placed anew, and the time of a request.
"""

from __future__ import annotations

import dataclasses
import json

from absl import flags

from olla_xla.bench import profiles as bench
from olla_xla.cli.commands import shared
from olla_xla.cli.report.profiles import profiles_table
from olla_xla.cli.report.progress import Progress

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Of lengths and numbers.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Measures and prints."""
    if values.out is not None:
        shared.write_text(values.out, "")  # better now than after the measurements
    rows = []
    with Progress() as progress:
        for name in bench.LOOPS:
            progress.stage(name)
            rows.append(bench.measure(name, values.seed))
    profiles_table(rows).print(shared.console())
    if values.out is not None:
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        shared.write_text(values.out, text + "\n")
    return 0
