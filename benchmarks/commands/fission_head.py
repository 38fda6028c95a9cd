"""A head of a large vocabulary, whole, cut by `olla_xla.fission` and by hand: bytes and errors.

A linear layer with cross-entropy, value and both gradients. MB as XLA's buffer assignment has them
for --target: arguments, results and temporaries. With --errors it is run on this CPU instead, and
the errors of the gradients are given against float64, by the norms: of weights, of tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

import olla_xla
from benchmarks.driver import Flags
from olla_xla import targets
from olla_xla.cli.commands import shared
from olla_xla.cli.report.progress import Progress
from olla_xla.cli.report.tables import Table, megabytes
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.errors import InputError


def _sum_of_losses(w: Any, x: Any, y: Any) -> Any:
    logits = (x @ w).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(logits, -1) - picked)


def _loss(w: Any, x: Any, y: Any) -> Any:
    return _sum_of_losses(w, x, y) / len(x)


def _by_hand(pieces: int, w: Any, x: Any, y: Any) -> Any:
    """The usual loop over tokens, in which JAX adds the weights' gradient in their own type."""

    @jax.checkpoint
    def body(total: Any, piece: Any) -> Any:
        return total + _sum_of_losses(w, *piece), None

    split = [a.reshape(pieces, -1, *a.shape[1:]) for a in (x, y)]
    return lax.scan(body, jnp.float32(0), tuple(split))[0] / len(x)


def _gradient(loss: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(loss, (0, 1))


def forms(pieces: int) -> dict[str, Callable[..., Any]]:
    """By name, functions of weights, tokens and labels to the loss and both gradients."""
    return {
        "fission of the gradient": olla_xla.fission(_gradient(_loss), pieces=pieces),
        "fission of the loss": _gradient(olla_xla.fission(_loss, pieces=pieces)),
        "by hand": _gradient(functools.partial(_by_hand, pieces)),
        "unchanged": _gradient(_loss),
    }


def shapes(tokens: int, width: int, words: int, dtype: str) -> list[jax.ShapeDtypeStruct]:
    """The shapes of weights [width, words], tokens [tokens, width] and labels [tokens]."""
    w, x = ((width, words), dtype), ((tokens, width), dtype)
    return [jax.ShapeDtypeStruct(*s) for s in (w, x, ((tokens,), "int32"))]


def arguments(given: Sequence[jax.ShapeDtypeStruct]) -> list[jax.Array]:
    """Random arrays: weights of standard deviation width ** -0.5, tokens of 1, uniform labels."""
    rng = np.random.default_rng(0)
    w, x, y = given
    return [
        jnp.asarray(rng.normal(size=w.shape) / w.shape[0] ** 0.5, w.dtype),
        jnp.asarray(rng.normal(size=x.shape), x.dtype),
        jnp.asarray(rng.integers(0, w.shape[1], y.shape), y.dtype),
    ]


def errors(function: Callable[..., Any], args: Sequence[jax.Array]) -> list[float]:
    """Relative errors (in norm) of the gradients of weights and tokens against float64 ones."""
    made = jax.jit(function)(*args)[1]
    with jax.enable_x64(True):
        w, x, y = args
        exact = jax.jit(jax.grad(_wide_loss, (0, 1)))(*(a.astype(jnp.float64) for a in (w, x)), y)
        pairs = zip(made, exact, strict=True)
        return [float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)) for a, b in pairs]


def _wide_loss(w: Any, x: Any, y: Any) -> Any:
    logits = x @ w
    picked = jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


def define_flags(values: flags.FlagValues) -> None:
    """Defines the command's flags."""
    define = Flags(values)
    define.one_of("target", "cpu", targets.TARGETS, "Device to compile for.")
    define.names("pieces", ["4", "16", "64"], "Numbers of pieces.")
    define.one_of("dtype", "float32", ["float32", "bfloat16"], "Of weights and tokens.")
    define.whole("tokens", 8192, "How many; the pieces divide them.", least=2)
    define.whole("width", 1024, "Of a token.", least=2)
    define.whole("words", 131_072, "Of the vocabulary.", least=2)
    define.switch("errors", False, "Run it, and compare with float64.")
    shared.define_format(values)


def run(values: flags.FlagValues) -> int:
    """Compiles or runs all forms and prints a table, a number of pieces a column."""
    pieces = _pieces(values)
    targets.prepare_environment("cpu" if values.errors else values.target)
    given = shapes(values.tokens, values.width, values.words, values.dtype)
    if values.errors:
        args = arguments(given)

        def cell(function: Callable[..., Any]) -> str:
            return ", ".join(f"{e:.1e}" for e in errors(function, args))

    else:
        args = targets.target(values.target).place(given)

        def cell(function: Callable[..., Any]) -> str:
            return megabytes(assigned_bytes(jax.jit(function).lower(*args).compile()))

    rows = []
    with Progress() as progress:
        for name in forms(2):
            counts = pieces[:1] if name == "unchanged" else pieces
            progress.stage(name)
            cells = [cell(forms(count)[name]) for count in counts]
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
