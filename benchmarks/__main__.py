"""Runs a benchmark: `python -m benchmarks NAME --flag=value ...`, from a checkout's root.

Whatever it measures, the exit code is 1 where a referee refused a choice of the planner.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.commands import COMMANDS
from benchmarks.refused import watched
from olla_xla.cli.program import CommandLine

_SHOWN = 5

_program = CommandLine(
    name="python -m benchmarks",
    about="What plans of olla_xla save, what they take, and whether they hold.",
    package="benchmarks.commands",
    commands=COMMANDS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of them; see `CommandLine.main`."""
    with watched() as refused:
        code = _program.main(argv)
    if not refused:
        return code
    print(f"{len(refused):,} choices refused by the check:", file=sys.stderr)
    print(*refused[:_SHOWN], sep="\n", file=sys.stderr)
    return code or 1


if __name__ == "__main__":
    sys.exit(main())
