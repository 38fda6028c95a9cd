"""Runs a benchmark: `python -m benchmarks NAME --flag=value ...`, from a checkout's root."""

from __future__ import annotations

import sys

from benchmarks.commands import COMMANDS
from olla_xla.cli.program import Program

__all__ = ["main"]

main = Program(
    name="python -m benchmarks",
    about="What plans of olla_xla save, what they take, and whether they hold.",
    package="benchmarks.commands",
    commands=COMMANDS,
).main
"""Runs one of them; see `Program.main`."""

if __name__ == "__main__":
    sys.exit(main())
