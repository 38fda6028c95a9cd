"""An estimate of the most bytes that are live at once, from equations in their order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from olla_xla.pieces.dtypes import accumulator, is_narrow
from olla_xla.pieces.factors import ELEMENTWISE, REDUCTIONS, SUM
from olla_xla.pieces.graph import Graph
from olla_xla.pieces.region import LIGHT, Region, nbytes, operands
from olla_xla.segments.trace import is_variable


@dataclasses.dataclass(frozen=True)
class _Step:
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
) -> list[_Step]:
    """Equations as steps; an elementwise one that XLA fuses into its readers is no step.

    Args:
      kept: what others read. inside: (index, equation) -> bytes it needs besides its results.
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
        made = tuple((v, 0 if name in LIGHT else nbytes(v)) for v in e.outvars)
        steps.append(_Step(reads, made, inside(k, e)))
    return steps


def _inside(e: Any) -> int:
    """The most bytes live in jaxprs that an equation calls, without their inputs and outputs."""
    return max((_most_in(j) for j in _jaxprs(e)), default=0)


def _jaxprs(e: Any) -> list[Any]:
    params = (x for p in e.params.values() for x in (p if isinstance(p, tuple) else (p,)))
    return [getattr(p, "jaxpr", p) for p in params if hasattr(getattr(p, "jaxpr", p), "eqns")]


@functools.lru_cache(4096)
def _most_in(jaxpr: Any) -> int:
    results = set(filter(is_variable, jaxpr.outvars))
    steps = [
        dataclasses.replace(s, makes=tuple((v, 0 if v in results else n) for v, n in s.makes))
        for s in _steps(jaxpr.eqns, jaxpr.outvars, lambda _, e: _inside(e))
    ]
    return max(_live(steps, ()), default=0)


def _live(steps: Sequence[_Step], kept: Iterable[Any]) -> list[int]:
    """For each step the bytes that are live at it, without inputs."""
    last: dict[Any, int] = {}
    for k, step in enumerate(steps):
        last.update((v, k) for v in step.reads)
    last.update((v, len(steps)) for v in kept if is_variable(v))
    ends: dict[int, int] = {}
    live, found = 0, []
    for k, step in enumerate(steps):
        for v, size in step.makes:
            live += size
            end = max(last.get(v, k), k)
            ends[end] = ends.get(end, 0) + size
        found.append(live + step.inside)
        live -= ends.pop(k, 0)
    return found


def _region_step(region: Region, part: int, accumulate_dtype: Any) -> _Step:
    """A region as one step, run in at most `part` pieces."""
    part = min(part, region.units)

    def within(k: int, e: Any) -> int:
        cut = any(d is not None for d in region.chosen[k].outs)
        return _inside(e) // (part if cut else 1)

    kept = [*(v for v, _ in region.stacked), *region.sums]
    inner = [
        dataclasses.replace(
            step,
            makes=tuple(
                (v, size // part if region.cut.get(v, SUM) != SUM else size)
                for v, size in step.makes
            ),
        )
        for step in _steps(region.equations, kept, within)
    ]
    results = [*((v, nbytes(v)) for v, _ in region.stacked), *((v, nbytes(v)) for v in region.sums)]
    # A wider accumulator is there until the last piece is added and the sum is cast.
    wide = sum(
        v.aval.size * jnp.dtype(accumulator(v.aval.dtype, accumulate_dtype)).itemsize
        for v in region.sums
        if is_narrow(v.aval.dtype, accumulate_dtype)
    )
    narrow = sum(nbytes(v) for v in region.sums if is_narrow(v.aval.dtype, accumulate_dtype))
    most = max(_live(inner, ()), default=0)
    return _Step(
        (*(v for v, _ in region.cut_inputs), *region.whole_inputs),
        tuple(results),
        max(most + wide - narrow, wide),
    )


def peaks(
    steps: Sequence[Graph | Region], outputs: Iterable[Any], part: int, accumulate_dtype: Any
) -> list[int]:
    """For each step, an estimate of its peak in bytes, without the function's inputs.

    Args:
      steps: equations that run whole, or regions that run in pieces, one after another.
      outputs: of the function. part: number of pieces. accumulate_dtype: of sums over them.
    """
    small: list[_Step] = []
    ends: list[int] = []
    for step in steps:
        if isinstance(step, Region):
            small.append(_region_step(step, part, accumulate_dtype))
        else:
            small += _steps(step.equations, step.outputs, lambda _, e: _inside(e))
        ends.append(len(small))
    live = _live(small, outputs)
    return [max(live[a:b], default=0) for a, b in zip([0, *ends], ends, strict=False)]


def largest(steps: Sequence[Graph | Region], part: int) -> int:
    """Bytes of the largest value that any equation makes, if regions run in `part` pieces."""
    most = 0
    for step in steps:
        stacked = {v for v, _ in step.stacked} if isinstance(step, Region) else set()
        for e in step.equations:
            for v in () if e.primitive.name in LIGHT else e.outvars:
                size = nbytes(v)
                if isinstance(step, Region) and v not in stacked:
                    size //= min(part, step.units) if step.cut.get(v, SUM) != SUM else 1
                most = max(most, size)
    return most
