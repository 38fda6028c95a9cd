"""Matrix products timed on this machine's CPU, each in the form in which a module has it.

What a product takes depends on its form: on which operand is transposed, how narrow it is, which
library XLA calls for it. Of as many operations, one form takes ten times as long as another, so no
rate prices them all. Sekiyama et al. 2018 plan from a profile; this is one of a module's products.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hlo.module import Computation, Instruction, Module
from olla_xla.remat.cost.calibrate import kept
from olla_xla.remat.cost.cpu_benchmarks import Bench, in_turns
from olla_xla.remat.cost.work import trips

_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
"""XLA's name of a type -> JAX's."""
_OPERATIONS, _ELEMENTS = 1 << 33, 1 << 26  # of what is timed; of a larger product a part is
_PART, _MOST = 0.95, 16
"""Products are timed that have this part of a module's operations, and no more than so many."""
_MOMENT = 0.01  # seconds
_REPEATED, _MOST_REPEATS = 1 << 29, 64
"""Multiply-adds in a run of a benchmark, if no more than so many products have them."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A matrix product; its dimensions are numbered: the result's in order, then those summed over.
    `sizes`: of all dimensions. `rank`: how many of them the result has. `first`, `second`: the
    operands' dimensions as they lie in memory, outermost first. `dtypes`: XLA's names of the
    operands' types and the result's.
    """

    sizes: tuple[int, ...]
    rank: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    dtypes: tuple[str, str, str]

    @property
    def operations(self) -> int:
        """The number of multiply-adds that the product takes."""
        return math.prod(self.sizes)

    def part(self) -> Product:
        """Returns the product to time instead: itself, its longest dimension halved until small."""
        sizes = list(self.sizes)
        while math.prod(sizes) > _OPERATIONS or self._elements(sizes) > _ELEMENTS:
            longest = sizes.index(max(sizes))
            sizes[longest] = (sizes[longest] + 1) // 2
        return dataclasses.replace(self, sizes=tuple(sizes))

    @property
    def repeats(self) -> int:
        """How many times one benchmark run computes the product, to outweigh starting threads."""
        return max(min(_REPEATED // self.operations, _MOST_REPEATS), 1)

    def bench(self) -> Bench:
        """Makes a benchmark that computes this product `repeats` times, over the last result."""
        x, y, made = (
            jnp.full([self.sizes[d] for d in dims], 0.5, _DTYPES[dtype])
            for dims, dtype in zip(self._arrays(), self.dtypes, strict=True)
        )
        both = sorted(set(self.first) & set(self.second))
        contracting, batch = (
            (tuple(self.first.index(d) for d in dims), tuple(self.second.index(d) for d in dims))
            for dims in ([d for d in both if d >= self.rank], [d for d in both if d < self.rank])
        )
        smaller = int(x.size > y.size)

        def again(_: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
            # One element of an operand depends on the last result, so that each run is computed.
            made, *given = carry
            one = jnp.minimum(made[(0,) * made.ndim], 0.5).astype(given[smaller].dtype)
            given[smaller] = given[smaller].at[(0,) * given[smaller].ndim].set(one)
            product = jax.lax.dot_general(
                given[0], given[1], (contracting, batch), preferred_element_type=made.dtype
            )
            return product, *given

        def run(made: Any, x: Any, y: Any) -> Any:
            return jax.lax.fori_loop(0, self.repeats, again, (made, x, y))[0]

        return Bench(run, made, x, y, donate=True)

    def _arrays(self) -> tuple[Iterable[int], ...]:
        return self.first, self.second, range(self.rank)

    def _elements(self, sizes: list[int]) -> int:
        return sum(math.prod(sizes[d] for d in dims) for dims in self._arrays())


@dataclasses.dataclass(frozen=True)
class _StoredTimes:
    """Seconds, one for each product in the order asked for: the form in which a file keeps them."""

    seconds: list[float]


def product_of(i: Instruction) -> Product | None:
    """Returns the matrix product that instruction `i` or its fusion computes; None if there is
    none, or more than one, or one of another form or of types that are not timed.
    """
    inside = i.called[0].instructions if i.opcode == "fusion" else (i,)
    dots = [k for k in inside if k.opcode == "dot"]
    if len(dots) != 1:
        return None
    (dot,) = dots
    assert dot.proto is not None
    numbers = dot.proto.dot_dimension_numbers
    shapes = [o.shape for o in dot.operands]
    summed = [
        tuple(n) for n in (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)
    ]
    free = [
        [d for d in range(len(s.dimensions)) if d not in over]
        for s, over in zip(shapes, summed, strict=True)
    ]
    rank, count = len(dot.shape.dimensions), len(summed[0])
    batch = sum(map(len, free)) - rank  # leading: XLA:CPU brings them there
    own = (range(len(free[0])), (*range(batch), *range(len(free[0]), rank)))
    names = [
        dict(zip((*free[k], *summed[k]), (*own[k], *range(rank, rank + count)), strict=True))
        for k in (0, 1)
    ]
    sizes = [0] * (rank + count)
    for shape, named in zip(shapes, names, strict=True):
        for d, name in named.items():
            sizes[name] = shape.dimensions[d]
    dtypes = (shapes[0].dtype, shapes[1].dtype, dot.shape.dtype)
    if tuple(sizes[:rank]) != dot.shape.dimensions or not all(t in _DTYPES for t in dtypes):
        return None
    first, second = (
        tuple(named[d] for d in reversed(shape.minor_to_major))
        for shape, named in zip(shapes, names, strict=True)
    )
    return Product(tuple(sizes), rank, first, second, dtypes)


def heaviest(module: Module) -> list[Product]:
    """Returns the fewest matrix products that have 95 % of the operations of all in a module's run,
    or the 16 heaviest if more would be needed; most operations first.
    """
    total: dict[Product, int] = {}
    for i, times in _run(module.entry, 1):
        if (product := product_of(i)) is not None:
            total[product] = total.get(product, 0) + times * product.operations
    heavy: list[Product] = []
    left, within = sum(total.values()), (1 - _PART) * sum(total.values())
    for product in sorted(total, key=lambda p: -total[p])[:_MOST]:
        if left <= within:
            break
        heavy.append(product)
        left -= total[product]
    return heavy


def _run(computation: Computation, times: int) -> Iterator[tuple[Instruction, int]]:
    """Yields (instruction, how often it runs) of a computation that runs `times` times, and of the
    computations that its loops, branches and calls run.
    """
    for i in computation.instructions:
        yield i, times
        for c in i.called_control:
            yield from _run(c, times * trips(i))


def timed(products: list[Product]) -> Mapping[Product, float]:
    """Returns seconds of one run of each product, from the file of an earlier measurement, or
    measured and kept in one. The caller holds `calibrate.LOCK`.
    """
    if not products:
        return {}
    digest = hashlib.sha256(repr(products).encode()).hexdigest()[:16]
    times = kept(
        f"cpu-products-{digest}", _StoredTimes, lambda: _StoredTimes(measure_products(products))
    )
    return dict(zip(products, times.seconds, strict=True))


def measure_products(products: Sequence[Product]) -> list[float]:
    """Measures the seconds of one run of each product on this CPU, some tenths of a second each."""
    parts = [p.part() for p in products]
    with jax.default_device(jax.devices("cpu")[0]):
        nothing = Bench(lambda x: x, jax.numpy.float32(1.0), donate=True)
        benches = {part: part.bench() for part in dict.fromkeys(parts)}
        in_turns((nothing, *benches.values()), _MOMENT)
    return [
        max(benches[part].seconds - nothing.seconds, 0.0)
        / part.repeats
        * (p.operations / part.operations)
        for p, part in zip(products, parts, strict=True)
    ]
