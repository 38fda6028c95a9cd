"""`python -m benchmarks`: what it prints, and its exit codes."""

import importlib

import pytest

from benchmarks.__main__ import main
from benchmarks.commands import COMMANDS

pytestmark = pytest.mark.quick


def test_every_command_says_what_it_does(capsys):
    assert main(["benchmarks", "--help"]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out
        assert main(["benchmarks", name, "--help"]) == 0
        module = importlib.import_module(f"benchmarks.commands.{name}")
        assert (module.__doc__ or "").splitlines()[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no command 'nothing'; the commands are schedule"),
        (["schedule", "--cases=nonsense"], "nonsense"),
        (["estimate", "--function=a:b", "--arguments=f32[1]", "--compile"], "goes with --model"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert main(["benchmarks", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("python -m benchmarks") and message in lines[0]
