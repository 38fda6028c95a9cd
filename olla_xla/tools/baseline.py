"""Analyses of steps, and a step compiled again to compare it with an earlier snapshot."""

from collections.abc import Callable

import jax

from hlo.dumps.lowered import LoweredModule
from olla_xla.analysis.analysis import Analysis, Executable, analyze_module
from olla_xla.analysis.analyze import analyze
from olla_xla.analysis.difference import Difference, Snapshot, difference
from olla_xla.compile.assignment import read_assignment
from olla_xla.errors import InputError, OllaError
from olla_xla.problem.options import PlanOptions
from olla_xla.targets.target import Target
from olla_xla.tools.dumped import DumpedStage
from olla_xla.tools.models import BuiltModel, tracing
from olla_xla.tools.step import plan_model

Progress = Callable[[str], None]


def analyze_model(
    model: BuiltModel,
    target: Target,
    options: PlanOptions | None,
    advice: PlanOptions | None = None,
) -> Analysis:
    """Analyses the memory of a model's step compiled for a target.
    With `options`, of a plan, its memory with that plan is analysed too. With `advice` it is tried,
    by plans of these options, what else saves memory: recomputation, donation, pieces.
    """
    with tracing(model.name):
        return analyze(
            jax.jit(model.step, **model.jit_options),
            *model.arguments,
            target=target,
            plan=False if options is None else vars(options),
            title=model.titled(target.name),
            advice=False if advice is None else vars(advice),
        )


def analyze_dump(
    module: LoweredModule, target: Target, options: PlanOptions | None, progress: Progress
) -> Analysis:
    """Compiles a module that was dumped before XLA's pipeline, and analyses its memory.
    Raises InputError if XLA cannot read it, OllaError if it cannot compile it, or planning failed.

    Args:
      module: the dump. target: what to compile it for. options: of a plan, None for none.
      progress: called with one line at each stage.
    """
    stage = DumpedStage(module, target)

    progress("compiling")
    own, plan, planned = Executable(*read_assignment(stage.compiled(), target.platform)), None, None
    if options is not None:
        progress("compiling and planning")
        outcome = stage.planned(options, None)
        planned, plan = (
            Executable(*read_assignment(outcome.compiled, target.platform)),
            outcome.plan,
        )
        if plan is None:
            raise OllaError(f"planning failed: {outcome.reason}")
    title = f"{module.name}, {target.name}"
    return analyze_module(own, target.platform, title=title, planned=planned, plan=plan)


def compare_with(
    baseline: Snapshot, model: BuiltModel, target: Target, options: PlanOptions, stage: Progress
) -> Difference:
    """Compiles a model's step, and finds how its memory differs from that of an earlier one.

    Args:
      baseline: memory of that: of a plan, which is then made anew, or of an analysis.
      model: the step. target: what to compile it for.
      options: of the plan. stage: called with one line at each stage.

    Raises InputError if the baseline is an analysis of another model, batch size, optimizer or
    target; OllaError if planning failed.
    """
    if baseline.of_plan:
        result = plan_model(model, target, options, stage=stage, progress=stage, compare=False)
        return difference(baseline, Snapshot.of_plan_file(result.plan, "now"))
    title = model.titled(target.name)
    if title != baseline.title:
        raise InputError(
            f"{baseline.name} was made for {baseline.title}, not for {title}; give the same flags"
        )
    stage("tracing, compiling")
    now = analyze_model(model, target, options if baseline.planned else None)
    return difference(baseline, Snapshot.of_analysis(now, "now"))
