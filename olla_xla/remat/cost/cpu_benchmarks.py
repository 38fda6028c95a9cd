"""Micro-benchmarks of this machine's CPU under XLA."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from olla_xla.remat.cost.roofline import Device

_ELEMENTS = 1 << 24  # 64 MiB of float32: beyond any cache
_CACHED = 1 << 16  # 256 KiB of float32: within the cache of a core or two
_CHAIN = 32  # operations on each element, so that arithmetic outweighs memory
_SOME = 1 << 22  # 16 MiB of float32: of transcendentals one on each is longer than memory takes
_SQUARE = 1024  # matrix product
_IMAGES = (4, 56, 56, 256)  # activations, 12 MiB of float32
_ACROSS = (3, 1, 2, 0)  # their dimensions by channel first
_WINDOW = 3
_ROUNDS, _MOMENT = 8, 0.02  # seconds


class Bench:
    """A benchmark of this machine: a jitted function with its arguments, and its times so far."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, donate: bool = False) -> None:
        # Not `jax.jit`, which a program may have replaced by what waits for these benchmarks.
        from olla_xla.memory.own_jit import own_jit

        self._jitted = own_jit(function, donate_argnums=(0,) if donate else ())
        self._arguments = arguments
        self._donate = donate
        self._result: Any = None
        self._run()  # compiles
        self._took: list[float] = []

    @property
    def seconds(self) -> float:
        """Seconds of one run: the first quartile of all runs so far."""
        return first_quartile(self._took)

    def _run(self) -> None:
        # The previous result is held until the next one is there, as a step's state is.
        self._result = self._jitted(*self._arguments).block_until_ready()
        if self._donate:
            self._arguments = (self._result, *self._arguments[1:])

    def round(self, seconds: float) -> None:
        """Runs the benchmark repeatedly for `seconds`, and records the time of each run."""
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            self._run()
            self._took.append(time.perf_counter() - started)


def first_quartile(seconds: Sequence[float]) -> float:
    """The first quartile of times of runs: other load only adds to them, and the least is luck."""
    return sorted(seconds)[len(seconds) // 4]


def in_turns(benches: Collection[Bench], seconds: float = _MOMENT) -> None:
    """Runs benchmarks alternately, each for `seconds` at a time, so that other load slows all
    alike. Each keeps the times of its runs.
    """
    for _ in range(_ROUNDS):
        for bench in benches:
            bench.round(seconds)


def measure_cpu() -> Device:
    """Measures this machine's CPU under XLA: rates of memory, arithmetic and matrix products."""
    with jax.default_device(jax.devices("cpu")[0]):
        large = jnp.full((_ELEMENTS,), 0.5, jnp.float32)
        small = jnp.full((_CACHED,), 0.5, jnp.float32)
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
        expensive = Bench(jnp.tanh, jnp.full((_SOME,), 0.5, jnp.float32), donate=True)
        product = Bench(jnp.matmul, square, square)
        transposed = Bench(_transposing, across, images, donate=True)
        depthwise = Bench(_depthwise, images[:1])  # slow: of all it would take half the time
        benches = start, memory, inside, outside, plain, expensive, product, transposed, depthwise
        in_turns(benches)
    bandwidth = 3 * 4 * _ELEMENTS / memory.seconds
    size = 4 * images.size
    return Device(
        name="CPU",
        bytes_per_second=bandwidth,
        operations_per_second=2 * _CHAIN * _CACHED / plain.seconds,
        transcendentals_per_second=_SOME / expensive.seconds,
        matrix_per_second=2 * _SQUARE**3 / product.seconds,
        narrow_per_second=2 * _SQUARE**3 / product.seconds,  # its kernels compute in float32
        start_seconds=start.seconds / _CHAIN,
        transposed_bytes_per_second=_rate(size, transposed.seconds - 2 * size / bandwidth),
        depthwise_per_second=2 * _WINDOW**2 * images[0].size / depthwise.seconds,
        fresh_bytes_per_second=_rate(4 * _ELEMENTS, outside.seconds - inside.seconds),
    )


def _rate(amount: float, seconds: float) -> float:
    """Amount per second; infinite where no time was left to measure."""
    return amount / seconds if seconds > 0 else math.inf


def _arithmetic(x: Any) -> Any:
    for k in range(_CHAIN):
        x = jnp.abs(x - (k + 1.0))
    return x


def _transposing(kept: Any, x: Any) -> Any:
    """Writes a function of `x` with channels outermost, as gradients of convolutions want them."""
    return jnp.minimum(kept, jnp.maximum(x * x + x, 0).transpose(_ACROSS))


def _depthwise(x: Any) -> Any:
    """A convolution of each channel by itself, with a window of ones."""
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
    """Runs a chain of _CHAIN small operators that XLA does not fuse."""
    for _ in range(_CHAIN):
        x = jnp.sort(jnp.stack([x, x + 1]))[0]
    return x
