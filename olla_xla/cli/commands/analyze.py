"""Says what is in memory at the peak of one train step, and why.

With --model the step is compiled for --target; nothing is run, and no plan is needed. With --plan
the planned order is shown too.

With --hlo a dumped module is analysed instead: HLO text or proto, or StableHLO, also gzipped. A
module that XLA dumped before its pipeline is compiled for --target. A module that has a schedule
already, and any module with --nocompile, is analysed in the order of the file; its totals are
predicted, and it is not known which arguments were meant to be donated.

With --model the step is also compiled with each remedy that may help: a plan, recomputation,
donation, pieces (`olla_xla.fission`). A line gives the results. --noadvice turns that off.

--html writes the report to a file, --figure draws memory over the schedule as PNG, SVG or PDF, and
--json=FILE writes what `olla_xla diff` reads.
"""

from typing import Any

from absl import flags

import olla_xla.targets as targets
from olla_xla.analysis.analysis import Analysis, Executable, analyze_module
from olla_xla.analysis.terminal import text
from olla_xla.cli import document, files
from olla_xla.cli.commands import shared
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.planner import apply_plan, plan_module
from olla_xla.tools.baseline import analyze_dump, analyze_model
from olla_xla.tools.step import plan_progress


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla analyze` in `values`."""
    define = Flags(values)
    shared.define_model(values)
    shared.define_hlo(values)
    shared.define_compile(values)
    shared.define_target(values)
    define.switch("plan", False, "Also plan the step, and show its memory with the plan.")
    shared.define_recomputation(values)
    shared.define_limits(values)
    shared.define_advice(values)
    shared.define_largest(values, 15, "Number of tensors, modules and source lines to list.")
    define.text("html", None, "HTML file to write a report to.")
    define.text("figure", None, "File to write a figure of memory over time to: PNG, SVG or PDF.")


def run(values: flags.FlagValues) -> int:
    """Analyses a step or module, prints the report and writes the files asked for; returns 0.
    Raises InputError if not exactly one of --model and --hlo is given, or a file is not writable.
    """
    options = shared.options(values)
    if (values.model is None) == (values.hlo is None):
        raise InputError("give either --model=NAME or --hlo=FILE; see olla_xla analyze --help")
    paths = (values.html, values.figure)
    for path in paths:  # fails before compiling, which may take minutes
        files.check_writable(path)
    targets.prepare_environment(values.target)
    with Progress() as progress:
        analysis = (_of_hlo if values.model is None else _of_model)(values, options, progress)
        progress.stage("writing")
        for path, write in zip(paths, (analysis.html, analysis.figure), strict=True):
            if path is not None:
                write(path)
    document.add(**analysis.document())
    console = shared.console()
    width = console.width if console.is_terminal else None
    console.print(text(analysis, values.largest, width), markup=False, soft_wrap=True)
    return 0


def _of_model(values: flags.FlagValues, options: Any, progress: Progress) -> Analysis:
    model, target = shared.loaded_model(values, progress)
    progress.stage("tracing, compiling")
    advice = options if values.advice else None
    with plan_progress(progress.stage):
        return analyze_model(model, target, options if values.plan else None, advice)


def _of_hlo(values: flags.FlagValues, options: Any, progress: Progress) -> Analysis:
    progress.stage(f"reading {values['hlo'].value}")
    lowered = shared.lowered_module(values)
    if lowered is not None:
        target = targets.target(values.target, lowered.devices, values.topology)
        return analyze_dump(lowered, target, options if values.plan else None, progress.stage)
    platform = targets.TARGETS[values.target]
    module = shared.scheduled_module(values, values.hlo).data
    plan = planned = None
    if values.plan:
        progress.stage("planning")
        plan = plan_module(module, options, target=platform, progress=progress)
        planned = Executable(apply_plan(module, plan))
    progress.stage("analysing")
    return analyze_module(
        Executable(module), platform, planned=planned, plan=plan, own_order="order in the file"
    )
