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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from olla_xla.memory.user_cache import user_cache
from olla_xla.problem.whole_file import written_whole
from olla_xla.remat.cost.roofline import Device

__all__ = ["calibrated_cpu", "is_measuring", "measure_cpu"]

_logger = logging.getLogger("olla_xla")

_VERSION = 3
"""Of the file's meaning; raised when the benchmarks change."""

_ELEMENTS = 1 << 24  # 64 MiB of float32: beyond any cache
_CACHED = 1 << 16  # 256 KiB of float32: within the cache of a core or two
_CHAIN = 32  # operations on each element, so that arithmetic outweighs memory
_SQUARE = 1024  # matrix product
_IMAGES = (4, 56, 56, 256)  # activations, 12 MiB of float32
_ACROSS = (3, 1, 2, 0)  # their dimensions by channel first
_WINDOW = 3
_ROUNDS, _MOMENT = 8, 0.05  # seconds

_lock = threading.Lock()  # Two threads that measured at once would measure each other.
_thread = threading.local()


def is_measuring() -> bool:
    """Whether this thread runs benchmarks, which are not to be planned: planning waits for them."""
    return getattr(_thread, "measuring", False)


def calibrated_cpu() -> Device:
    """This machine's rates: from the file of an earlier run, else measured (a few seconds).

    Rates measured while the machine was busy are low; they are measured again once it is not.
    """
    with _lock:
        return _calibrated()


@functools.cache
def _calibrated() -> Device:
    path = _path()
    busy = _busy()
    kept = _read(path)
    if kept is not None and (busy or not kept[1]):
        return kept[0]
    _logger.info("measuring what this machine's CPU does in a second, once (some seconds)")
    _thread.measuring = True
    try:
        found = measure_cpu()
    finally:
        _thread.measuring = False
    _write(path, found, busy)
    return found


def _busy() -> bool:
    """Whether more wants to run than there are cores."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def _path() -> Path:
    """In the user's cache directory, by machine and JAX version."""
    import jax

    machine = f"{platform.machine()} {os.cpu_count()} {jax.__version__}"
    digest = hashlib.sha256(f"{_VERSION} {machine} {platform.node()}".encode()).hexdigest()[:16]
    return user_cache() / f"cpu-{digest}.json"


def _read(path: Path) -> tuple[Device, bool] | None:
    """The rates, and whether the machine was busy then."""
    try:
        fields = json.loads(path.read_text())
        return Device(**fields["rates"]), fields["busy"]
    except (OSError, ValueError, TypeError, KeyError):
        return None  # not there, or not ours: it is measured again


def _write(path: Path, device: Device, busy: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as beside:
            beside.write_text(
                json.dumps({"rates": dataclasses.asdict(device), "busy": busy}) + "\n"
            )
    except OSError as error:
        _logger.info("the CPU's rates are not kept: %s", error)


class _Bench:
    """One benchmark: a jitted function and its arguments; a donated one is handed on.

    Attributes:
      seconds: the least of the runs so far.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, donate: bool = False) -> None:
        # Not `jax.jit`, which a program may have replaced by what waits for these benchmarks.
        from olla_xla.memory.own_jit import own_jit

        self._jitted = own_jit(function, donate_argnums=(0,) if donate else ())
        self._arguments = arguments
        self._donate = donate
        self._result: Any = None
        self._run()  # compiles
        self.seconds = math.inf

    def _run(self) -> None:
        # The result before is held until the next is there, as a step's state is.
        self._result = self._jitted(*self._arguments).block_until_ready()
        if self._donate:
            self._arguments = (self._result, *self._arguments[1:])

    def round(self) -> None:
        """Runs for a moment."""
        end = time.perf_counter() + _MOMENT
        while (started := time.perf_counter()) < end:
            self._run()
            self.seconds = min(self.seconds, time.perf_counter() - started)


def measure_cpu() -> Device:
    """Measures memory, arithmetic, products, convolutions and the start of an operator.

    All benchmarks go in turns, over seconds: what else runs on the machine meets them alike.
    """
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices("cpu")[0]):
        large = jnp.full((_ELEMENTS,), 0.5, jnp.float32)
        small = jnp.full((_CACHED,), 0.5, jnp.float32)
        square = jnp.full((_SQUARE, _SQUARE), 0.5, jnp.float32)
        images = jnp.full(_IMAGES, 0.5, jnp.float32)
        across = jnp.full(tuple(_IMAGES[k] for k in _ACROSS), 0.5, jnp.float32)
        start = _Bench(_kernels, jnp.float32(1.0))
        # Over an operand, but for one: a new buffer is paid for page by page.
        memory = _Bench(jnp.add, large + 1, large, donate=True)
        inside = _Bench(lambda x: x + 1, large + 1, donate=True)
        outside = _Bench(lambda x: x + 1, large)
        plain = _Bench(_arithmetic, small)
        expensive = _Bench(_transcendental, small)
        product = _Bench(jnp.matmul, square, square)
        transposed = _Bench(_transposing, across, images, donate=True)
        depthwise = _Bench(_depthwise, images)
        benches = start, memory, inside, outside, plain, expensive, product, transposed, depthwise
        for _ in range(_ROUNDS):
            for bench in benches:
                bench.round()
    bandwidth = 3 * 4 * _ELEMENTS / memory.seconds
    size = 4 * images.size
    return Device(
        name="CPU",
        bytes_per_second=bandwidth,
        operations_per_second=2 * _CHAIN * _CACHED / plain.seconds,
        transcendentals_per_second=_CHAIN * _CACHED / expensive.seconds,
        matrix_per_second=2 * _SQUARE**3 / product.seconds,
        narrow_per_second=2 * _SQUARE**3 / product.seconds,  # its kernels compute in float32
        start_seconds=start.seconds / _CHAIN,
        transposed_bytes_per_second=_rate(size, transposed.seconds - 2 * size / bandwidth),
        depthwise_per_second=2 * _WINDOW**2 * images.size / depthwise.seconds,
        fresh_bytes_per_second=_rate(4 * _ELEMENTS, outside.seconds - inside.seconds),
    )


def _rate(amount: float, seconds: float) -> float:
    """Infinite where nothing was left to measure."""
    return amount / seconds if seconds > 0 else math.inf


def _arithmetic(x: Any) -> Any:
    import jax.numpy as jnp

    for k in range(_CHAIN):
        x = jnp.abs(x - (k + 1.0))
    return x


def _transcendental(x: Any) -> Any:
    import jax.numpy as jnp

    for _ in range(_CHAIN):
        x = jnp.tanh(x)
    return x


def _transposing(kept: Any, x: Any) -> Any:
    """Activations with their channels outermost, as gradients of convolutions want them."""
    import jax.numpy as jnp

    return jnp.minimum(kept, jnp.maximum(x * x + x, 0).transpose(_ACROSS))


def _depthwise(x: Any) -> Any:
    """A convolution of each channel by itself."""
    import jax
    import jax.numpy as jnp

    channels = x.shape[-1]
    return jax.lax.conv_general_dilated(
        x,
        jnp.ones((_WINDOW, _WINDOW, 1, channels), x.dtype),
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )


def _kernels(x: Any) -> Any:
    """A chain of small operators that XLA does not fuse."""
    import jax.numpy as jnp

    for _ in range(_CHAIN):
        x = jnp.sort(jnp.stack([x, x + 1]))[0]
    return x
