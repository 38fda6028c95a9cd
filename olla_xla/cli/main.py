"""The command line: `olla_xla COMMAND --flag=value ...`.

Exit codes: 0 done; 1 a check failed, or planning did; 2 misuse, with one line that says what to do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from olla_xla.cli.commands import COMMANDS
from olla_xla.errors import InputError, OllaError, VersionError

__all__ = ["main"]

_LIST_TARGETS = "--list_targets"
_HELP = ("-h", "--help", "-help", "--helpfull", "--helpshort", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: program name, command and flags; the process's own by default.

    Returns:
      The exit code.
    """
    _, *arguments = sys.argv if argv is None else argv
    if not arguments or arguments[0] in _HELP:
        print(_overview())
        return 0 if arguments else 2
    if _LIST_TARGETS in arguments:
        _print_targets()
        return 0
    two = " ".join(arguments[:2])
    words = 2 if two in COMMANDS else 1
    name, rest = " ".join(arguments[:words]), arguments[words:]
    if name not in COMMANDS:
        return _failed(
            "olla_xla", InputError(f"no command {name!r}; commands are {', '.join(COMMANDS)}")
        )
    program = f"olla_xla {name}"
    try:
        command = importlib.import_module(f"olla_xla.cli.commands.{name.replace(' ', '_')}")
        values = flags.FlagValues()
        command.define_flags(values)
        if any(argument in _HELP for argument in rest):
            print(_help(program, command, values))
            return 0
        operands = getattr(command, "OPERANDS", ())
        return command.run(values, *_parsed(values, program, rest, operands))
    except OllaError as error:
        return _failed(program, error)
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130


def _parsed(
    values: flags.FlagValues, program: str, arguments: Sequence[str], operands: Sequence[str]
) -> Sequence[str]:
    """Reads the flags into `values`; the operands that are left, as many as the command has."""
    try:
        left = values([program, *arguments])[1:]
    except flags.Error as error:
        raise InputError(f"{_one_line(error)}; see {program} --help") from error
    if len(left) > len(operands):
        extra = left[len(operands)]
        raise InputError(f"unexpected argument {extra!r}; flags are --name=value")
    if len(left) < len(operands):
        raise InputError(f"give {' and '.join(operands)}; see {program} --help")
    return left


def _failed(program: str, error: OllaError) -> int:
    print(f"{program}: {_one_line(error)}", file=sys.stderr)
    return 2 if isinstance(error, InputError | VersionError) else 1


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _print_targets() -> None:
    # Targets take JAX, which no other word of this module does.
    shared = importlib.import_module("olla_xla.cli.commands.shared")
    report = importlib.import_module("olla_xla.cli.report.target_list")
    report.targets_table().print(shared.console())


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "Plans the memory of JAX programs: a better execution order, identical results.",
            "",
            "olla_xla COMMAND [--flag=value ...]",
            "",
            *lines,
            "",
            "olla_xla COMMAND --help lists the flags of a command, olla_xla --list_targets what",
            "--target can be.",
        ]
    )


def _help(program: str, command: Any, values: flags.FlagValues) -> str:
    lines = [f"{program} [--flag=value ...]", "", (command.__doc__ or "").strip(), ""]
    for name in sorted(values):
        flag = values[name]
        default = "" if flag.default in (None, "") else f" (default {flag.default_as_str})"
        lines.append(f"  --{'[no]' if flag.boolean else ''}{name}: {flag.help}{default}")
    return "\n".join(lines)
