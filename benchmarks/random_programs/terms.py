"""Scalars of arrays: parts of a loss, results, and what a state keeps of them over steps.

Several means in one sum, and a mean added to a kept value, have the form `a * k1 + reduce(b) * k2`.
Which of the two products is rounded before the sum depends on the surrounding code, and on a CPU
that code depends on which operands and results share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.random_programs.spec import Term

TERMS: dict[str, Callable[[Any, Any, float], Any]] = {
    "mean": lambda a, b, k: k * a.mean(),
    "square": lambda a, b, k: k * (a**2).mean(),
    "var": lambda a, b, k: k * a.var(),
    "std": lambda a, b, k: k * jnp.sqrt(a.var() + 1e-4),
    "norm": lambda a, b, k: k * jnp.sqrt((a * a).sum() + 1e-4),
    "size": lambda a, b, k: k * jnp.abs(a).mean(),
    "sum": lambda a, b, k: a.sum() * (k / 64),
    "most": lambda a, b, k: k * a.max(),
    "softest": lambda a, b, k: k * jax.nn.logsumexp(a),
    "product": lambda a, b, k: k * a.mean() * (b**2).mean(),
    "ratio": lambda a, b, k: k * a.mean() / (1 + b.var()),
    "two": lambda a, b, k: k * a.mean() + (1 - k) * (b**2).mean(),
    "less": lambda a, b, k: 0.3 * a.var() - k * jnp.abs(b).mean(),
    "one": lambda a, b, k: 0.7 * a.reshape(-1)[0] + k * b.mean(),
    "last": lambda a, b, k: a[..., -1:].mean() * k + a.mean() * b.mean(),
}
"""Name -> (two arrays, a weight) -> a scalar."""

USES = ("loss", "part", "times", "result")
"""What becomes of a scalar that is not kept: added to the loss, also returned, a factor of the
loss, or only returned."""

_Kept = Callable[[dict[str, Any], Any, Any], tuple[dict[str, Any], Any]]


def _mean(old: dict[str, Any], value: Any, number: Any) -> tuple[dict[str, Any], Any]:
    new = 0.9 * old["m"] + 0.1 * value
    return {"m": new}, new


def _fair_mean(old: dict[str, Any], value: Any, number: Any) -> tuple[dict[str, Any], Any]:
    """An exponential mean without the weight of the zero it began with."""
    new = 0.9 * old["m"] + 0.1 * value
    return {"m": new}, new / (1 - 0.9**number)


def _running(old: dict[str, Any], value: Any, number: Any) -> tuple[dict[str, Any], Any]:
    new = old["m"] + (value - old["m"]) / number
    return {"m": new}, new


def _least(old: dict[str, Any], value: Any, number: Any) -> tuple[dict[str, Any], Any]:
    new = jnp.where(number > 1, jnp.minimum(old["m"], value), value)
    return {"m": new}, value - new


def _moments(old: dict[str, Any], value: Any, number: Any) -> tuple[dict[str, Any], Any]:
    m, v = 0.9 * old["m"] + 0.1 * value, 0.99 * old["v"] + 0.01 * value * value
    return {"m": m, "v": v}, v - m * m


def _window(old: dict[str, Any], value: Any, number: Any) -> tuple[dict[str, Any], Any]:
    new = jnp.concatenate([old["w"][1:], value[None]])
    return {"w": new}, new.mean() + 0.1 * value


KEPT: dict[str, _Kept] = {
    "ema": _mean,
    "fair": _fair_mean,
    "running": _running,
    "least": _least,
    "moments": _moments,
    "window": _window,
}
"""Ways to keep a scalar in the state: (old, a new value, how many there were with it) -> the new
state, and a result."""


def terms_state(terms: Sequence[Term], dtype: Any) -> list[dict[str, Any]]:
    """What the state keeps of the terms, before the first step."""
    forms = {"moments": {"m": (), "v": ()}, "window": {"w": (4,)}}
    return [
        {name: jnp.zeros(shape, dtype) for name, shape in forms.get(t.use, {"m": ()}).items()}
        for t in terms
        if t.use in KEPT
    ]


def loss_with_terms(
    terms: Sequence[Term], loss: Any, middle: Any, params: Any
) -> tuple[Any, list[Any]]:
    """A loss with its further parts, and those to be returned.

    Args:
      terms: of the program. loss: the body's. middle, params: what terms read.
    """
    arrays = _arrays(middle, params)
    parts = []
    for term in terms:
        if term.use in ("loss", "part", "times"):
            value = _value(term, arrays)
            loss = loss * (1 + 0.1 * value) if term.use == "times" else loss + value
            parts += [value] if term.use == "part" else []
    return loss, parts


def kept_terms(
    terms: Sequence[Term], old: Sequence[dict[str, Any]], number: Any, *trees: Any
) -> tuple[list[dict[str, Any]], list[Any]]:
    """What the state keeps next, and the results.

    Args:
      terms: of the program. old: what the state kept. number: of the step, from 1.
      trees: what terms read.
    """
    arrays = _arrays(*trees)
    new, results, before = [], [], list(old)
    for term in terms:
        if term.use == "result":
            results.append(_value(term, arrays))
        elif term.use in KEPT:
            was = before.pop(0)
            dtype = next(iter(was.values())).dtype
            value = _value(term, arrays).astype(dtype)
            state, result = KEPT[term.use](was, value, number.astype(dtype))
            new.append(jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), state))
            results.append(result)
    return new, results


def _arrays(*trees: Any) -> list[Any]:
    """All real arrays of the trees, at least in float32."""
    leaves = [leaf for leaf in jax.tree.leaves(trees) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves]


def _value(term: Term, arrays: Sequence[Any]) -> Any:
    reads = term.reads or (0,)
    a, b = (jnp.atleast_1d(arrays[reads[k % len(reads)] % len(arrays)]) for k in range(2))
    return TERMS[term.op](a, b, term.weight)
