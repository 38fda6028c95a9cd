"""Checks a rejected plan again; nothing is compiled.

If olla_xla's check rejects a plan, the step runs XLA's own executable, and a warning names the FILE
that the plan and both modules were written to. Exit code 1 if the check still rejects the plan.
"""

from pathlib import Path

from absl import flags

from hlo.module import HloError
from olla_xla.cli.commands import shared
from olla_xla.compile import objection
from olla_xla.errors import InputError

OPERANDS = ("FILE",)


def define_flags(values: flags.FlagValues) -> None:
    """Defines nothing: the command has no flags of its own."""


def run(values: flags.FlagValues, path: str) -> int:
    """Repeats our check of a plan that it rejected, as saved in a file; returns 0.
    Raises CheckError if it still rejects the plan.
    """
    try:
        objection.load(Path(path)).check()
    except HloError as error:
        raise InputError(f"{path} contains no valid HLO module: {error}") from error
    shared.console().print(f"the check now accepts the rejected plan in {path}", markup=False)
    return 0
