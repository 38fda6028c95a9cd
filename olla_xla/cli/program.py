"""A program of several commands: `PROGRAM COMMAND --flag=value ...`.

Exit codes: 0 done; 1 a check failed, or planning did; 2 misuse, with one line on stderr that says
what to do; 130 interrupted; 141 what read the output has closed it.
"""

import contextlib
import dataclasses
import difflib
import gc
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from absl import flags

from hlo.gc_pause import without_collection
from olla_xla.cli import document, files
from olla_xla.errors import InputError, OllaError, VersionError
from olla_xla.problem.whole_file import write_text
from olla_xla.version import __version__, old_jax

_LIST_TARGETS, _LIST_MODELS = "--list_targets", "--list_models"
_VERSION = "--version"
_TO_STDOUT = "-"
_CLOSED_PIPE = 141  # as a shell has it of a process that SIGPIPE ended
_FULL_HELP = "--helpfull"
_HELP = ("-h", "--help", "-help", _FULL_HELP, "--helpshort", "help")

FOR_DEVELOPERS = frozenset(
    ("backend", "early_updates", "form", "loops", "method", "seed", "step_limit")
)
"""Flags that few users need: only --helpfull shows them, --help does not."""


class Uncaught(BaseException):
    """Carries an exception of a user's script past our handlers; `CommandLine.main` raises it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A program of several commands, such as `olla_xla`.

    Attributes:
      name: the name that users type. about: the first line of the overview.
      package: the package with a module for each command.
      commands: name of a command -> one line that says what it does.
      further: names of commands that the overview lists last, under a heading of their own.
      of_any_jax: names of commands that also run with a JAX too old for the others.
      others: a hint that is added to the message for an unknown command, or "".
    """

    name: str
    about: str
    package: str
    commands: Mapping[str, str]
    further: Collection[str] = ()
    of_any_jax: Collection[str] = ()
    others: str = ""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command that `argv` names, or prints help, a version or a list that it asks for.
        An OllaError is printed in one line.

        Args:
          argv: program name, command and flags; the process's own by default.

        Returns:
          The exit code. What a user's script raised is raised, of any type.
        """
        try:
            code = self._main(argv)
            sys.stdout.flush()
            return code
        except Uncaught as uncaught:
            error = uncaught.error
        except BrokenPipeError:  # what read the output has ended, as `head` does
            sys.stdout = open(os.devnull, "w")  # the interpreter flushes it at its end
            return _CLOSED_PIPE
        raise error  # here, where nothing becomes its context

    def _main(self, argv: Sequence[str] | None) -> int:
        _, *arguments = sys.argv if argv is None else argv
        if not arguments or arguments[0] in _HELP:
            print(self._overview())
            return 0 if arguments else 2
        if _LIST_TARGETS in arguments[:2]:  # those of a script are its own
            _print_targets()
            return 0
        if _LIST_MODELS in arguments[:2]:
            print(*importlib.import_module("olla_xla.tools.models").zoo().MODELS, sep="\n")
            return 0
        if arguments[0] == _VERSION:
            print(_versions(self.name))
            return 0
        name, *rest = arguments
        name = name.replace("-", "_") if name.replace("-", "_") in self.commands else name
        if name not in self.commands:
            known = f"there is no command {name!r}{_alike(name, self.commands)}; the commands are "
            known += ", ".join(self.commands)
            return _failed(self.name, InputError("; ".join(filter(None, (known, self.others)))))
        program, held = f"{self.name} {name}", contextlib.ExitStack()
        try:
            held.enter_context(without_collection())
            if name not in self.of_any_jax and (why := old_jax()):
                raise VersionError(why)
            command = importlib.import_module(f"{self.package}.{name}")
            kept = getattr(command, "KEEPS_GARBAGE", False)
            if not kept:
                held.close()
            values = flags.FlagValues()
            command.define_flags(values)
            _define_json(values)
            rest, script = _apart(values, rest) if hasattr(command, "SCRIPT") else (rest, ())
            if any(argument in _HELP for argument in rest):
                print(_help(program, command, values, full=_FULL_HELP in rest))
                return 0
            operands = getattr(command, "OPERANDS", ())
            given = _parsed(values, program, _normal(rest), operands)
            code = _run(command, values, (*given, *script), values["json"].value)
            if kept and argv is None:  # which the process's end would look through
                gc.freeze()
            return code
        except OllaError as error:
            return _failed(program, error)
        except KeyboardInterrupt:
            print(f"{program}: interrupted", file=sys.stderr)
            return 130
        finally:
            held.close()

    def _overview(self) -> str:
        width = max(map(len, self.commands))
        lines = {name: f"  {name:{width}}  {what}" for name, what in self.commands.items()}
        further = [lines.pop(name) for name in self.further]
        return "\n".join(
            [
                self.about,
                "",
                f"{self.name} COMMAND [--flag=value ...]",
                "",
                *lines.values(),
                *(["", "Further:", "", *further] if further else []),
                "",
                f"{self.name} COMMAND --help lists the flags of a command.",
                f"{self.name} {_LIST_TARGETS} lists the values of --target.",
                f"{self.name} {_LIST_MODELS} lists the values of --model.",
            ]
        )


def _versions(name: str) -> str:
    """Returns a line with the versions of this package and, where installed, of jax and jaxlib."""
    parts = [f"{name} {__version__}"]
    for package in ("jax", "jaxlib"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(parts)


def _alike(name: str, known: Iterable[str]) -> str:
    """Returns a suggestion for a misspelt name, as " (did you mean plan?)"; "" if none is close."""
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _define_json(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "json",
        None,
        "Write the results as JSON: --json writes them to standard output, and all other output "
        "to standard error; --json=FILE writes them to that file.",
        values,
    )


def _normal(arguments: Sequence[str]) -> list[str]:
    """Returns arguments with underscores for hyphens in flag names, and --json as --json=-."""
    normal = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--") and len(name) > 2:
            name = f"--{name[2:].replace('-', '_')}"
        normal.append(f"--json={_TO_STDOUT}" if argument == "--json" else f"{name}{equals}{value}")
    return normal


def _apart(
    values: flags.FlagValues, arguments: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Splits arguments: (a command's own flags, the script or "-m" and all that follows it)."""
    is_value = False
    for k, argument in enumerate(arguments):
        if not is_value and (argument == "-m" or not argument.startswith("-")):
            return arguments[:k], arguments[k:]
        name = argument.lstrip("-").replace("-", "_")
        is_value = not is_value and name in values and not values[name].boolean and name != "json"
    return arguments, ()


def _run(command: Any, values: flags.FlagValues, given: Sequence[str], path: str | None) -> int:
    """Runs a command, writes its results as JSON to `path`, and returns the exit code.

    Args:
      command: its module. values: its flags. given: its operands.
      path: of the JSON file; "-" is stdout, and then all else is printed to stderr; None: no JSON.
        Raises InputError if the file cannot be written.
    """
    if path is None:
        return command.run(values, *given)
    if path != _TO_STDOUT:
        files.check_writable(path)
    aside = contextlib.redirect_stdout(sys.stderr) if path == _TO_STDOUT else None
    with document.collecting() as results, aside or contextlib.nullcontext():
        code = command.run(values, *given)
    if path == _TO_STDOUT:
        print(results.text(), end="")
        return code
    write_text(path, results.text())
    return code


def _parsed(
    values: flags.FlagValues, program: str, arguments: Sequence[str], operands: Sequence[str]
) -> Sequence[str]:
    """Parses the flags into `values`; returns the other arguments, as many as `operands` names.
    Raises InputError if a flag is unknown or wrong, or there are too few or too many of them.
    """
    try:
        left = values([program, *arguments])[1:]
    except flags.Error as error:
        raise InputError(f"{_one_line(error)}; see {program} --help") from error
    if len(left) > len(operands):
        extra = left[len(operands)]
        raise InputError(f"unexpected argument {extra!r}; give flags as --name=value")
    if len(left) < len(operands):
        raise InputError(f"give {' and '.join(operands)}; see {program} --help")
    return left


def _failed(program: str, error: OllaError) -> int:
    print(f"{program}: {_one_line(error)}", file=sys.stderr)
    return 2 if isinstance(error, InputError | VersionError) else 1


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _print_targets() -> None:
    # Imported here because targets import JAX, which takes seconds; nothing else here does.
    shared = importlib.import_module("olla_xla.cli.commands.shared")
    report = importlib.import_module("olla_xla.cli.report.target_list")
    report.targets_table().print(shared.console())


def _help(program: str, command: Any, values: flags.FlagValues, full: bool) -> str:
    script = getattr(command, "SCRIPT", ())
    usage = " ".join((program, *getattr(command, "OPERANDS", ()), "[--flag=value ...]", *script))
    lines = [usage, "", (command.__doc__ or "").strip(), ""]
    shown = [name for name in sorted(values) if full or name not in FOR_DEVELOPERS]
    for name in shown:
        flag = values[name]
        default = "" if flag.default in (None, "") else f" (default {flag.default_as_str})"
        lines.append(f"  --{'[no]' if flag.boolean else ''}{name}: {flag.help}{default}")
    if left := len(list(values)) - len(shown):
        lines += ["", f"{program} {_FULL_HELP} lists {left} more flags, which few users need."]
    return "\n".join(lines)
