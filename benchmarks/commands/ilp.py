"""Measures the paper's integer programs and our forms of them, with each solver.

Prints size and time with each equation left out, orders and places of small train steps by the
paper's plain form, by ours, and with each switch alone, and how many random graphs agree with
trying every order. Exit code 1 if one does not agree. Rows of train steps that the file of --out
has already, with the same limit, are not measured again. With --stored nothing is measured: a line
is printed for each program in files that --out wrote, with a column for each solver.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from benchmarks.growing_file import read_text
from benchmarks.papers import ilp as bench
from benchmarks.papers import ilp_steps
from benchmarks.place import planned_step
from benchmarks.report.solvers import (
    agreement_table,
    programs_table,
    solve_table,
    steps_table,
)
from benchmarks.schedule import parse_cases
from olla_xla import targets
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.problem.options import PlanOptions
from olla_xla.solvers.linear import SolverLimits

_PARTS = ("switches", "orders", "places", "random")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_integer(
        "graphs", 2000, "Random graphs to compare.", lower_bound=0, flag_values=values
    )
    flags.DEFINE_list(
        "steps", None, "model/batch_size/optimizer/target, several; all by default.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_list("parts", list(_PARTS), "What to measure of these.", flag_values=values)
    flags.DEFINE_list(
        "backends", ["highs", "cpsat", "gurobi"], "Solvers to try.", flag_values=values
    )
    flags.DEFINE_float(
        "time_limit", 60.0, "Seconds for each model of a train step.", flag_values=values
    )
    flags.DEFINE_list(
        "stored", None, "JSON files that --out wrote, to be printed.", flag_values=values
    )
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Measures and prints everything, or prints what is stored."""
    if values.stored is not None:
        texts = [read_text(path) for path in values.stored]
        rows = [row for text in texts for row in ilp_steps.rows_from_json(text)]
        shared.print_table(values, programs_table(rows))
        return 0
    files.check_writable(values.out)
    if unknown := set(values.parts) - set(_PARTS):
        raise InputError(f"--parts: {min(unknown)!r} is not one of {', '.join(_PARTS)}")
    cases = parse_cases(ilp_steps.STEPS if values.steps is None else values.steps)
    if any(case.target != "cpu" for case in cases):
        targets.prepare_environment("h100")  # both targets, in one process
    limits = SolverLimits(time_limit=values.time_limit)
    solves, steps, agreements = [], _earlier(values.out), []
    measured = []
    with Progress() as progress:
        if "switches" in values.parts:
            progress.stage("equation switches on random graphs")
            solves += bench.switches(None, limits, values.backends)
        for case in cases if {"orders", "places"} & set(values.parts) else ():
            done = {r.key for r in steps if (r.step, r.limit) == (case.name, values.time_limit)}
            wanted = ilp_steps.keys(values.backends, values.parts)
            if done.issuperset(wanted):
                continue
            progress.stage(f"train step {case.name}")
            step = planned_step(case, PlanOptions(time_limit=5.0))
            for part, rows in (("orders", ilp_steps.orders), ("places", ilp_steps.places)):
                if part not in values.parts:
                    continue
                for row in rows(step, values.backends, values.time_limit, done):
                    steps.append(row)
                    measured.append(row)
                    progress(f"{case.name} {row.what}, {row.variant}, {row.backend}: {row.status}")
                    _write(values.out, solves, agreements, steps)
        if "random" in values.parts and values.graphs:
            progress.stage("random graphs")
            agreements = bench.agreement(values.graphs, values.backends, progress)
    console = shared.console()
    if solves:
        solve_table(solves).print(console)
    if measured:
        steps_table(measured).print(console)
    if agreements:
        agreement_table(agreements).print(console)
    _write(values.out, solves, agreements, steps)
    return 0 if not agreements or bench.all_agree(agreements) else 1


def _earlier(path: str | None) -> list[ilp_steps.StepRow]:
    """The rows of train steps that a file has."""
    if path is None or not Path(path).exists():
        return []
    return ilp_steps.rows_from_json(read_text(path))


def _write(
    path: str | None,
    solves: Sequence[bench.Solve],
    agreements: Sequence[bench.Agreement],
    steps: Sequence[ilp_steps.StepRow],
) -> None:
    """Writes what there is so far."""
    if path is not None:
        result = bench.as_json(solves, agreements)
        result["steps"] = [dataclasses.asdict(row) for row in steps]
        files.write_text(path, json.dumps(result, indent=1) + "\n")
