"""Operators of random graphs that call the host, and what the host has seen."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from benchmarks.random_programs.environment import Operator

Seen = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""What ordered io_callbacks saw, and ordered debug.callbacks, each in order; what others saw,
sorted. JAX orders effects of one kind only, by a token: jit itself exchanges two kinds."""

_lock = threading.Lock()
_io_ordered: list[str] = []
_debug_ordered: list[str] = []
_others: list[str] = []


def watch() -> None:
    """Clears the record of what the host has seen."""
    jax.effects_barrier()
    for log in (_io_ordered, _debug_ordered, _others):
        log.clear()


def seen() -> Seen:
    """What the host has seen since `watch`, all callbacks done."""
    jax.effects_barrier()
    return tuple(_io_ordered), tuple(_debug_ordered), tuple(sorted(_others))


def _note(log: list[str], number: int, array: Any) -> None:
    data = np.asarray(array)
    digest = hashlib.sha256(data.tobytes()).hexdigest()[:16]
    with _lock:
        log.append(f"{number} {data.dtype} {data.shape} {digest}")


def _pure(env: Any, node: Any, values: Any) -> list[Any]:
    a = jax.lax.stop_gradient(values[0])
    shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
    back = jax.pure_callback(lambda v: (np.asarray(v)[::-1] * 0.5).astype(v.dtype), shape, a)
    return [values[1] + back]


def _io(env: Any, node: Any, values: Any) -> list[Any]:
    a = jax.lax.stop_gradient(values[0])
    number = next(env.numbers)
    ordered = node.op == "io_ordered"

    def host(array: Any) -> Any:
        _note(_io_ordered if ordered else _others, number, array)
        return (np.asarray(array) + 1).astype(np.float32)

    shape = jax.ShapeDtypeStruct((a.shape[1],), jnp.float32)
    row = a[node.k % a.shape[0]].astype(jnp.float32)
    return [values[1] + 0.1 * io_callback(host, shape, row, ordered=ordered)]


def _debug(env: Any, node: Any, values: Any) -> list[Any]:
    number = next(env.numbers)
    ordered = node.op == "debug_ordered"
    log = _debug_ordered if ordered else _others
    a = jax.lax.stop_gradient(values[0])
    jax.debug.callback(lambda array: _note(log, number, array), a, ordered=ordered)
    return [values[0] * values[1]]


CALLBACKS: dict[str, Operator] = {
    "pure": _pure,
    "io_ordered": _io,
    "io": _io,
    "debug": _debug,
    "debug_ordered": _debug,
}
"""Name -> operator."""
