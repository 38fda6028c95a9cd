"""Rates of this machine's CPU under XLA, measured once by micro-benchmark and kept in a file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from olla_xla.remat.cost import Device

__all__ = ["calibrated_cpu", "measure_cpu"]

_logger = logging.getLogger("olla_xla")

_VERSION = 1
"""Of the file's meaning; raised when the benchmarks change."""

_ELEMENTS = 1 << 25  # 128 MiB of float32: beyond any cache
_CACHED = 1 << 16  # 256 KiB of float32: within the cache of a core or two
_CHAIN = 32  # operations on each element, so that arithmetic outweighs memory
_SQUARE = 1024  # matrix product
_REPEATS = 5


@functools.cache
def calibrated_cpu() -> Device:
    """This machine's rates: from the file of an earlier run, else measured (about two seconds)."""
    path = _path()
    found = _read(path)
    if found is None:
        found = measure_cpu()
        _write(path, found)
    return found


def _path() -> Path:
    """In the user's cache directory, by machine and JAX version."""
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    machine = f"{platform.processor()} {platform.machine()} {os.cpu_count()} {jax.__version__}"
    digest = hashlib.sha256(f"{_VERSION} {machine} {platform.node()}".encode()).hexdigest()[:16]
    return cache / "olla_xla" / f"cpu-{digest}.json"


def _read(path: Path) -> Device | None:
    try:
        return Device(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # not there, or not ours: it is measured again


def _write(path: Path, device: Device) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(device)) + "\n")
    except OSError as error:
        _logger.info("the CPU's rates are not kept: %s", error)


def measure_cpu() -> Device:
    """Measures memory, arithmetic, transcendentals, products and the start of an operator."""
    import jax
    import jax.numpy as jnp

    device = jax.devices("cpu")[0]
    with jax.default_device(device):
        large = jnp.full((_ELEMENTS,), 0.5, jnp.float32)
        small = jnp.full((_CACHED,), 0.5, jnp.float32)
        square = jnp.full((_SQUARE, _SQUARE), 0.5, jnp.float32)

        def arithmetic(x: Any) -> Any:
            for k in range(_CHAIN):
                x = jnp.abs(x - (k + 1.0))
            return x

        def transcendental(x: Any) -> Any:
            for _ in range(_CHAIN):
                x = jnp.tanh(x)
            return x

        start = _seconds(jax.jit(_kernels), jnp.float32(1.0)) / _CHAIN
        # Over itself: a new buffer would be paid for page by page.
        memory = _seconds(jax.jit(lambda x: x + 1, donate_argnums=0), large)
        plain = _seconds(jax.jit(arithmetic), small)
        dear = _seconds(jax.jit(transcendental), small)
        product = _seconds(jax.jit(lambda x: x @ x), square)
    return Device(
        name="CPU",
        bytes_per_second=2 * 4 * _ELEMENTS / memory,
        operations_per_second=2 * _CHAIN * _CACHED / plain,
        transcendentals_per_second=_CHAIN * _CACHED / dear,
        matrix_per_second=2 * _SQUARE**3 / product,
        start_seconds=start,
    )


def _kernels(x: Any) -> Any:
    """A chain of small operators that XLA keeps apart."""
    import jax.numpy as jnp

    for _ in range(_CHAIN):
        x = jnp.sort(jnp.stack([x, x + 1]))[0]
    return x


def _seconds(function: Callable[[Any], Any], argument: Any) -> float:
    """The least of several runs; the first one compiles. A donated argument is handed on."""
    result = function(argument).block_until_ready()
    best = float("inf")
    for _ in range(_REPEATS):
        given = result if argument.is_deleted() else argument
        started = time.perf_counter()
        result = function(given).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return best
