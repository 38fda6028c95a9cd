"""Flags and steps that several commands have in common."""

from typing import Any

from absl import flags
from rich.console import Console

import olla_xla.targets as targets
from hlo.dumps.lowered import LoweredModule, read_lowered
from hlo.dumps.read import read_view
from hlo.module import HloError, Module
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError, ModuleFormatError
from olla_xla.problem.options import KNEE, METHODS, PLACEMENTS, SOLVERS, PlanOptions, parse_overhead
from olla_xla.targets.target import Target
from olla_xla.tools import models
from olla_xla.tools.models import BuiltModel


def define_hlo(values: flags.FlagValues) -> None:
    """Defines --hlo in `values`: the file of a dumped module."""
    Flags(values).text(
        "hlo", None, "File with a dumped module: HLO text, HLO proto or StableHLO; may be gzipped."
    )


def define_topology(values: flags.FlagValues) -> None:
    """Defines --topology in `values`: how a TPU's chips are connected."""
    Flags(values).text(
        "topology",
        "",
        "Number of TPU chips in each direction of their network, such as 2x4 (default: the usual).",
    )


def define_compile(values: flags.FlagValues) -> None:
    """Defines --compile (whether XLA compiles a dumped module first) and --topology in `values`."""
    define_topology(values)
    Flags(values).switch(
        "compile",
        True,
        "Compile the module of --hlo with XLA first if it has no schedule; with --nocompile "
        "the order of its instructions in the file is taken as the schedule.",
    )


def lowered_module(values: flags.FlagValues) -> LoweredModule | None:
    """Reads the module of --hlo if XLA is to compile it; prepares the environment for its devices.
    Returns None with --nocompile, or if the module has a schedule already. Raises ModuleFormatError
    if the file cannot be read as a module.
    """
    if not values.compile:
        return None
    try:
        module = read_lowered(values.hlo)
    except HloError as error:
        raise ModuleFormatError(str(error)) from error
    if module is not None:
        targets.prepare_environment(values.target, module.devices)
    return module


def scheduled_module(values: flags.FlagValues, path: str) -> Module:
    """Reads a dumped module for --target, with the order of the file as its schedule.
    Raises ModuleFormatError if the file cannot be read as a module.
    """
    try:
        return read_view(path, targets.TARGETS[values.target])
    except HloError as error:
        raise ModuleFormatError(str(error)) from error


def define_advice(values: flags.FlagValues) -> None:
    """Defines --advice in `values`: whether other ways to save memory are tried; on by default."""
    Flags(values).switch(
        "advice", True, "If the plan saves little, try other ways to save memory, one compile each."
    )


def define_model(values: flags.FlagValues) -> None:
    """Defines the flags --model, --batch_size and --optimizer in `values`, which name a step."""
    define_step(values)
    Flags(values).whole("batch_size", 4, "Number of examples in a batch.", least=1)


def define_step(values: flags.FlagValues) -> None:
    """Defines the flags --model and --optimizer in `values`, for a step of any batch size."""
    define = Flags(values)
    define.text(
        "model", None, "Example model's name (in a checkout), or your own package.module:function."
    )
    define.text("optimizer", "adam", "Optimizer with which the model is trained.")


def define_target(
    values: flags.FlagValues, what: str = "Device to compile for.", default: str = "cpu"
) -> None:
    """Defines --target in `values`, the device to compile for; `what` is the text of its help."""
    Flags(values).one_of("target", default, list(targets.TARGETS), what)


def loaded_model(values: flags.FlagValues, progress: Progress) -> tuple[BuiltModel, Target]:
    """Builds the model of --model and finds the device of --target; prepares the environment."""
    targets.prepare_environment(values.target)
    progress.stage("loading JAX and the model")
    target = targets.target(values.target)
    return built_model(values), target


def built_model(values: flags.FlagValues) -> BuiltModel:
    """Builds the train step that --model, --batch_size and --optimizer name."""
    return models.build(values.model, batch_size=values.batch_size, optimizer=values.optimizer)


def define_largest(values: flags.FlagValues, default: int, what: str, least: int = 1) -> None:
    """Defines --largest in `values`: how many rows of a table to print; `what` is its help."""
    Flags(values).whole("largest", default, what, least=least)


def define_limits(values: flags.FlagValues) -> None:
    """Defines --time_limit, --step_limit and --seed, of the search for a plan, in `values`."""
    define = Flags(values)
    default = PlanOptions()
    define.real("time_limit", 20.0, "Search time limit (s), unless only --step_limit is given.")
    define.whole(
        "step_limit",
        default.step_limit,
        "Limit on the number of search steps; with it, equal seeds give equal plans.",
    )
    define.whole("seed", default.seed, "Seed of the random numbers of the search.", least=0)


class _Overhead(flags.ArgumentParser[float | str]):
    """Parser of a part of a step's time: 0.05, 5%, or "knee", beyond which time saves little."""

    syntactic_help = 'a fraction of the step\'s time: 0.05 or "5%"; or "knee"'

    def parse(self, argument: str | float) -> float | str:
        return KNEE if argument == KNEE else parse_overhead(argument)

    def flag_type(self) -> str:
        return "part"


def define_overhead(values: flags.FlagValues, default: float | None, what: str) -> None:
    """Defines --max_overhead in `values`, time that recomputation may add; `what` is its help."""
    flags.DEFINE(_Overhead(), "max_overhead", default, what, values)


def define_recomputation(values: flags.FlagValues) -> None:
    """Defines --memory_budget, --max_overhead, --loops and --collectives in `values`."""
    define = Flags(values)
    define.text(
        "memory_budget",
        None,
        'Most memory that the step may use, such as "10GiB"; values are recomputed if needed.',
    )
    define_overhead(
        values,
        None,
        "Most predicted time that recomputation may add: 0.05 or 5% of the step's time, or "
        '"knee": as long as more time saves much memory.',
    )
    define.switch(
        "loops", True, "Allow backward loops to recompute values in place of reading stored ones."
    )
    define.switch(
        "collectives",
        False,
        "Allow loops to run collectives a second time where recomputed values need them.",
    )


def define_method(values: flags.FlagValues) -> None:
    """Defines --method, --backend, --gap and --early_updates in `values`: how orders are found."""
    define = Flags(values)
    define.one_of(
        "method",
        "search",
        METHODS,
        'Method that orders the operators: "search", or "ilp" (OLLA\'s integer program).',
    )
    define.one_of("backend", "highs", SOLVERS, "Solver of the integer program (--method=ilp).")
    define.real("gap", 0.0, "Fraction above the lower bound at which --method=ilp may stop.")
    define.switch(
        "early_updates",
        False,
        "With --method=ilp: add the OLLA paper's control edges, which make weight updates run "
        "early. The integer programs become smaller, but may exclude the best order.",
    )


def define_placement(values: flags.FlagValues) -> None:
    """Defines --placement in `values`: what chooses buffer addresses."""
    Flags(values).one_of(
        "placement",
        "xla",
        PLACEMENTS,
        'What chooses buffer addresses: "xla", or "own" for olla_xla itself (CPU only).',
    )


def define_overheads(values: flags.FlagValues, default: str) -> None:
    """Defines --overheads in `values`: limits on the predicted added time, one for each plan."""
    Flags(values).names(
        "overheads",
        default,
        "Limits on the predicted added time, as fractions of the step's time; each gives one plan, "
        "and 0 allows no recomputation.",
    )


def define_format(values: flags.FlagValues) -> None:
    """Defines --format in `values`: text or Markdown, for printed tables."""
    Flags(values).one_of("format", "text", ["text", "markdown"], "Format of the printed table.")


def options(values: flags.FlagValues) -> PlanOptions:
    """Makes the planner's options from those flags that the command has; defaults for the others.
    If only --step_limit is given, there is no time limit. Raises LimitError for a limit out of
    range; InputError if a value cannot be read, or --topology is given for no TPU.
    """
    names = (
        "time_limit", "step_limit", "seed", "memory_budget", "max_overhead", "loops", "collectives",
        "method", "backend", "gap", "early_updates", "placement",
    )  # fmt: skip
    if "topology" in values and values.topology and targets.TARGETS[values.target] != "tpu":
        raise InputError(
            f"--topology={values.topology} is for TPUs, not for {values.target}; leave it out"
        )
    given: dict[str, Any] = {name: values[name].value for name in names if name in values}
    if given.get("step_limit") is not None and not values["time_limit"].present:
        given["time_limit"] = None  # steps alone end the search, on any machine the same
    return PlanOptions(**given)


def overheads(values: flags.FlagValues) -> list[float]:
    """Parses --overheads: fractions of the step's predicted time that plans may add.
    Raises InputError where one is no number, LimitError where one is out of range.
    """
    limits = [parse_overhead(text, "--overheads") for text in values.overheads]
    for overhead in limits:
        PlanOptions(max_overhead=overhead)
    return limits


def print_table(values: flags.FlagValues, table: Table) -> None:
    """Prints a table to stdout, as text or Markdown as --format says; adds it to `--json`."""
    if values.format == "markdown":
        print(table.markdown())
    else:
        table.print(console())


def console() -> Console:
    """Makes a console that prints to stdout; it wraps lines only if that is a terminal."""
    created = Console(highlight=False)
    return created if created.is_terminal else Console(highlight=False, soft_wrap=True)
