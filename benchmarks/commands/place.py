"""Places MiniMalloc's instances, the plans of real train steps, and many random blocks.

Prints seconds, heights and gaps to the bound; for plans also XLA's own fragmentation. Exit code 1
if an instance has no packing within its capacity, or a case fails. With --stored nothing is
measured: a line is printed for each plan in the part programs of files that --out wrote, with a
column for each way to place it; where a row is there twice, the last counts.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from absl import flags

from benchmarks import place as bench
from benchmarks.growing_file import read_text
from benchmarks.report.placing import (
    compared_table,
    instance_table,
    plans_table,
    programs_table,
    random_line,
    summary_line,
)
from benchmarks.schedule import parse_cases
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError, OllaError

_PARTS = ("instances", "plans", "programs", "random")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list(
        "parts",
        "instances,plans,random",
        "What to measure, of these and programs: plans placed by the paper's integer program.",
        flag_values=values,
    )
    flags.DEFINE_list(
        "stored", None, "JSON files that --out wrote, to be printed.", flag_values=values
    )
    shared.define_format(values)
    flags.DEFINE_list(
        "cases", None, "model/batch_size/optimizer/target, several; 32 by default.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_list(
        "backends", "highs,cpsat", "Solvers of the part programs.", flag_values=values
    )
    flags.DEFINE_float(
        "program_limit", 60.0, "Seconds for each integer program.", flag_values=values
    )
    flags.DEFINE_float(
        "least_limit", 10.0, "Seconds to look for an instance's least height.", flag_values=values
    )
    flags.DEFINE_integer("blocks", 20_000, "Random blocks.", lower_bound=1, flag_values=values)
    shared.define_limits(values)
    values.set_default("time_limit", 5.0)


def run(values: flags.FlagValues) -> int:
    """Measures and prints."""
    if values.stored is not None:
        texts = [read_text(path) for path in values.stored]
        rows = [row for text in texts for row in bench.programs_from_json(text)]
        last = {(row.case, row.backend, row.form, row.start): row for row in rows}
        shared.print_table(values, compared_table(list(last.values())))
        return 0
    options = shared.options(values)
    cases = parse_cases(values.cases) if values.cases else bench.PLANS
    files.check_writable(values.out)
    if unknown := set(values.parts) - set(_PARTS):
        raise InputError(f"--parts: {min(unknown)!r} is not one of {', '.join(_PARTS)}")
    solved, plans, programs, random, failed = [], [], [], [], 0
    with Progress() as progress:
        progress.stage("loading")
        bench.warm_up()
        if "instances" in values.parts:
            for name, capacity, problem in bench.instances():
                progress.stage(f"instance {name}")
                solved.append(
                    bench.measure_instance(
                        name, capacity, problem, time_limit=60, least_limit=values.least_limit
                    )
                )
        if {"plans", "programs"} & set(values.parts):
            targets.prepare_environment("h100")  # both targets, in one process
            for case in cases:
                progress.stage(case.name)
                try:
                    step = bench.planned_step(
                        case, dataclasses.replace(options, time_limit=values.time_limit)
                    )
                    if "plans" in values.parts:
                        plans.append(bench.measure_plan(step, time_limit=values.time_limit))
                    if "programs" in values.parts:
                        programs += bench.measure_programs(
                            step.case,
                            step.problem,
                            values.backends,
                            time_limit=values.program_limit,
                        )
                    _write(values.out, bench.as_json(solved, plans, random, programs))
                except OllaError as error:
                    failed += 1
                    print(f"{case.name}: {error}", file=sys.stderr)
        if "random" in values.parts:
            progress.stage(f"{values.blocks} random blocks")
            random.append(bench.measure_random(values.blocks, options.seed))
    console = shared.console()
    if solved:
        instance_table(solved).print(console)
    if plans:
        plans_table(plans).print(console)
    if programs:
        programs_table(programs).print(console)
    for row in random:
        console.print(random_line(row), markup=False)
    result = bench.as_json(solved, plans, random, programs)
    console.print(summary_line(result["summary"]), markup=False)
    _write(values.out, result)
    return 1 if failed or any(row.height is None for row in solved) else 0


def _write(path: str | None, result: dict[str, Any]) -> None:
    """Writes what there is so far."""
    if path is not None:
        files.write_text(path, json.dumps(result, indent=1) + "\n")
