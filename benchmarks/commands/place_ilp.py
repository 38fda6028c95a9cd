"""Places by the OLLA paper's integer programs: of a recorded trace, or of a planned train step.

With --trace the blocks of a CSV file, as `olla_xla place` takes them, are placed by the location
program. With --case or --hlo the order of a step is planned by --method=ilp, and the tensors of its
entry computation are placed in one arena under that order, beside the exact search; small steps are
also ordered and placed at once. XLA places buffers by a rule of its own, so these are a report.
"""

from __future__ import annotations

from absl import flags

from benchmarks.driver import Column, count, fixed, table_of
from benchmarks.place import planned_step
from benchmarks.place_ilp import FORMS, Programs, place_by_programs
from benchmarks.place_ilp.arenas import arenas
from benchmarks.schedule import parse_cases
from hlo.dumps.read import read_module
from olla_xla import targets
from olla_xla.cli.commands import place, shared
from olla_xla.cli.report.plans import proofs_table
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.place.trace import read_trace
from olla_xla.planner import apply_plan, plan_module
from olla_xla.problem.options import PlanOptions
from olla_xla.solvers.solve import BACKENDS

_PLACES = (
    Column("arena:", "way"),
    Column("bytes", lambda row: row.height or None, count),
    Column("bound", "bound", count),
    Column("live", "live_bytes", count),
    Column("status:", "status"),
    Column("seconds", "seconds", fixed(1)),
    Column("note:", "message"),
)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_string("trace", None, "CSV file with the memory blocks.", flag_values=values)
    flags.DEFINE_string("out", None, "CSV file to write, with offsets.", flag_values=values)
    flags.DEFINE_integer("capacity", None, "Most bytes to use.", flag_values=values)
    flags.DEFINE_string("case", None, "model/batch_size/optimizer/target.", flag_values=values)
    flags.DEFINE_string("hlo", None, "A scheduled module, of a CPU.", flag_values=values)
    flags.DEFINE_float("time_limit", 10.0, "Seconds of each way.", flag_values=values)
    flags.DEFINE_float(
        "gap", 0.0, "Part of its bound above which the program may end.", flag_values=values
    )
    flags.DEFINE_enum("backend", "highs", BACKENDS, "Solves the programs.", flag_values=values)
    flags.DEFINE_enum(
        "form", None, list(FORMS),
        "Of the location program; no-overlap is CP-SAT's own, its default.",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_bool(
        "start", True, "Whether programs begin at the best packing of the greedy rules.",
        flag_values=values,
    )  # fmt: skip


def run(values: flags.FlagValues) -> int:
    """Places and prints what came of it."""
    if sum(v is not None for v in (values.trace, values.case, values.hlo)) != 1:
        raise InputError("give one of --trace=FILE.csv, --case=mlp/32/adam/cpu and --hlo=FILE")
    if values.trace is not None:
        programs = Programs(values.backend, values.form, start=values.start)
        problem = read_trace(values.trace, capacity=values.capacity)
        packing = place_by_programs(problem, programs=programs, time_limit=values.time_limit)
        return place.report(values, problem, packing)
    options = PlanOptions(
        time_limit=values.time_limit, method="ilp", backend=values.backend, gap=values.gap
    )
    console = shared.console()
    with Progress() as progress:
        progress.stage("the order")
        if values.case is not None:
            (case,) = parse_cases([values.case])
            targets.prepare_environment(case.target)
            step = planned_step(case, options)
            module, platform, proofs = step.module, step.platform, ()
        else:
            own, platform = read_module(values.hlo), "cpu"
            plan = plan_module(own, options, target=platform, progress=progress)
            module, proofs = apply_plan(own, plan), plan.proofs
        progress.stage("places by the integer program")
        rows = list(
            arenas(module, platform, values.backend, values.time_limit, progress, values.gap)
        )
    if proofs:
        proofs_table(proofs).print(console)
    title = "places in one arena, under the planned order; XLA places by its own rule"
    table_of(rows, _PLACES, title).print(console)
    return 0
