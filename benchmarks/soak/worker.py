"""One process that plans again and again; run as a program. Prints a line of JSON for each sample.

Every step is a new program, so that no plan comes from a cache.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import olla_xla
from olla_xla.compile.process_memory import give_memory_back, status_bytes
from olla_xla.errors import CheckError

_WIDTH, _BRANCHES, _ROWS = 64, 6, 128
_CALLS = 20
"""Calls of one signature that are timed together."""

Way = Callable[..., Any]


def _step(scale: float) -> Callable[..., Any]:
    """One large temporary a branch, of which XLA's order for a CPU keeps several at once."""

    def step(weights: Any, x: jax.Array) -> Any:
        hidden = [jnp.tanh(scale * (x @ w)) for w in weights]
        return [w * jnp.sum(h @ h.T) for w, h in zip(weights, hidden, strict=True)]

    return step


def _weights() -> list[jax.Array]:
    generator = np.random.default_rng(0)
    shape = (_WIDTH, _WIDTH)
    return [jnp.asarray(generator.standard_normal(shape, np.float32)) for _ in range(_BRANCHES)]


def _rows(count: int) -> jax.Array:
    return jnp.ones((count, _WIDTH), jnp.float32) / 8


def _taken(call: Callable[[], Any], times: int = 1) -> float:
    """Seconds of a call, its results waited for."""
    started = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(call())
    return (time.perf_counter() - started) / times


def _ways(way: str, options: dict[str, Any]) -> Way:
    return jax.jit if way == "jit" else lambda function: olla_xla.plan(function, **options)


def _signatures(made: Way, count: int, seconds: float, every: int) -> None:
    """One function, called with one new shape after the other; the first one is called on."""
    function, weights = made(_step(1.0)), _weights()
    first = _rows(_ROWS)
    end, taken = time.monotonic() + seconds, []
    for k in range(count):
        rows = _rows(_ROWS + k)
        taken.append(_taken(lambda rows=rows: function(weights, rows)))
        if (k + 1) % every == 0:
            _sample(k + 1, taken, _taken(lambda: function(weights, first), _CALLS))
        if time.monotonic() > end:
            break


def _forgotten(made: Way, count: int, seconds: float, every: int) -> None:
    """Plans a function, runs it, and forgets it, again and again."""
    weights, rows = _weights(), _rows(_ROWS)
    end, taken, called = time.monotonic() + seconds, [], []
    for k in range(count):
        plain = _step(1 + k / 4096)
        function = made(plain)
        taken.append(_taken(lambda function=function: function(weights, rows)))
        called.append(_taken(lambda function=function: function(weights, rows), _CALLS))
        if k % every == 0 and made is not jax.jit:
            _same(jax.jit(plain)(weights, rows), function(weights, rows))
        function.clear_cache()
        if (k + 1) % every == 0:
            _sample(k + 1, taken, float(np.median(called)))
            called.clear()
        if time.monotonic() > end:
            break


PARTS: dict[str, Callable[[Way, int, float, int], None]] = {
    "signatures": _signatures,
    "forgotten": _forgotten,
}
"""By name, what is done again and again."""


def _same(expected: Any, found: Any) -> None:
    if not all(map(np.array_equal, expected, found)):
        raise CheckError("a planned step gives other results than jax.jit's")


def _sample(count: int, taken: list[float], call_seconds: float) -> None:
    """Prints what the process holds and takes now; empties what was taken since the last one."""
    give_memory_back()  # what malloc keeps free between its blocks is nobody's
    line = {
        "count": count,
        "resident_bytes": status_bytes("VmRSS") or 0,
        "first_seconds": float(np.median(taken)),
        "call_seconds": call_seconds,
    }
    print(json.dumps(line), flush=True)
    taken.clear()


def main(
    part: str, way: str, count: int, seconds: float, every: int, options: dict[str, Any]
) -> None:
    """Does one part.

    Args:
      part: of `PARTS`. way: "plan" or "jit".
      count, seconds: how often, and how long at most. every: counts from sample to sample.
      options: of `olla_xla.plan`.
    """
    PARTS[part](_ways(way, options), count, seconds, every)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
