"""Measures the paper's ILP and our forms of it, with each solver.

Prints size and time with each equation left out, small train steps proven optimal, and how many
random graphs agree with trying every order. Exit code 1 if one does not agree.
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import flags

from olla_xla.bench import ilp as bench
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.solvers import agreement_table, solve_table
from olla_xla.errors import InputError
from olla_xla.solvers.linear import Limits

__all__ = ["define_flags", "run"]


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_integer(
        "graphs", 2000, "Random graphs to compare.", lower_bound=0, flag_values=values
    )
    flags.DEFINE_list(
        "steps", None, "model/batch_size/optimizer, several; all by default.", flag_values=values
    )
    flags.DEFINE_list(
        "backends", ["highs", "cpsat", "gurobi"], "Solvers to try.", flag_values=values
    )
    flags.DEFINE_float(
        "time_limit", 60.0, "Seconds for each model of a train step.", flag_values=values
    )


def run(values: flags.FlagValues) -> int:
    """Measures and prints everything."""
    if values.out is not None and not Path(values.out).absolute().parent.is_dir():
        raise InputError(f"cannot write {values.out}: there is no such folder")
    limits = Limits(time_limit=values.time_limit)
    solves, agreements = [], []
    with Progress() as progress:
        progress.stage("equation switches on random graphs")
        solves += bench.switches(None, limits, values.backends)
        for name in bench.STEPS if values.steps is None else values.steps:
            progress.stage(f"train step {name}")
            graph = bench.step_graph(name)
            for solve in bench.steps(graph, limits, values.backends):
                solves.append(solve)
                progress(f"{name} {solve.form} {solve.backend}: {solve.status}")
            if name == bench.STEPS[0]:
                solves += bench.switches(graph, limits, values.backends)
        if values.graphs:
            progress.stage("random graphs")
            agreements = bench.agreement(values.graphs, values.backends, progress)
    console = shared.console()
    solve_table(solves).print(console)
    if agreements:
        agreement_table(agreements).print(console)
    if values.out is not None:
        Path(values.out).write_text(json.dumps(bench.as_json(solves, agreements), indent=1) + "\n")
    return 0 if not agreements or bench.all_agree(agreements) else 1
