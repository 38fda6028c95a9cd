"""Predicted time on a CPU, with its caches taken into account for transposed reads.

A piece of an array is transposed faster than the whole: fewer cache lines are touched before one of
them is touched again. `CostModel` prices plans at one rate, measured on activations of images. Here
the rate depends on the number of those lines.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from hlo.backend import platform
from hlo.module import Instruction, Module
from olla_xla.remat.cost.calibrate import CACHED, CHAIN, LOCK, Bench, in_turns, kept
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import Work, transposes

__all__ = ["Across", "AcrossCost", "cost_in_pieces", "measure_across"]

_FEW, _MANY = 256, 12_544
"""Cache lines of the benchmark here, and of the images by which the device's rate is measured."""
_SOME = 2048  # lines, where nothing is computed
_COLUMNS, _REPEATS = 512, 8
_KEPT_BYTES = 32 << 20
"""glibc's malloc keeps blocks up to this size; it gets others from the system each time."""


@dataclasses.dataclass(frozen=True)
class Across:
    """Rates of a CPU for functions that run in pieces.

    Attributes:
      few_bytes_per_second: transposed reads with arithmetic, where lines stay in a cache.
      moved_bytes_per_second: transposed reads without arithmetic.
      exponentials_per_second: of exp alone; the device's transcendentals are tanh.
    """

    few_bytes_per_second: float
    moved_bytes_per_second: float
    exponentials_per_second: float


@dataclasses.dataclass(frozen=True)
class AcrossCost(CostModel):
    """Prices instructions for a CPU with caches."""

    across: Across

    def seconds(self, i: Instruction) -> float:
        """Predicted time of an instruction by itself."""
        work = self.work(i)
        exponentials = _exponentials(i)
        rate = self.device.transposed_bytes_per_second
        if work.transposed:
            rate = self._rate(rows_across(i), work)
        priced = dataclasses.replace(
            self.device,
            transposed_bytes_per_second=rate,
            # The mean rate, with exponentials at a rate of their own.
            transcendentals_per_second=self._transcendentals(work.transcendentals, exponentials),
        )
        return priced.seconds(work)

    def run_seconds(self, module: Module, temp_bytes: int) -> float:
        """Predicted time of one run from call to return; malloc keeps few temporaries."""
        return super().run_seconds(module, temp_bytes if temp_bytes > _KEPT_BYTES else 0)

    def _rate(self, rows: int, work: Work) -> float:
        """Bytes a second of a transposed read that touches so many cache lines."""
        if not work.operations and not work.transcendentals:
            return self.across.moved_bytes_per_second
        many = self.device.transposed_bytes_per_second
        few = max(self.across.few_bytes_per_second, many)
        share = math.log(max(rows, _FEW) / _FEW) / math.log(_MANY / _FEW)
        return few * (many / few) ** min(share, 1.0) if math.isfinite(few) else few

    def _transcendentals(self, count: int, exponentials: int) -> float:
        """The mean rate of `count` transcendentals, some of which are exponentials."""
        own = self.device.transcendentals_per_second
        if not exponentials:
            return own
        seconds = exponentials / self.across.exponentials_per_second
        return count / (seconds + (count - exponentials) / own)


def rows_across(i: Instruction) -> int:
    """How many cache lines a transposed read touches before it touches one again."""
    inside = i.called[0].instructions if i.opcode == "fusion" else (i,)
    return max((_rows(k) for k in inside if transposes(k)), default=1)


def _rows(i: Instruction) -> int:
    """Elements of the result between two neighbours of the operand: of its inner dimensions."""
    source = i.operands[0].shape
    within = next(d for d in source.minor_to_major if source.dimensions[d] > 1)
    rows = 1
    for d in i.shape.minor_to_major:
        if i.shape.dimensions[d] > 1:
            if (i.dimensions[d] if i.opcode == "transpose" else d) == within:
                break
            rows *= i.shape.dimensions[d]
    return rows


def _exponentials(i: Instruction) -> int:
    if i.opcode == "fusion":
        return sum(map(_exponentials, i.called[0].instructions))
    return i.shape.num_elements if i.opcode == "exponential" else 0


def cost_in_pieces(target: str, kind: str = "") -> CostModel:
    """The cost model by which a function in pieces is compared with the whole.

    Args:
      target: "cpu", "cuda" or "tpu". kind: JAX's name of the device.
    """
    found = device(target, kind)
    if not platform(target).has_measured_rates:
        return CostModel(found, target)
    with LOCK:
        return AcrossCost(found, target, _measured())


@functools.cache
def _measured() -> Across:
    return kept("cpu-across", Across, measure_across)


def measure_across() -> Across:
    """Measures these rates on this machine, in a second or two."""
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices("cpu")[0]):
        shape = (_REPEATS, _FEW, _COLUMNS)
        few = jnp.full(shape, 0.5, jnp.float32)
        made = jnp.full((_REPEATS, _COLUMNS, _FEW), 0.5, jnp.float32)
        some = jnp.full((1, _SOME, _COLUMNS), 0.5, jnp.float32)
        small = jnp.full((CACHED,), 0.5, jnp.float32)
        reading = Bench(_reading, made, few, donate=True)
        moving = Bench(lambda x: x.transpose(0, 2, 1), some)
        raising = Bench(_raising, small)
        in_turns((reading, moving, raising))
    return Across(
        few_bytes_per_second=few.nbytes / reading.seconds,
        moved_bytes_per_second=some.nbytes / moving.seconds,
        exponentials_per_second=CHAIN * CACHED / raising.seconds,
    )


def _reading(kept: Any, x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.minimum(kept, jnp.maximum(x * x + x, 0).transpose(0, 2, 1))


def _raising(x: Any) -> Any:
    import jax.numpy as jnp

    for _ in range(CHAIN):
        x = jnp.exp(-x)
    return x
