"""The command line: `olla_xla COMMAND --flag=value ...`."""

from olla_xla.cli.commands import COMMANDS, FURTHER, OF_ANY_JAX
from olla_xla.cli.program import CommandLine

main = CommandLine(
    name="olla_xla",
    about="Plans the memory of JAX programs: a better execution order, identical results.",
    package="olla_xla.cli.commands",
    commands=COMMANDS,
    further=FURTHER,
    of_any_jax=OF_ANY_JAX,
    others="bench, estimate and figures are run by python -m benchmarks NAME in a checkout",
).main
"""Runs one command; see `CommandLine.main`."""
