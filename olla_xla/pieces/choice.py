"""The axis that is cut: of those through the largest values, the one that leaves least."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from olla_xla.errors import InputError
from olla_xla.pieces.factors import SUM
from olla_xla.pieces.graph import Blocked, Graph, Spread, spread
from olla_xla.pieces.region import LIGHT, Region, nbytes, peak, settled
from olla_xla.remat.segments.trace import is_variable, user_line

__all__ = ["choose", "line_of", "pieces_for"]

_SEEDS = 8
"""How many of the largest values are tried: those that are live at the peak are among them."""
_USUAL = 16
"""Pieces for which axes are compared."""
_GAIN = 0.02
"""The part of the peak that a cut must save at least."""


@dataclasses.dataclass(frozen=True)
class _Candidate:
    region: Region
    peak: int


def choose(graph: Graph, seeds: Mapping[Any, int] | None, pieces: int | None, name: str) -> Region:
    """The region that leaves the lowest peak by an estimate.

    Args:
      seeds: variables and the dimensions along which they are to be cut; None: whatever is best.
      name: of the function, for messages.

    Raises:
      InputError: nothing can be cut, or nothing would be saved; it names what forbids it.
    """
    part = pieces or _USUAL
    whole = peak(graph, None, 1)
    ends = _Ends(graph, [], [])
    best: _Candidate | None = None
    for seed in [seeds] if seeds is not None else _seeds(graph):
        s = spread(graph, seed)
        region, ended = settled(s)
        ends.blocked.extend(b for b in s.blocked if b.dim != SUM)
        ends.sums.extend(_sum_before(s, i) for i in ended)
        if region is not None:
            left = peak(graph, region, part)
            if best is None or left < best.peak:
                best = _Candidate(region, left)
    if best is not None and best.peak <= (1 - _GAIN) * whole:
        return best.region
    where = " along that axis" if seeds is not None else ""
    raise InputError(f"nothing of {name} can be cut{where}: {_reason(ends)}")


def _seeds(graph: Graph) -> Iterable[Mapping[Any, int]]:
    """Each dimension of each of the largest values."""
    made = [v for e in graph.equations if e.primitive.name not in LIGHT for v in e.outvars]
    for v in sorted(made, key=nbytes, reverse=True)[:_SEEDS]:
        for d, n in enumerate(v.aval.shape):
            if n > 1:
                yield {v: d}


@dataclasses.dataclass(frozen=True)
class _Ends:
    """What ended the cuts that were tried: equations at their ends, and sums that they need."""

    graph: Graph
    blocked: list[Blocked]
    sums: list[int]


def _sum_before(s: Spread, i: int) -> int:
    """The equation that makes the sum over the axis that this one, or one above it, reads."""
    while True:
        operands = [v for v in s.graph.equations[i].invars if is_variable(v)]
        made = [s.graph.producer[v] for v in operands if v in s.graph.producer]
        sums = [k for k in made if s.cut.get(s.graph.equations[k].outvars[0]) == SUM]
        if sums or not made:
            return max(sums, default=i)
        i = max(made)


def _reason(ends: _Ends) -> str:
    """What forbids the cut, the operations that have no rule for it first."""
    graph, mixing = ends.graph, [b for b in ends.blocked if not _is_known(ends.graph, b)]
    if not mixing and ends.sums:
        e = graph.equations[ends.sums[0]]
        return (
            f"{e.primitive.name} at {line_of(e)} mixes it: each index needs that sum, "
            f"{e.outvars[0].aval.str_short()}"
        )
    if not ends.blocked:
        return "no value inside is large beside what it is given and what it returns"
    first = max(mixing or ends.blocked, key=lambda b: nbytes(b.value))
    e = graph.equations[first.equation]
    why = "mixes" if mixing else "needs the whole of"
    shape = first.value.aval.str_short()
    return f"{e.primitive.name} at {line_of(e)} {why} dimension {first.dim} of {shape}"


def _is_known(graph: Graph, b: Blocked) -> bool:
    """Whether the equation could be cut there if other values were cut otherwise."""
    e = graph.equations[b.equation]
    for f in graph.factors(b.equation):
        pairs = [*zip(e.invars, f.ins, strict=True), *zip(e.outvars, f.outs, strict=True)]
        if any(v is b.value and d == b.dim for v, d in pairs):
            return True
    return False


def line_of(e: Any) -> str:
    """The user's file and line of an equation, for messages."""
    return user_line(e) or "an unknown line"


def pieces_for(region: Region) -> int:
    """The fewest pieces after which more would save little: a power of two, or 2 at least."""
    graph = region.graph
    whole, pieces, known = peak(graph, None, 1), 2, peak(graph, region, 2)
    while pieces * 2 <= region.units:
        more = peak(graph, region, pieces * 2)
        if known - more < _GAIN * whole:
            break
        pieces, known = pieces * 2, more
    return pieces
