"""Random functions: some that `olla_xla.fission` can cut along rows, some that mix rows."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import olla_xla
from olla_xla.errors import InputError

ROWS, WIDTH, WIDE = 24, 8, 256
TOLERANCE = 1e-4
"""By which results may differ, beside one and the largest of them: sums are added otherwise."""

_REFUSAL = re.compile(
    r"[:;] [\w-]+ at \w+\.py:\d+ (combines the axis|mixes dim|needs the whole of dim)"
)


KEY = jax.random.key(0)


def _layers(x: Any, w: Any) -> Any:
    return lax.scan(lambda c, row: (jnp.tanh(c + row), None), x, w)[0]


def _features(x: Any, w: Any) -> Any:
    del w
    return lax.scan(lambda c, column: (c + column, jnp.sin(c)), x[:, 0] * 0, x.T)[1].T


def _heads(x: Any, w: Any) -> Any:
    split = x.reshape(-1, 2, WIDTH // 2)
    scores = jax.nn.softmax(jnp.einsum("nhd,nkd->nhk", split, split))
    return jnp.einsum("nhk,nkd->nhd", scores, split).reshape(x.shape) @ w


@jax.custom_vjp
def _straight(x: Any) -> Any:
    return jnp.round(x * 4) / 4


_straight.defvjp(lambda x: (_straight(x), None), lambda _, g: (g,))


def _experts(x: Any, w: Any) -> Any:
    """A mixture of two experts: each row is given to one of them."""
    gates = jax.nn.softmax(x[:, :2])
    which = jax.nn.one_hot(jnp.argmax(gates, 1), 2)
    made = jnp.einsum("nd,edf->nef", x, jnp.stack([w, w.T]))
    return jnp.einsum("nef,ne,ne->nf", made, which, gates)


def _convolved(x: Any, dim: int) -> Any:
    x = x if dim else x.T
    kernel = jnp.asarray([[[0.25, 0.5, 0.25]]])
    found = lax.conv_general_dilated(x[:, None], kernel, (1,), "SAME")[:, 0]
    return found if dim else found.T


def _grown(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jnp.sin(c[1]) + 0.1), (0, x))[1]


def _held(x: Any, w: Any) -> Any:
    """Calls a jitted function that closes over an array."""
    return jax.jit(lambda x: jnp.tanh(x @ w + jnp.arange(WIDTH) / WIDTH))(x)


ROW_BY_ROW: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda x, w: x @ w,
    "tanh": lambda x, w: jnp.tanh(x) * w[0],
    "relu": lambda x, w: jax.nn.relu(x),
    "gelu": lambda x, w: jax.jit(jax.nn.gelu)(x),
    "softmax": lambda x, w: jax.nn.softmax(x),
    "norm": lambda x, w: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1)[:, None] + 1e-1),
    "gather": lambda x, w: x + w[jnp.argmax(x, 1) % WIDTH],
    "take": lambda x, w: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "cumsum": lambda x, w: jnp.cumsum(x, 1) / WIDTH,
    "max": lambda x, w: x - lax.stop_gradient(x.max(1, keepdims=True)),
    "rolled": lambda x, w: jnp.roll(x, 1, 1),
    "reversed": lambda x, w: jnp.flip(x, 1),
    "layers": _layers,
    "features": _features,
    "heads": _heads,
    "experts": _experts,
    "convolved": lambda x, w: _convolved(x, 1),
    "checkpoint": jax.checkpoint(lambda x, w: jnp.sin(x @ w)),
    "straight": lambda x, w: _straight(x),
    "cond": lambda x, w: lax.cond(w[0, 0] > 0, jnp.sin, jnp.cos, x),
    "doubled": lambda x, w: jnp.concatenate([x, x], 1)[:, ::2],
    "position": lambda x, w: x * (lax.broadcasted_iota(jnp.float32, x.shape, 0) / ROWS),
    "map": lambda x, w: lax.map(lambda row: row @ w, x),
    "vmap": lambda x, w: jax.vmap(lambda row: jnp.outer(row, w[0]).sum(0) / WIDTH)(x),
    "written": lambda x, w: x.at[:, 2].set(0.5),
    "added": lambda x, w: x.at[jnp.arange(len(x)), jnp.argmax(x, 1)].add(1.0),
    "held": _held,
    "dropout": lambda x, w: jnp.where(jax.random.bernoulli(KEY, 0.9, x.shape), x, 0),
    "chosen": lambda x, w: x * x[jnp.arange(len(x)), jnp.argmax(x, 1)][:, None],
    "triangle": lambda x, w: jnp.where(jnp.tril(jnp.ones(x.shape, bool)), x, 0),
}
"""What works on each row by itself, by name: of rows [ROWS, WIDTH] and weights [WIDTH, WIDTH]."""


def _batch_norm(x: Any, w: Any) -> Any:
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-1) * w[0]


def _recurrence(x: Any, w: Any, reverse: bool = False) -> Any:
    def body(c: Any, row: Any) -> tuple[Any, Any]:
        c = jnp.tanh(c @ w + row)
        return c, c

    return lax.scan(body, x[0], x, reverse=reverse)[1]


def _pooled(x: Any, w: Any) -> Any:
    del w
    return lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (1, 1), "SAME")


def _noted(x: Any, w: Any) -> Any:
    """Reads what was written to a reference: no variable leads from one to the other."""
    ref = jax.new_ref(x)
    ref[...] = jnp.tanh(x @ w)
    read = ref[...]
    ref[...] = read * 0.5
    return read + ref[...]


_QUARTERS = np.arange(ROWS)[::-1] % 4

MIXING: dict[str, Callable[[Any, Any], Any]] = {
    "sort": lambda x, w: jnp.sort(x, 0),
    "cumsum": lambda x, w: jnp.cumsum(x, 0) / ROWS,
    "rev": lambda x, w: jnp.flip(x, 0),
    "batch norm": _batch_norm,
    "scan": _recurrence,
    "scan backwards": lambda x, w: _recurrence(x, w, reverse=True),
    "associative scan": lambda x, w: lax.associative_scan(lambda a, b: a * 0.5 + b, x),
    "softmax": lambda x, w: jax.nn.softmax(x, 0),
    "attention": lambda x, w: jax.nn.softmax(x @ x.T) @ x,
    "rolled": lambda x, w: jnp.roll(x, 1, 0),
    "gather": lambda x, w: x[jnp.argsort(x[:, 0])],
    "convolution": lambda x, w: _convolved(x, 0),
    "pool": _pooled,
    "difference": lambda x, w: x - jnp.concatenate([x[1:], x[:1]]),
    "padded": lambda x, w: jnp.pad(x, ((1, 1), (0, 0)))[2:],
    "sum of all": lambda x, w: x / (1 + jnp.abs(x.sum(0))),
    "maximum of all": lambda x, w: x - x.max(0),
    "solve": lambda x, w: jnp.linalg.solve(jnp.eye(ROWS) * 8 + jnp.tanh(x @ x.T), x),
    "fft": lambda x, w: jnp.fft.fft(x, axis=0).real / ROWS,
    "while": lambda x, w: lax.while_loop(lambda y: jnp.abs(y).sum() > 9, lambda y: y * 0.5, x),
    "cond": lambda x, w: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "reference": _noted,
    "segments": lambda x, w: jax.ops.segment_max(x @ w, jnp.arange(ROWS) % 4, 4)[_QUARTERS],
    "top": lambda x, w: x + lax.top_k(x.T, 1)[0].T,
}
"""What mixes rows."""


def _turned(function: Callable[[Any, Any], Any], x: Any, w: Any) -> Any:
    """Applies a function one to three times, by the first number."""
    turns = 1 + (jnp.abs(x[0, 0]) * 8).astype(jnp.int32) % 3
    state = 0, x
    return lax.while_loop(lambda s: s[0] < turns, lambda s: (s[0] + 1, function(s[1], w)), state)[1]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of rows, weights, and weights of a wide layer after them.

    Attributes:
      names: its operations, in order; those of MIXING have the prefix "mixing ".
      pieces: the number of pieces. is_given: whether the caller names the rows as the axis to cut.
      inside: whether the gradient is taken inside the function that is cut, or of that function.
      seed: of its arguments.
      loop: that in whose body the operations are: "scan", "while", "turns" if each row has its own
        number of iterations, or "".
    """

    names: tuple[str, ...]
    pieces: int
    is_given: bool
    inside: bool
    seed: int
    loop: str = ""

    @property
    def mixes(self) -> bool:
        """Whether a result's row depends on other rows, so that a cut along rows is impossible."""
        return any(name.startswith("mixing ") for name in self.names)

    def __call__(self, x: Any, w: Any, wide: Any) -> Any:
        """A mean, a sum over rows, and a value for each."""
        if self.loop == "scan":
            x, _ = lax.scan(lambda x, w: (self._operations(x, w), None), x, jnp.stack([w, w.T]))
        elif self.loop == "while":
            x = _turned(self._operations, x, w)
        elif self.loop == "turns":
            x = jax.vmap(lambda row: _turned(self._operations, row[None], w)[0])(x)
        else:
            x = self._operations(x, w)
        large = jnp.tanh(x @ wide)
        found = jnp.mean(large**2), (large * 2).sum(0), large.max(1)
        few = self.pieces <= ROWS // 4  # each piece keeps its own maximum
        return (*found, lax.stop_gradient(large).max(0)) if few else found

    def _operations(self, x: Any, w: Any) -> Any:
        for name in self.names:
            kind = MIXING if name.startswith("mixing ") else ROW_BY_ROW
            x = kind[name.removeprefix("mixing ")](x, w)
        return x


def programs(count: int, mixing: int, seed: int) -> Iterator[Program]:
    """Yields `count` programs that can be cut along their rows, and `mixing` that cannot."""
    chance = random.Random(seed)

    def some(least: int, most: int) -> list[str]:
        return chance.choices(sorted(ROW_BY_ROW), k=chance.randint(least, most))

    for number in range(count + mixing):
        names = some(1, 4)
        if number >= count:
            names = [*some(0, 2), f"mixing {chance.choice(sorted(MIXING))}", *some(0, 2)]
        is_given, inside = chance.random() < 0.5, chance.random() < 0.5
        pieces, loop = chance.randint(2, ROWS), chance.choice(["", "", "scan", "while", "turns"])
        if loop == "turns" and number >= count:
            loop = "scan"  # a row alone mixes nothing
        yield Program(tuple(names), pieces, is_given, inside, number, loop)


def arguments(seed: int) -> list[jax.Array]:
    """Rows, weights and wide weights."""
    rng = np.random.default_rng(seed)
    shapes = (ROWS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDE)
    return [jnp.asarray(rng.normal(size=s).astype(np.float32)) * 0.7 for s in shapes]


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Results, and the gradient of their sum in all arguments."""

    def both(*args: Any) -> Any:
        made, pull = jax.vjp(function, *args)
        return made, pull(jax.tree.map(jnp.ones_like, made))

    return both


_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Each function is compiled twice and runs once."""


def _run(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    return jax.jit(function).lower(*args).compile(compiler_options=_FAST)(*args)


def check(program: Program) -> tuple[str, str]:
    """Runs a program cut and as it is.

    Returns:
      (outcome, reason). Good outcomes are "cut", and "refused" with a message that names the
      operation. Faults are "unnamed", a refusal that names none; "uncut", a refusal of a program
      that mixes nothing; and "wrong", other results.
    """
    args = arguments(program.seed)
    axis = (0, None, None) if program.is_given else None
    pieces = program.pieces if program.is_given else 4

    def cut(function: Callable[..., Any]) -> Callable[..., Any]:
        return olla_xla.fission(function, axis=axis, pieces=pieces)

    # Where a loop has no gradient, the function alone is what there is.
    has_gradient = "mixing while" not in program.names and program.loop in ("", "scan")
    if not has_gradient:
        whole, ours = program, cut(program)
    elif program.inside:
        whole, ours = _with_gradient(program), cut(_with_gradient(program))
    else:
        whole, ours = _with_gradient(program), _with_gradient(cut(program))
    try:
        made = _run(ours, args)
    except InputError as error:
        if not _REFUSAL.search(str(error)):
            return "unnamed", str(error)
        return ("refused" if program.mixes else "uncut"), str(error)
    reason = _difference(made, _run(whole, args))
    return ("wrong", reason) if reason else ("cut", "")


def _difference(made: Any, expected: Any) -> str:
    pairs: Sequence[Any] = list(zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True))
    for k, (a, b) in enumerate(pairs):
        most = float(jnp.max(jnp.abs(a - b), initial=0.0))
        allowed = TOLERANCE * (1 + float(jnp.max(jnp.abs(b), initial=0.0)))
        if a.shape != b.shape or a.dtype != b.dtype or not most <= allowed:
            return f"result {k} is off by {most:.3g}, {allowed:.3g} allowed"
    return ""
