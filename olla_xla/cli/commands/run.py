"""Runs an unchanged training script, plans the functions that it jits, and says what that saved.

`olla_xla run --max_overhead=5% train.py --steps=100`, or `olla_xla run -m package.train`. Flags
before the script are olla_xla's, all after it are the script's. The script sees the arguments, the
environment and the modules that Python alone gives it, except that `jax.jit` plans the functions
that it is given, also by libraries such as Flax, Equinox and Keras. Functions of JAX itself are not
planned. Exit code, errors and signals are the script's own.

At the end one table goes to standard error: each function's memory by XLA and planned, the
predicted time that its plan adds, and the seconds of its first call. --analyze then compiles each
again and tries what else would help; --html=FOLDER also writes a report for each.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from absl import flags
from rich.console import Console

from olla_xla.cli import files
from olla_xla.cli.flags import Flags
from olla_xla.cli.program import Uncaught
from olla_xla.cli.report.tables import Table
from olla_xla.errors import InputError
from olla_xla.problem.options import KNEE, PlanOptions, parse_overhead, parse_positive
from olla_xla.tools import script_jit
from olla_xla.tools.after_jax import after_jax

SCRIPT = ("SCRIPT|-m MODULE", "[ARGUMENTS]")

_SHOWN = 20
"""Rows of the table at most, those that take most first."""

_HEADINGS = ("function:", "arguments:", "XLA, MB", "planned", "time +%", "call 1, s", "would help:")


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla run` in `values`."""
    define = Flags(values)
    define.text(
        "max_overhead",
        None,
        "Most predicted time that recomputation may add to a function: 0.05 or 5% of its time, or "
        '"knee": as long as more time saves much memory.',
    )
    flags.DEFINE_multi_string(
        "memory_budget",
        [],
        "Most memory that each function may use (10GiB), or only the named one (train_step=10GiB).",
        values,
    )
    define.text("host_budget", None, "Most host memory that each function may use, such as 64GiB.")
    define.text(
        "only",
        "",
        "Plan only functions whose full name (module.function) matches this regular expression "
        "anywhere.",
    )
    define.switch("analyze", False, "Print at the end which other measures would save memory.")
    define.text("html", None, "Existing folder to write an HTML report on each function to.")


def run(values: flags.FlagValues, *command: str) -> int:
    """Runs a script in which `jax.jit` plans, then prints a table; returns its exit code.
    Raises InputError if a flag or the script is missing or wrong, Uncaught with what it raises.
    """
    options_of, start = _options_of(values), script_start(command)
    if values.html is not None:
        files.check_writable(os.path.join(values.html, "report"))
    signatures: list[script_jit.Signature] = []
    after_jax(lambda: script_jit.install(options_of, signatures))
    try:
        return script_code(start)
    finally:
        _print(signatures, values)


def _options_of(values: flags.FlagValues) -> Callable[[str, str], dict[str, Any] | None]:
    """Returns a function: (a function's name, the name with its module) -> options of its plan.
    It returns None where the function is not to be planned. Raises InputError for wrong flags.
    """
    budgets: dict[str, str] = {}
    for text in values.memory_budget:
        name, _, size = text.rpartition("=")
        budgets[name] = size
    shared: dict[str, Any] = {}
    if values.max_overhead is not None:
        part = values.max_overhead
        shared["max_overhead"] = part if part == KNEE else parse_overhead(part, "--max_overhead")
    try:
        only = re.compile(values.only)
    except re.error as error:
        raise InputError(f"--only={values.only!r} is not a regular expression: {error}") from error
    for size in (None, *budgets.values()):
        PlanOptions(memory_budget=size, **shared)  # raises an InputError where one is wrong
    if values.host_budget is not None:
        if shared.get("max_overhead") == KNEE:
            raise InputError("with --host_budget, give --max_overhead as a number, not knee")
        shared["host_budget"] = parse_positive(values.host_budget, "--host_budget")

    def options_of(name: str, full_name: str) -> dict[str, Any] | None:
        if not only.search(full_name):
            return None
        budget = budgets.get(name, budgets.get(""))
        return shared if budget is None else {**shared, "memory_budget": budget}

    return options_of


def script_code(start: Callable[[], object]) -> int:
    """Calls `start`, which runs a script; returns its exit code. If the script exits with a text,
    prints that and returns 1. What it raises, except SystemExit, is raised inside an Uncaught.
    """
    try:
        start()
        return 0
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        raise Uncaught(error.with_traceback(_of_script(error.__traceback__))) from None
    finally:
        sys.stdout.flush()


def script_start(command: Sequence[str]) -> Callable[[], object]:
    """Returns a function that runs a script in this process as Python does; it sets `sys.argv` and
    the import path. `command`: the script, or "-m" and a module; then its arguments. Raises
    InputError if the script is missing.
    """
    is_module, command = command[:1] == ("-m",), command[command[:1] == ("-m",) :]
    if not command:
        raise InputError("give the path of a script, or -m MODULE; see olla_xla run --help")
    name = command[0]
    if not is_module and not os.path.exists(name):
        raise InputError(f"there is no script {name}; write flags before it, as --name=value")
    folder = name if os.path.isdir(name) else os.path.dirname(name)

    def start() -> None:
        sys.argv = list(command)
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd() if is_module else os.path.realpath(folder)
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")

    return start


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Cuts our frames and runpy's off a traceback, so that it begins in the script."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours and trace.tb_next:
        trace = trace.tb_next
    return trace


def _print(found: Sequence[script_jit.Signature], values: flags.FlagValues) -> None:
    """Prints the table of planned functions to standard error, and which names of --memory_budget
    none of them has. With --analyze or --html it compiles each again, for advice or a report.
    """
    names = {signature.event.function for signature in found}
    for name in filter(None, (text.rpartition("=")[0] for text in values.memory_budget)):
        if name not in names:
            text = f"olla_xla run: --memory_budget names {name!r}, but no such function was planned"
            print(text, file=sys.stderr)
    largest = sorted(found, key=lambda s: -(s.event.xla_bytes or 0))[:_SHOWN]
    title = f"{sum(s.event.planned for s in found)} of {len(found)} compiled functions use a plan"
    title += f"; the {_SHOWN} largest:" if len(found) > _SHOWN else ""
    rows = [_row(s, _analyzed(s, k, values)) for k, s in enumerate(largest, 1)]
    console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
    Table(_HEADINGS, rows, f"olla_xla run: {title}").print(console)


def _row(signature: script_jit.Signature, advice: str) -> tuple[str, ...]:
    event = signature.event
    sizes = ("-" if b is None else f"{b / 2**20:,.1f}" for b in (event.xla_bytes, event.bytes))
    time = "-" if event.overhead is None else f"{100 * event.overhead:.1f}"
    advice = "; ".join(filter(None, (event.host, advice or event.help or event.reason)))
    return event.function, signature.text, *sizes, time, f"{signature.seconds:.1f}", advice


def _analyzed(signature: script_jit.Signature, number: int, values: flags.FlagValues) -> str:
    """Says what would help a function, or the error of finding out; "" if nothing, if it was never
    called, or without --analyze and --html. With --html also writes its report, number `number`.
    """
    if not values.analyze and values.html is None:
        return ""
    try:
        if (analysis := signature.analyze()) is None:
            return ""
        if values.html is not None:
            name = re.sub(r"\W+", "_", signature.event.function)
            analysis.html(os.path.join(values.html, f"{number:02d}_{name}.html"))
    except Exception as error:  # the script's own end is what counts
        return f"not analysed: {type(error).__name__}: {error}"
    helpful = () if analysis.remedy is None else analysis.remedy.helpful
    return ", ".join(f"{trial.setting}: {trial.bytes / 2**20:,.1f} MB" for trial in helpful)
