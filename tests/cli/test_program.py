"""A program of commands that are given: what it is called with, its exit codes, and its JSON."""

import sys
import types

import pytest
from absl import flags

from olla_xla.cli import program
from olla_xla.cli.program import CommandLine
from olla_xla.errors import CheckError, InputError, OllaError

pytestmark = pytest.mark.quick


def command(run, operands=()):
    """A command's module with one flag of few users and one of all."""

    def define_flags(values):
        flags.DEFINE_integer("batch_size", 4, "Examples.", flag_values=values)
        flags.DEFINE_bool("loops", True, "Rarely set.", flag_values=values)

    module = types.ModuleType("command", "Does one thing.\n\nAnd says so.")
    module.define_flags, module.run, module.OPERANDS = define_flags, run, operands
    return module


@pytest.fixture
def called(monkeypatch, capsys):
    """(exit code, stdout, stderr) of a program whose command `do_it` is a function."""
    monkeypatch.setattr(program, "old_jax", lambda: "")

    def call(run, *arguments, operands=()):
        monkeypatch.setitem(sys.modules, "made_commands", types.ModuleType("made_commands"))
        monkeypatch.setitem(sys.modules, "made_commands.do_it", command(run, operands))
        made = CommandLine(
            name="made", about="Made up.", package="made_commands", further=("rare",),
            commands={"do_it": "does it", "rare": "is rare"}, others="others are elsewhere",
        )  # fmt: skip
        code = made.main(["made", *arguments])
        return code, *capsys.readouterr()

    return call


def test_flags_and_operands(called):
    seen = []

    def run(values, *operands):
        seen.append((values.batch_size, values.loops, operands))
        return 0

    assert called(run, "do-it", "--batch-size=7", "--noloops", "A", operands=("FILE",))[0] == 0
    assert called(run, "do_it", "B", operands=("FILE",))[0] == 0
    assert seen == [(7, False, ("A",)), (4, True, ("B",))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["do_it", "A", "B"], "unexpected argument 'B'; give flags as --name=value"),
        (["do_it"], "give FILE; see made do_it --help"),
        (["do_it", "A", "--batch_size=x"], "see made do_it --help"),
        (["do_it", "A", "--nothing"], "see made do_it --help"),
        (["doit"], "no command 'doit' (did you mean do_it?); the commands are do_it, rare; others"),
    ],
)
def test_misuse_is_one_line(called, arguments, said):
    code, out, err = called(lambda values, path: 0, *arguments, operands=("FILE",))
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("no\n such model"), 2, "made do_it: no such model\n"),
        (CheckError("differs"), 1, "made do_it: differs\n"),
        (OllaError("failed"), 1, "made do_it: failed\n"),
        (KeyboardInterrupt(), 130, "made do_it: interrupted\n"),
    ],
)
def test_errors_have_exit_codes(called, error, code, said):
    def run(values):
        raise error

    assert called(run, "do_it") == (code, "", said)


def test_the_exit_code_of_a_command_is_the_programs(called):
    assert called(lambda values: 3, "do_it")[0] == 3


def test_an_old_jax_is_said_before_a_command_is_imported(called, monkeypatch):
    monkeypatch.setattr(program, "old_jax", lambda: "jax is too old")
    assert called(lambda values: 0, "do_it") == (2, "", "made do_it: jax is too old\n")
    assert called(lambda values: 0, "--version")[0] == 0


def test_a_closed_pipe_is_silent(called, monkeypatch):
    def run(values):
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restored at the end
    code, _, error = called(run, "do_it")
    sys.stdout.close()
    assert code == 141 and not error


def test_usage_names_the_arguments(called):
    _, out, _ = called(lambda values, a, b: 0, "do_it", "--help", operands=("A", "B"))
    assert out.startswith("made do_it A B [--flag=value ...]\n")
