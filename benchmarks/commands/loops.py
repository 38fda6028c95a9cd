"""What a scan keeps for its gradient: every policy of jax.checkpoint on its body, and our plans.

Each policy is put around the body of every scan of the step. Beside it stands our plan of the step
without any, which may add as much predicted time as the policy does; then plans within each of
--overheads. Totals are XLA's of the compiled step; times are predicted as by olla_xla pareto, and
on CPU measured too (in the file of --out).
"""

from __future__ import annotations

import json
import sys

from absl import flags

from benchmarks import loops as bench
from benchmarks.report.loops import loops_summary, loops_table
from benchmarks.schedule import parse_cases
from olla_xla import targets
from olla_xla.analysis.checkpointed import POLICIES
from olla_xla.cli import files
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError, OllaError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("out", None, "JSON file to write.", flag_values=values)
    flags.DEFINE_list(
        "cases", None, "model/batch_size/optimizer/target, several; a Llama and a GPT on h100.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_list("policies", None, "Of them, several; all by default.", flag_values=values)
    shared.define_overheads(values, "0.05,0.35")
    shared.define_format(values)
    shared.define_limits(values)
    values.set_default("time_limit", 60.0)


def run(values: flags.FlagValues) -> int:
    """Compiles every case in every way and prints a table for each; 1 if one fails."""
    options = shared.options(values)
    overheads = shared.overheads(values)
    cases = parse_cases(values.cases) if values.cases else bench.CASES
    files.check_writable(values.out)
    policies = values.policies or POLICIES
    if other := [policy for policy in policies if policy not in POLICIES]:
        raise InputError(f"policy {other[0]!r} is not known; use {', '.join(POLICIES)}")
    unknown = {case.target for case in cases} - set(targets.TARGETS)
    if unknown:
        raise InputError(f"target={min(unknown)!r} is not known; use {', '.join(targets.TARGETS)}")
    for name in {case.target for case in cases}:
        targets.prepare_environment(name)

    found, failed = [], 0
    with Progress() as progress:
        for case in cases:
            try:
                rows = bench.loops(
                    case,
                    options,
                    overheads,
                    lambda text, c=case: progress.stage(f"{c.name}: {text}"),
                    policies,
                )
            except OllaError as error:
                failed += 1
                print(f"{case.name}: {error}", file=sys.stderr)
                continue
            found.append((case, rows))
            progress(f"{case.name}: {loops_summary(rows)}")
            # A case takes minutes: what is there already is kept.
            if values.out is not None:
                files.write_text(values.out, json.dumps(bench.as_json(found), indent=1) + "\n")
    for case, rows in found:
        shared.print_table(values, loops_table(rows, case.name))
    return 1 if failed else 0
