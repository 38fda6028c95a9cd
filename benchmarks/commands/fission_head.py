"""A head of a large vocabulary, whole, cut by `olla_xla.fission` and by hand: bytes and errors.

A linear layer with cross-entropy, value and both gradients. MB as XLA's buffer assignment has them
for --target: arguments, results and temporaries. With --errors it is run on this CPU instead, and
the errors of the gradients are given against float64, by the norms: of weights, of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from benchmarks.fission import head
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table
from olla_xla.cli.report.units import megabytes
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.errors import InputError


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    flags.DEFINE_enum(
        "target", "cpu", list(targets.TARGETS), "Device to compile for.", flag_values=values
    )
    flags.DEFINE_list("pieces", ["4", "16", "64"], "Numbers of pieces.", flag_values=values)
    flags.DEFINE_enum(
        "dtype", "float32", ["float32", "bfloat16"], "Of weights and tokens.", flag_values=values
    )
    sizes = {"lower_bound": 2, "flag_values": values}
    flags.DEFINE_integer("tokens", 8192, "How many; the pieces divide them.", **sizes)
    flags.DEFINE_integer("width", 1024, "Of a token.", **sizes)
    flags.DEFINE_integer("words", 131_072, "Of the vocabulary.", **sizes)
    flags.DEFINE_bool("errors", False, "Run it, and compare with float64.", flag_values=values)
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Compiles or runs all forms and prints a table, a number of pieces a column."""
    pieces = _pieces(values)
    targets.prepare_environment("cpu" if values.errors else values.target)
    given = head.shapes(values.tokens, values.width, values.words, values.dtype)
    if values.errors:
        args = head.arguments(given)

        def cell(function: Callable[..., Any]) -> str:
            return ", ".join(f"{e:.1e}" for e in head.errors(function, args))

    else:
        args = targets.target(values.target).place(given)

        def cell(function: Callable[..., Any]) -> str:
            return megabytes(assigned_bytes(jax.jit(function).lower(*args).compile()))

    rows = []
    with Progress() as progress:
        for name in head.forms(2):
            counts = pieces[:1] if name == "unchanged" else pieces
            progress.stage(name)
            cells = [cell(head.forms(count)[name]) for count in counts]
            rows.append((name, *cells, *[""] * (len(pieces) - len(cells))))
    shared.print_table(values, Table(("form:", *map(str, pieces)), rows, ""))
    return 0


def _pieces(values: flags.FlagValues) -> list[int]:
    for text in values.pieces:
        if not text.isdecimal() or int(text) < 2 or values.tokens % int(text):
            raise InputError(
                f"--pieces: {text!r} is not a number of pieces of --tokens; use 4,16,64"
            )
    return [int(text) for text in values.pieces]
