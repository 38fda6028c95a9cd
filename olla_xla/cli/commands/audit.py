"""Checks executables of plain jax.jit: that each read finds what was written there last.

Give one of --model (compiled for --target), --hlo (a dumped module: compiled for --target if it has
no schedule; or a file of --zip), and --script, of which each executable is audited that it compiles
where it runs.

Arrays are followed through the bytes that XLA assigned, asynchronous operations to their end, and
on a GPU each thunk, and the address of each slice that a loop copies. The report says what was
followed, what was taken on trust (the code of kernels), and what is wrong, with source lines. The
exit code is 1 if anything is wrong. --zip writes a file for an issue of XLA's. With --before, --hlo
is read as it is, and its results are compared.
"""

from __future__ import annotations

import collections
import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from absl import flags

import olla_xla.targets as targets
from hlo.buffer_assignment import dumped_parts
from hlo.late import late
from hlo.module import HloError
from olla_xla.cli import document, files
from olla_xla.cli.commands import shared
from olla_xla.cli.commands.run import script_code, script_start
from olla_xla.cli.flags import Flags
from olla_xla.cli.report.progress import Progress
from olla_xla.errors import InputError
from olla_xla.tools import dumped, models
from olla_xla.tools.after_jax import after_jax
from olla_xla.tools.audit import audit, reduce, report
from olla_xla.tools.audit.every_compile import every_compile

if TYPE_CHECKING:
    import jax
else:
    jax = late("jax")  # which a script is to import


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags of the command `olla_xla audit` in `values`."""
    define = Flags(values)
    shared.define_model(values)
    shared.define_hlo(values)
    shared.define_compile(values)
    define.text("script", None, "Script, or -m MODULE, to run and audit, with its arguments.")
    shared.define_target(values)
    define.text("before", None, "Dump from before some of XLA's passes, to compare results with.")
    define.text(
        "zip", None, "ZIP file to write the executable to; of several, the first that has errors."
    )
    define.switch(
        "reduce", False, "With --zip: write only instructions that reproduce the first error."
    )


def run(values: flags.FlagValues) -> int:
    """Audits executables of a model, a file or a script, prints reports, writes the file of --zip.
    Returns the exit code: a script's own if not 0, else 1 if an executable has errors, else 0.
    Raises InputError if not exactly one of --model, --hlo and --script is given, or one cannot be
    used; Uncaught with what the script raises.
    """
    given = [name for name in ("model", "hlo", "script") if values[name].value is not None]
    if len(given) != 1:
        raise InputError("give exactly one of --model=NAME, --hlo=FILE and --script=FILE")
    if values.before is not None and values.script is not None:
        raise InputError("give --before with --model or --hlo: a script has many executables")
    files.check_writable(values.zip)
    code, failed = 0, list[str]()
    reports: list[report.Audit] = []
    if values.script is not None:
        try:
            code = _of_script(values.script, reports, failed)
        finally:
            wrong = _print(reports, failed)
    else:
        with Progress() as progress:
            progress.stage("compiling")
            reports.append((_of_model if values.model is not None else _of_hlo)(values))
        wrong = _print(reports, failed)
    if values.zip is not None and reports:
        kept = (wrong or reports)[0]
        (reduce.reduced(kept) if values.reduce else kept).save(values.zip)
    return code or int(bool(wrong))


def _of_script(script: str, found: list[report.Audit], failed: list[str]) -> int:
    start = script_start(tuple(shlex.split(script)))
    with contextlib.ExitStack() as stack:
        audited = (found.append, failed.append)
        after_jax(lambda: stack.enter_context(every_compile(*audited)))
        return script_code(start)


def _of_model(values: flags.FlagValues) -> report.Audit:
    targets.prepare_environment(values.target)
    model = shared.built_model(values)
    with models.tracing(values.model):
        jitted = jax.jit(model.step, **model.jit_options)
        lowered = jitted.lower(*targets.target(values.target).place(model.arguments))
    return audit.audit(lowered, before=values.before)


def _of_hlo(values: flags.FlagValues) -> report.Audit:
    path, before = str(values["hlo"].value), audit.dumped_before(values.before)
    if (saved := report.saved_parts(path)) is not None:
        return audit.audit_parts(saved._replace(before=before or saved.before))
    lowered = None if values.before else shared.lowered_module(values)
    platform = targets.TARGETS[values.target]
    if lowered is not None:
        target = targets.target(values.target, lowered.devices, values.topology)
        stage = dumped.DumpedStage(lowered, target)
        return audit.audit_compiled(stage.compiled(), stage.lowered.compiler_ir())
    try:
        module, assignment = dumped_parts(path)
    except HloError:
        module = assignment = b""
    if not assignment:  # a module alone, perhaps as text
        module = shared.scheduled_module(values, path).data
    return audit.audit_parts(report.ExecutableParts(platform, module, assignment, before=before))


def _print(found: Sequence[report.Audit], failed: Sequence[str]) -> list[report.Audit]:
    """Prints reports, and the lines on executables that were not audited (`failed`).
    Of several reports it prints those with errors, and sums of all. Returns those with errors.
    """
    document.add(executables=[one.document() for one in found], failed=list(failed))
    wrong = [one for one in found if not one]
    lines = [str(one) for one in (found if len(found) == 1 else wrong)]
    if len(found) != 1:
        lines.append(f"{len(found):,} executables were checked, {len(wrong):,} of them have errors")
        lines.append(f"  checked: {_total(one.followed for one in found)}")
        lines.append(f"  code of kernels, not checked: {_total(one.trusted for one in found)}")
        left = collections.Counter(line for one in found for line in one.left)
        lines += [f"  not checked, {n:,} times: {line}" for line, n in left.items()]
    for line in (*lines, *failed):
        shared.console().print(line, markup=False, soft_wrap=True)
    return wrong


def _total(counts: Iterable[Mapping[str, int]]) -> str:
    total = collections.Counter[str]()
    for one in counts:
        total.update(one)
    return ", ".join(f"{n:,} {what}" for what, n in total.items() if n)
