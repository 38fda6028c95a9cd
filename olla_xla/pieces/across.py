"""Predicted time on a CPU, with its caches taken into account for transposed reads.

A piece of an array is transposed faster than the whole: fewer pages of memory are touched before
one of them is touched again, so their addresses stay known to the processor, and their lines in its
caches. `CostModel` prices plans at one rate, measured on activations of images. Here the rate
depends on the number of those pages, of all arrays that an operator reads so. Matrix products take
what they were timed at on this machine.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hlo.backend import platform
from hlo.module import Instruction, Module
from olla_xla.pieces.timed_products import Product, heaviest, product_of, timed
from olla_xla.remat.cost.calibrate import LOCK, kept
from olla_xla.remat.cost.cpu_benchmarks import Bench, in_turns
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import Work, transposes

_FEW, _MANY = 256, 4096  # pages of the benchmark of `few` at most, and of that of `many`
_CROWDED = 16  # how often the lines of the benchmark of `few` fill their part of a first cache
_PAGE, _WAYS = 4096, 8
"""Bytes of a page; cache lines that lie alike in their pages of which a first cache holds all."""
_HELD, _READ_FEW, _READ_MANY = (16, 128, 352), (8, 256, 512), (1, 2048, 3072)  # float32
_SOME = 2048  # lines, where nothing is computed
_COLUMNS = 512
_KEPT_BYTES = 32 << 20  # glibc's malloc keeps blocks up to this size, others it returns


@dataclasses.dataclass(frozen=True)
class Across:
    """Measured bytes a second at which this CPU reads arrays transposed: neighbours lie far apart.
    With arithmetic: `held`, if a first-level cache holds each line until it is read on; `few`, if
    lines evict each other, in few memory pages; `many`, in many pages. `moved`: without arithmetic.
    """

    held_bytes_per_second: float
    few_bytes_per_second: float
    many_bytes_per_second: float
    moved_bytes_per_second: float


@dataclasses.dataclass(frozen=True)
class Strides:
    """How a transposed read steps through memory: it reads one element of each of `rows` rows,
    which are `apart` bytes from one to the next, of `arrays` arrays at once, before the next of
    each.
    """

    rows: int
    apart: int
    arrays: int

    @property
    def pages(self) -> float:
        """Pages touched by one element of each row; 0 for rows less than half a page apart."""
        if 2 * self.apart < _PAGE:
            return 0.0
        return self.arrays * self.rows * min(self.apart / _PAGE, 1.0)

    @property
    def crowding(self) -> float:
        """How many cache lines one element of each row takes, in multiples of what their sets hold.
        Rows a multiple of half a page apart have lines in one set or two of a first-level cache,
        and evict each other. Others count as 1: they were as fast as lines that the cache holds.
        """
        if self.apart % (_PAGE // 2):
            return 1.0
        places = 1 if self.apart % _PAGE == 0 else 2
        return self.arrays * self.rows / (_WAYS * places)


@dataclasses.dataclass(frozen=True)
class AcrossCost(CostModel):
    """A CPU's cost model with measured rates of transposed reads and times of matrix products."""

    across: Across
    products: Mapping[Product, float] = dataclasses.field(default_factory=dict)

    def seconds(self, i: Instruction) -> float:
        """Returns the predicted seconds of one run of instruction `i` by itself."""
        work, priced = self._as_timed(i), self.device
        if work.transposed:
            moves = not work.operations and not work.transcendentals
            rate = self.across.moved_bytes_per_second if moves else self._rate(strides_of(i))
            priced = dataclasses.replace(priced, transposed_bytes_per_second=rate)
        return priced.seconds(work)

    def run_seconds(self, module: Module, temp_bytes: int) -> float:
        """Predicts a run's seconds; up to 32 MB of temporaries take no time to allocate."""
        return super().run_seconds(module, temp_bytes if temp_bytes > _KEPT_BYTES else 0)

    def _rate(self, strides: Strides) -> float:
        """Returns bytes a second of a transposed read with arithmetic that has these strides."""
        measured = self.across
        many = measured.many_bytes_per_second
        few = max(measured.few_bytes_per_second, many)
        held = max(measured.held_bytes_per_second, few)
        rate = _between(few, many, strides.pages / _FEW, _MANY / _FEW)
        return rate * _between(held / few, 1.0, strides.crowding, _CROWDED)

    def _as_timed(self, i: Instruction) -> Work:
        """Returns an instruction's work. A matrix product that was timed counts as many operations
        as take the measured time.
        """
        work = self.work(i)
        product = product_of(i) if work.matrix or work.narrow else None
        if product is None or product not in self.products:
            return work
        operations = round(self.products[product] * self.device.matrix_per_second)
        return dataclasses.replace(work, matrix=operations, narrow=0)


def _between(first: float, last: float, size: float, most: float) -> float:
    """Interpolates log by log(size): `first` up to size 1, or if it is inf; `last` from `most`."""
    if size <= 1 or not math.isfinite(first):
        return first
    return first * (last / first) ** min(math.log(size) / math.log(most), 1.0)


def strides_of(i: Instruction) -> Strides:
    """Returns the Strides (steps through memory) of the transposed read in instruction `i` or its
    fusion that touches most pages; those of a single row if there is none.
    """
    inside = i.called[0].instructions if i.opcode == "fusion" else (i,)
    strides = (_strides(k) for k in inside if transposes(k))
    return max(strides, key=lambda s: (s.pages, s.rows), default=Strides(1, 0, 1))


def _strides(i: Instruction) -> Strides:
    """Returns how transposition `i` steps through memory: `arrays` counts the parameters that it
    depends on and that are as large as its operand.
    """
    source, rows = i.operands[0].shape, _rows(i)
    arrays, seen = 0, list(i.operands)
    for k in seen:  # grows
        arrays += k.opcode == "parameter" and k.shape.num_elements == source.num_elements
        seen += [o for o in k.operands if o not in seen]
    return Strides(rows, source.bytes // rows, max(arrays, 1))


def _rows(i: Instruction) -> int:
    """Returns how far apart in the result, in elements, the operand's neighbours in memory are."""
    source = i.operands[0].shape
    within = next(d for d in source.minor_to_major if source.dimensions[d] > 1)
    rows = 1
    for d in i.shape.minor_to_major:
        if i.shape.dimensions[d] > 1:
            if (i.dimensions[d] if i.opcode == "transpose" else d) == within:
                break
            rows *= i.shape.dimensions[d]
    return rows


def cost_in_pieces(target: str, kind: str, module: Module) -> CostModel:
    """Returns the cost model by which a function that runs in pieces is compared with the whole
    one. On a CPU it has times of the heaviest matrix products of `module` and of transposed reads;
    those not on file are measured and kept. `target`: such as "cuda". `kind`: JAX's name of the
    device.
    """
    rates = device(target, kind)
    if not platform(target).has_measured_rates:
        return CostModel(rates, target)
    with LOCK:
        return AcrossCost(rates, target, _measured(), timed(heaviest(module)))


@functools.cache
def _measured() -> Across:
    return kept("cpu-across", Across, measure_across)


def measure_across() -> Across:
    """Measures at how many bytes a second this CPU reads transposed, in two or three seconds."""
    with jax.default_device(jax.devices("cpu")[0]):
        held, few, many = (
            jnp.full(shape, 0.5, jnp.float32) for shape in (_HELD, _READ_FEW, _READ_MANY)
        )
        some = jnp.full((1, _SOME, _COLUMNS), 0.5, jnp.float32)
        reading_held, reading_few = (
            Bench(_reading, x.transpose(0, 2, 1), x, donate=True) for x in (held, few)
        )
        reading_many = Bench(_reading_two, many.transpose(0, 2, 1), many, many + 1, donate=True)
        moving = Bench(lambda x: x.transpose(0, 2, 1), some)
        in_turns((reading_held, reading_few, reading_many, moving))
    return Across(
        held_bytes_per_second=held.nbytes / reading_held.seconds,
        few_bytes_per_second=few.nbytes / reading_few.seconds,
        many_bytes_per_second=2 * many.nbytes / reading_many.seconds,
        moved_bytes_per_second=some.nbytes / moving.seconds,
    )


def _reading(kept: Any, x: Any) -> Any:
    return jnp.minimum(kept, jnp.maximum(x * x + x, 0).transpose(0, 2, 1))


def _reading_two(kept: Any, x: Any, y: Any) -> Any:
    return jnp.minimum(kept, jnp.maximum(x * x * y + x, 0).transpose(0, 2, 1))
