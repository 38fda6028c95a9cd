"""Rates of this machine's CPU under XLA, measured once by micro-benchmark and kept in a file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from olla_xla.remat.cost import Device

__all__ = ["calibrated_cpu", "measure_cpu"]

_logger = logging.getLogger("olla_xla")

_VERSION = 2
"""Of the file's meaning; raised when the benchmarks change."""

_ELEMENTS = 1 << 25  # 128 MiB of float32: beyond any cache
_CACHED = 1 << 16  # 256 KiB of float32: within the cache of a core or two
_CHAIN = 32  # operations on each element, so that arithmetic outweighs memory
_SQUARE = 1024  # matrix product
_IMAGES = (4, 56, 56, 256)  # activations, 12 MiB of float32
_REPEATS, _SECONDS = 10, 0.4  # at least; others may be using the machine


@functools.cache
def calibrated_cpu() -> Device:
    """This machine's rates: from the file of an earlier run, else measured (a few seconds)."""
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
    """Measures memory, arithmetic, products, convolutions and the start of an operator."""
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

        def transposing(kept: Any, x: Any) -> Any:
            return jnp.minimum(kept, jnp.maximum(x * x + x, 0).transpose(3, 1, 2, 0))

        start = _seconds(jax.jit(_kernels), jnp.float32(1.0)) / _CHAIN
        outside = _seconds(jax.jit(lambda x: x + 1), large)
        # Over an operand: a new buffer is paid for page by page.
        memory = _seconds(jax.jit(jnp.add, donate_argnums=0), large + 1, large)
        inside = _seconds(jax.jit(lambda x: x + 1, donate_argnums=0), large)
        plain = _seconds(jax.jit(arithmetic), small)
        dear = _seconds(jax.jit(transcendental), small)
        product = _seconds(jax.jit(lambda x: x @ x), square)
        images = jnp.full(_IMAGES, 0.5, jnp.float32)
        across = _seconds(
            jax.jit(transposing, donate_argnums=0), images.transpose(3, 1, 2, 0), images
        )
        depthwise = _seconds(jax.jit(_depthwise), images)
    size = 4 * images.size
    return Device(
        name="CPU",
        bytes_per_second=3 * 4 * _ELEMENTS / memory,
        operations_per_second=2 * _CHAIN * _CACHED / plain,
        transcendentals_per_second=_CHAIN * _CACHED / dear,
        matrix_per_second=2 * _SQUARE**3 / product,
        start_seconds=start,
        transposed_bytes_per_second=size / max(across - 2 * size * memory / (12 * _ELEMENTS), 1e-9),
        depthwise_per_second=2 * 9 * images.size / depthwise,
        fresh_bytes_per_second=4 * _ELEMENTS / max(outside - inside, 1e-9),
    )


def _depthwise(x: Any) -> Any:
    """A 3 by 3 convolution of each channel by itself."""
    import jax
    import jax.numpy as jnp

    channels = x.shape[-1]
    return jax.lax.conv_general_dilated(
        x,
        jnp.ones((3, 3, 1, channels), x.dtype),
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )


def _kernels(x: Any) -> Any:
    """A chain of small operators that XLA keeps apart."""
    import jax.numpy as jnp

    for _ in range(_CHAIN):
        x = jnp.sort(jnp.stack([x, x + 1]))[0]
    return x


def _seconds(function: Callable[..., Any], argument: Any, *others: Any) -> float:
    """The least of several runs; the first one compiles. A donated argument is handed on."""
    result = function(argument, *others).block_until_ready()
    best = math.inf
    begun, runs = time.perf_counter(), 0
    while runs < _REPEATS or time.perf_counter() < begun + _SECONDS:
        runs += 1
        given = result if argument.is_deleted() else argument
        started = time.perf_counter()
        result = function(given, *others).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return best
