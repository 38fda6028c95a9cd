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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from olla_xla.memory.user_cache import user_cache
from olla_xla.problem.whole_file import written_whole
from olla_xla.remat.cost.roofline import Device

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "LOCK",
    "SOME",
    "Bench",
    "calibrated_cpu",
    "in_turns",
    "is_measuring",
    "kept",
    "measure_cpu",
]

_logger = logging.getLogger("olla_xla")

_VERSION = 4
"""Of the file; raised when the benchmarks change."""

_ELEMENTS = 1 << 24  # 64 MiB of float32: beyond any cache
CACHED = 1 << 16  # 256 KiB of float32: within the cache of a core or two
CHAIN = 32  # operations on each element, so that arithmetic outweighs memory
SOME = 1 << 22  # 16 MiB of float32: of transcendentals one on each is longer than memory takes
_SQUARE = 1024  # matrix product
_IMAGES = (4, 56, 56, 256)  # activations, 12 MiB of float32
_ACROSS = (3, 1, 2, 0)  # their dimensions by channel first
_WINDOW = 3
_ROUNDS, _MOMENT = 8, 0.05  # seconds

LOCK = threading.Lock()  # Two threads that measured at once would measure each other.
_thread = threading.local()


def is_measuring() -> bool:
    """Whether this thread runs benchmarks. These are not planned: planning waits for them."""
    return getattr(_thread, "measuring", False)


def calibrated_cpu() -> Device:
    """This machine's rates: from the file of an earlier run, else measured (a few seconds).

    Rates measured while the machine was busy are low; they are measured again once it is not.
    """
    with LOCK:
        return _calibrated()


@functools.cache
def _calibrated() -> Device:
    return kept("cpu", Device, measure_cpu)


def kept[Rates: DataclassInstance](
    name: str, kind: type[Rates], measure: Callable[[], Rates]
) -> Rates:
    """Rates of this machine: from the file of an earlier run, else measured.

    The caller holds LOCK. Rates of a busy machine are measured again once it is not busy.
    """
    path = _path(name)
    busy = _busy()
    found = _read(path, kind)
    if found is not None and (busy or not found[1]):
        return found[0]
    _logger.info("measuring what this machine's CPU does in a second, once (some seconds)")
    _thread.measuring = True
    try:
        rates = measure()
    finally:
        _thread.measuring = False
    _write(path, rates, busy)
    return rates


def _busy() -> bool:
    """Whether more processes want to run than there are cores."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1)


def _cores() -> int:
    """How many this process may use, which XLA takes."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _path(name: str) -> Path:
    """In the user's cache directory, by machine, cores and JAX version."""
    import jax

    machine = f"{platform.machine()} {_cores()} {jax.__version__}"
    digest = hashlib.sha256(f"{_VERSION} {machine} {platform.node()}".encode()).hexdigest()[:16]
    return user_cache() / f"{name}-{digest}.json"


def _read[Rates](path: Path, kind: type[Rates]) -> tuple[Rates, bool] | None:
    """The rates, and whether the machine was busy then."""
    try:
        fields = json.loads(path.read_text())
        return kind(**fields["rates"]), fields["busy"]
    except (OSError, ValueError, TypeError, KeyError):
        return None  # not there, or not ours: it is measured again


def _write(path: Path, rates: DataclassInstance, busy: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as beside:
            beside.write_text(json.dumps({"rates": dataclasses.asdict(rates), "busy": busy}) + "\n")
    except OSError as error:
        _logger.info("the CPU's rates are not kept: %s", error)


class Bench:
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
        # The previous result is held until the next one is there, as a step's state is.
        self._result = self._jitted(*self._arguments).block_until_ready()
        if self._donate:
            self._arguments = (self._result, *self._arguments[1:])

    def round(self) -> None:
        """Runs for a moment."""
        end = time.perf_counter() + _MOMENT
        while (started := time.perf_counter()) < end:
            self._run()
            self.seconds = min(self.seconds, time.perf_counter() - started)


def in_turns(benches: Iterable[Bench]) -> None:
    """Runs benchmarks in turns, over seconds, so that other load slows all of them alike."""
    for _ in range(_ROUNDS):
        for bench in benches:
            bench.round()


def measure_cpu() -> Device:
    """Measures memory, arithmetic, products, convolutions and the start of an operator."""
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices("cpu")[0]):
        large = jnp.full((_ELEMENTS,), 0.5, jnp.float32)
        small = jnp.full((CACHED,), 0.5, jnp.float32)
        square = jnp.full((_SQUARE, _SQUARE), 0.5, jnp.float32)
        images = jnp.full(_IMAGES, 0.5, jnp.float32)
        across = jnp.full(tuple(_IMAGES[k] for k in _ACROSS), 0.5, jnp.float32)
        start = Bench(_kernels, jnp.float32(1.0))
        # All but `outside` write over an operand: a new buffer is paid for page by page.
        memory = Bench(jnp.add, large + 1, large, donate=True)
        inside = Bench(lambda x: x + 1, large + 1, donate=True)
        outside = Bench(lambda x: x + 1, large)
        plain = Bench(_arithmetic, small)
        # One in a kernel, as steps have them: of many each takes four times as long.
        expensive = Bench(jnp.tanh, jnp.full((SOME,), 0.5, jnp.float32), donate=True)
        product = Bench(jnp.matmul, square, square)
        transposed = Bench(_transposing, across, images, donate=True)
        depthwise = Bench(_depthwise, images)
        benches = start, memory, inside, outside, plain, expensive, product, transposed, depthwise
        in_turns(benches)
    bandwidth = 3 * 4 * _ELEMENTS / memory.seconds
    size = 4 * images.size
    return Device(
        name="CPU",
        bytes_per_second=bandwidth,
        operations_per_second=2 * CHAIN * CACHED / plain.seconds,
        transcendentals_per_second=SOME / expensive.seconds,
        matrix_per_second=2 * _SQUARE**3 / product.seconds,
        narrow_per_second=2 * _SQUARE**3 / product.seconds,  # its kernels compute in float32
        start_seconds=start.seconds / CHAIN,
        transposed_bytes_per_second=_rate(size, transposed.seconds - 2 * size / bandwidth),
        depthwise_per_second=2 * _WINDOW**2 * images.size / depthwise.seconds,
        fresh_bytes_per_second=_rate(4 * _ELEMENTS, outside.seconds - inside.seconds),
    )


def _rate(amount: float, seconds: float) -> float:
    """Amount a second; infinite where no time was left to measure."""
    return amount / seconds if seconds > 0 else math.inf


def _arithmetic(x: Any) -> Any:
    import jax.numpy as jnp

    for k in range(CHAIN):
        x = jnp.abs(x - (k + 1.0))
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

    for _ in range(CHAIN):
        x = jnp.sort(jnp.stack([x, x + 1]))[0]
    return x
