"""An estimate of the most bytes that are live at once, from equations in their order."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from olla_xla.pieces.accumulators import accumulator, is_narrow
from olla_xla.pieces.factors import ELEMENTWISE, REDUCTIONS, SUM, Factor
from olla_xla.pieces.graph import Graph
from olla_xla.pieces.region import LIGHT, AnyStep, Region, Within
from olla_xla.segments.equations import bytes_of, inner_jaxprs, is_variable, operands


@dataclasses.dataclass(frozen=True)
class _LiveStep:
    reads: tuple[Any, ...]
    makes: tuple[tuple[Any, int], ...]
    inside: int = 0


_EXPENSIVE = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma div erf erf_inv erfc exp exp2 expm1
    lgamma log log1p logistic pow rem rsqrt sin sinh sqrt tan tanh threefry2x32
    """.split()
)
"""Elementwise, but computed once: XLA recomputes cheaper ones in each kernel that reads them."""
_FUSED_INTO = frozenset((*ELEMENTWISE, *LIGHT, *REDUCTIONS, "gather", "reshape", "squeeze"))


def _steps(
    equations: Sequence[Any], kept: Iterable[Any], inside: Callable[[int, Any], int]
) -> list[_LiveStep]:
    """Lists equations as steps (what is read, made, and live inside), without elementwise ones that
    XLA fuses into their readers, which then read their operands. Broadcasts and iotas make 0 bytes.
    `kept`: variables not to be fused. `inside`: (index, equation) -> bytes live beside its results.
    """
    kept = set(filter(is_variable, kept))
    readers: dict[Any, list[Any]] = {}
    for e in equations:
        for v in operands(e):
            readers.setdefault(v, []).append(e)
    fused: dict[Any, tuple[Any, ...]] = {}
    steps = []
    for k, e in enumerate(equations):
        reads = tuple(
            dict.fromkeys(w for v in operands(e) for w in fused.get(v, (v,)))  # read there instead
        )
        name = e.primitive.name
        if len(e.outvars) == 1 and (name in ELEMENTWISE or name in LIGHT):
            (v,) = e.outvars
            users = readers.get(v, [])
            if (
                v not in kept
                and all(user.primitive.name in _FUSED_INTO for user in users)
                and (len(users) == 1 or name not in _EXPENSIVE)
            ):
                fused[v] = reads
                continue
        made = tuple((v, 0 if name in LIGHT else bytes_of(v)) for v in e.outvars)
        steps.append(_LiveStep(reads, made, inside(k, e)))
    return steps


def bytes_inside(e: Any) -> int:
    """Estimates the most bytes live in any of the jaxprs that `e` calls (scan, ...), their inputs
    and results left out; 0 if it calls none.
    """
    return max(map(_most_in, inner_jaxprs(e)), default=0)


@functools.lru_cache(4096)
def _most_in(jaxpr: Any) -> int:
    steps = _steps(jaxpr.eqns, jaxpr.outvars, lambda _, e: bytes_inside(e))
    return _most_besides(steps, jaxpr.outvars)


def _most_besides(steps: Sequence[_LiveStep], results: Iterable[Any]) -> int:
    """Returns the most bytes live at any of these steps, without inputs and variables `results`."""
    known = set(filter(is_variable, results))
    inner = [
        dataclasses.replace(s, makes=tuple((v, 0 if v in known else n) for v, n in s.makes))
        for s in steps
    ]
    return max(_live(inner, ()), default=0)


def _live(steps: Sequence[_LiveStep], kept: Iterable[Any]) -> list[int]:
    """Returns the bytes live at each step, inputs left out; `kept` variables live to the end."""
    last: dict[Any, int] = {}
    for k, step in enumerate(steps):
        last.update((v, k) for v in step.reads)
    last.update((v, len(steps)) for v in kept if is_variable(v))
    ends: dict[int, int] = {}
    live, totals = 0, []
    for k, step in enumerate(steps):
        for v, size in step.makes:
            live += size
            end = max(last.get(v, k), k)
            ends[end] = ends.get(end, 0) + size
        totals.append(live + step.inside)
        live -= ends.pop(k, 0)
    return totals


def _region_step(region: Region, part: int, accumulate_dtype: Any) -> _LiveStep:
    """Describes a region, equations that run in at most `part` pieces, as one step: what it reads
    and makes, and an estimate of the bytes live inside it.
    """
    part = min(part, region.units)

    def within(k: int, e: Any) -> int:
        cut = any(d is not None for d in region.chosen[k].outs)
        return bytes_inside(e) // (part if cut else 1)

    kept = [*(v for v, _ in region.stacked), *region.sums, *region.reduced]
    inner = [
        dataclasses.replace(
            step,
            makes=tuple(
                (v, size // part if region.cut.get(v, SUM) >= 0 else size) for v, size in step.makes
            ),
        )
        for step in _steps(region.equations, kept, within)
    ]
    results = [(v, bytes_of(v)) for v in kept]
    # A wider accumulator is there until the last piece is added and the sum is cast.
    wide = sum(
        v.aval.size * jnp.dtype(accumulator(v.aval.dtype, accumulate_dtype)).itemsize
        for v in region.sums
        if is_narrow(v.aval.dtype, accumulate_dtype)
    )
    narrow = sum(bytes_of(v) for v in region.sums if is_narrow(v.aval.dtype, accumulate_dtype))
    most = max(_live(inner, ()), default=0)
    return _LiveStep(
        tuple(region.reads),
        tuple(results),
        max(most + wide - narrow, wide) + part * sum(map(bytes_of, region.reduced)),
    )


def peaks(
    steps: Sequence[AnyStep], outputs: Iterable[Any], part: int, accumulate_dtype: Any
) -> list[int]:
    """Estimates for each step of a function the most bytes live during it, the function's inputs
    left out. `steps`: what runs whole, Regions that run in `part` pieces, or calls that hold such,
    in order. `outputs`: the function's variables. Sums over pieces are added in `accumulate_dtype`.
    """
    small = [_small(step, part, accumulate_dtype) for step in steps]
    ends = itertools.accumulate(map(len, small), initial=0)
    live = _live([*itertools.chain(*small)], outputs)
    return [max(live[a:b], default=0) for a, b in itertools.pairwise(ends)]


def _small(step: AnyStep, part: int, accumulate_dtype: Any) -> list[_LiveStep]:
    if isinstance(step, Region):
        return [_region_step(step, part, accumulate_dtype)]
    if isinstance(step, Graph):
        return _steps(step.equations, step.outputs, lambda _, e: bytes_inside(e))
    within = max(
        _most_besides([s for one in steps for s in _small(one, part, accumulate_dtype)], g.outputs)
        for g, steps in step.bodies
    )
    (e,) = step.equations
    return [_LiveStep(tuple(step.reads), tuple((v, bytes_of(v)) for v in e.outvars), within)]


def largest(steps: Sequence[AnyStep], part: int) -> int:
    """Returns the bytes of the largest value that equations of these steps, but for broadcasts and
    iotas, make, also inside calls. Regions make a value in `part` pieces, one at a time, unless it
    is joined from them as a result, or added up.
    """
    most = 0
    for step in steps:
        if isinstance(step, Within):
            inner = (largest(steps, part) for _, steps in step.bodies)
            most = max(most, *map(bytes_of, step.equations[0].outvars), *inner)
        elif isinstance(step, Graph):
            most = max(most, _largest(step.equations, {}, {}, 1))
        else:
            cut = {v: d for v, d in step.cut.items() if (v, d) not in step.stacked}
            most = max(most, _largest(step.equations, step.chosen, cut, min(part, step.units)))
    return most


def _largest(
    equations: Sequence[Any], chosen: Mapping[int, Factor], cut: Mapping[Any, int], part: int
) -> int:
    """Returns the bytes of the largest value that equations make, as in `largest`; variables of
    `cut` (to dimensions) are made in `part` pieces. `chosen`: index -> how an equation is cut.
    """
    most = 0
    for k, e in enumerate(equations):
        made = () if e.primitive.name in LIGHT else e.outvars
        sizes = [bytes_of(v) // (part if cut.get(v, SUM) >= 0 else 1) for v in made]
        called, f = inner_jaxprs(e), chosen.get(k)
        # A custom rule is not run.
        inner = f.inner[: len(called)] if f is not None else ()
        sizes += [_largest(s.graph.equations, s.chosen, s.cut, part) for s in inner]
        sizes += [] if inner else [_largest(j.eqns, {}, {}, 1) for j in called]
        most = max(most, *sizes, 0)
    return most
