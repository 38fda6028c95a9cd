"""Times the first call of real train steps, from lower() to compiled, against jax.jit's.

Each turn is a fresh process. With --cached they find plans and executables of an earlier one.
"""

from __future__ import annotations

import dataclasses
import importlib
import json

from absl import flags

from benchmarks import library_steps
from benchmarks.first_call import measure
from benchmarks.report.first_call import first_call_table
from benchmarks.schedule import CASES, parse_cases
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list(
        "cases", None, "model/batch_size/optimizer/target, several; those of benchmarks schedule.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "libraries", False, "Small steps of other libraries instead; uv run --group libraries.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "dropout", False, "Steps with many dropout masks instead.", flag_values=values
    )
    flags.DEFINE_integer("turns", 3, "Processes for each of both.", 1, flag_values=values)
    flags.DEFINE_float("max_overhead", None, "That of the plans.", 0.0, flag_values=values)
    flags.DEFINE_bool("cached", False, "Find plans and executables on disk.", flag_values=values)


def run(values: flags.FlagValues) -> int:
    """Measures every case and prints the table."""
    files.check_writable(values.out)
    if values.libraries and values.dropout:
        raise InputError("--libraries and --dropout each name other steps; give one of them")
    cases = CASES
    if values.libraries:
        cases = library_steps.CASES
    if values.dropout:
        # Flax and optax are what these steps are made of, not what the command needs.
        cases = importlib.import_module("benchmarks.dropout_steps").CASES
    if values.cases:
        cases = parse_cases(values.cases)
    rows = []
    with Progress() as progress:
        for number, case in enumerate(cases, 1):
            progress.stage(f"{case.name} ({number} of {len(cases)})")
            rows.append(measure(case, values.turns, values.cached, values.max_overhead))
    first_call_table(rows).print(shared.console())
    if values.out is not None:
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        files.write_text(values.out, text + "\n")
    return 0
