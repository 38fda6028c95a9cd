"""Which equations are run a piece at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from olla_xla.pieces.factors import SUM, Factor
from olla_xla.pieces.graph import Graph, Spread, units_of
from olla_xla.remat.segments.trace import is_variable

__all__ = ["LIGHT", "Region", "largest", "nbytes", "peak", "region_of", "settled"]

LIGHT = frozenset(("broadcast_in_dim", "iota"))
"""Made where they are read, inside other kernels: they take no memory of their own."""


@dataclasses.dataclass(frozen=True)
class Region:
    """Equations that run a piece at a time, as a step of their own between others.

    Attributes:
      members: their indices, ascending. before, after: those of other equations.
      equations: the members. chosen: by place among them, the factor of each.
      cut_inputs: arrays that are read a piece at a time, and along which dimension.
      whole_inputs: what each piece reads whole.
      stacked: results that keep the axis, and in which dimension. sums: those summed over it.
      units: into how many equal parts the axis can be cut.
    """

    graph: Graph
    cut: dict[Any, int]
    members: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    equations: tuple[Any, ...]
    chosen: dict[int, Factor]
    cut_inputs: tuple[tuple[Any, int], ...]
    whole_inputs: tuple[Any, ...]
    stacked: tuple[tuple[Any, int], ...]
    sums: tuple[Any, ...]
    units: int


def nbytes(v: Any) -> int:
    """Bytes of a value."""
    return getattr(v.aval, "size", 0) * getattr(getattr(v.aval, "dtype", None), "itemsize", 0)


def _operands(e: Any) -> Iterable[Any]:
    return dict.fromkeys(filter(is_variable, e.invars))


def _below(graph: Graph, sources: set[int]) -> set[int]:
    """Equations that depend on these, which are not among them unless they depend on others."""
    tainted = {v for i in sources for v in graph.equations[i].outvars}
    found = set()
    for i in range(min(sources, default=0), len(graph.equations)):
        e = graph.equations[i]
        if any(v in tainted for v in _operands(e)):
            found.add(i)
            tainted.update(e.outvars)
    return found


def _above(graph: Graph, sinks: set[int]) -> set[int]:
    """Equations that these depend on."""
    wanted = {v for i in sinks for v in _operands(graph.equations[i])}
    found = set()
    for i in range(max(sinks, default=-1), -1, -1):
        e = graph.equations[i]
        if any(v in wanted for v in e.outvars):
            found.add(i)
            wanted.update(_operands(e))
    return found


def settled(s: Spread) -> tuple[Region | None, list[int]]:
    """The region of a cut without what keeps it from running as one step.

    An equation outside that depends on the region's and feeds it, as a mean over the axis does that
    each element is divided by, needs all pieces before the first: what is above it is left out, or
    what is below, whichever is fewer bytes.

    Returns:
      The region, or None where nothing is left; and such equations.
    """
    ended: list[int] = []
    members = _sound(s, set(s.chosen))
    while members:
        between = (_below(s.graph, members) & _above(s.graph, members)) - members
        if not between:
            return region_of(s, members), ended
        one = {min(between)}
        ended += one
        above, below = members & _above(s.graph, one), members & _below(s.graph, one)
        fewer = min(above, below, key=lambda part: _weight(s.graph, part))
        members = _sound(s, members - fewer)
    return None, ended


def _weight(graph: Graph, part: set[int]) -> int:
    return sum(nbytes(v) for i in part for v in graph.equations[i].outvars)


def _sound(s: Spread, members: set[int]) -> set[int]:
    """Without members that read a sum whose parts are made by none."""
    kept: set[int] = set()
    made: set[Any] = set()
    for i in sorted(members):
        e, f = s.graph.equations[i], s.chosen[i]
        if all(d != SUM or v in made for v, d in zip(e.invars, f.ins, strict=True)):
            kept.add(i)
            made.update(e.outvars)
    return kept


def region_of(s: Spread, members: set[int]) -> Region | None:
    """The region of these equations; None where there is none, or one piece is all there can be."""
    graph, order = s.graph, tuple(sorted(members))
    equations = tuple(graph.equations[i] for i in order)
    chosen = {k: s.chosen[i] for k, i in enumerate(order)}
    units = units_of(chosen, equations)
    if units < 2:
        return None
    below = _below(graph, members)
    outside = [i for i in range(len(graph.equations)) if i not in members]
    made = {v for e in equations for v in e.outvars}
    cut_inputs: dict[Any, int] = {}
    whole: dict[Any, None] = {}
    for k, e in enumerate(equations):
        for v, d in zip(e.invars, chosen[k].ins, strict=True):
            if is_variable(v) and v not in made:
                if d is None:
                    whole[v] = None
                else:
                    cut_inputs[v] = d
    results = set(filter(is_variable, graph.outputs)) & made
    for v in made:
        if any(i not in members for i in graph.consumers.get(v, ())):
            results.add(v)
    ordered = [v for e in equations for v in e.outvars if v in results]
    if any(v not in s.cut for v in ordered):
        return None
    return Region(
        graph=graph,
        cut=s.cut,
        members=order,
        before=tuple(i for i in outside if i not in below),
        after=tuple(i for i in outside if i in below),
        equations=equations,
        chosen=chosen,
        cut_inputs=tuple(cut_inputs.items()),
        whole_inputs=tuple(whole),
        stacked=tuple((v, s.cut[v]) for v in ordered if s.cut[v] != SUM),
        sums=tuple(v for v in ordered if s.cut[v] == SUM),
        units=units,
    )


@dataclasses.dataclass(frozen=True)
class _Step:
    reads: tuple[Any, ...]
    makes: tuple[tuple[Any, int], ...]
    inside: int = 0


def _step(e: Any) -> _Step:
    light = e.primitive.name in LIGHT
    made = tuple((v, 0 if light else nbytes(v)) for v in e.outvars)
    return _Step(tuple(_operands(e)), made, _inside(e))


def _inside(e: Any) -> int:
    """The largest value that a call makes inside."""
    return max((_largest_in(j) for j in _jaxprs(e)), default=0)


def _jaxprs(e: Any) -> list[Any]:
    params = (x for p in e.params.values() for x in (p if isinstance(p, tuple) else (p,)))
    return [getattr(p, "jaxpr", p) for p in params if hasattr(getattr(p, "jaxpr", p), "eqns")]


@functools.lru_cache(4096)
def _largest_in(jaxpr: Any) -> int:
    return max(
        (max((*map(nbytes, e.outvars), _inside(e))) for e in jaxpr.eqns if e.outvars), default=0
    )


def _peak(steps: Sequence[_Step], given: Iterable[Any], kept: Iterable[Any]) -> int:
    """The most bytes that are live at a step, besides what is given."""
    last: dict[Any, int] = {}
    for k, step in enumerate(steps):
        last.update((v, k) for v in step.reads)
    last.update((v, len(steps)) for v in kept if is_variable(v))
    ends: dict[int, int] = {}
    live = most = 0
    given = set(given)
    for k, step in enumerate(steps):
        for v, size in step.makes:
            live += size
            end = max(last.get(v, k), k)
            ends[end] = ends.get(end, 0) + size
        most = max(most, live + step.inside)
        live -= ends.pop(k, 0)
    return most


def peak(graph: Graph, region: Region | None, part: int) -> int:
    """An estimate of the most bytes that are live at once besides the function's inputs.

    Args:
      region: what runs in pieces, or None. part: into how many pieces.
    """
    if region is None:
        return _peak([_step(e) for e in graph.equations], graph.inputs, graph.outputs)
    part = min(part, region.units)
    inner = []
    for k, e in enumerate(region.equations):
        step = _step(e)
        cut = any(d is not None for d in region.chosen[k].outs)
        sizes = tuple(
            (v, size // part if region.cut.get(v, SUM) != SUM else size) for v, size in step.makes
        )
        inner.append(_Step(step.reads, sizes, step.inside // (part if cut else 1)))
    stacked = tuple((v, nbytes(v)) for v, _ in region.stacked)
    sums = tuple((v, nbytes(v)) for v in region.sums)
    whole = _Step(
        (*(v for v, _ in region.cut_inputs), *region.whole_inputs),
        (*stacked, *sums),
        _peak(inner, (), ()),
    )
    steps = [_step(graph.equations[i]) for i in region.before]
    steps += [whole, *(_step(graph.equations[i]) for i in region.after)]
    return _peak(steps, graph.inputs, graph.outputs)


def largest(graph: Graph, region: Region | None, part: int) -> int:
    """Bytes of the largest value that an equation makes. `part`: into how many pieces."""
    most = 0
    members = set() if region is None else set(region.members)
    stacked = set() if region is None else {v for v, _ in region.stacked}
    for i, e in enumerate(graph.equations):
        for v in () if e.primitive.name in LIGHT else e.outvars:
            size = nbytes(v)
            if region is not None and i in members and v not in stacked:
                size //= min(part, region.units) if region.cut.get(v, SUM) != SUM else 1
            most = max(most, size)
    return most
