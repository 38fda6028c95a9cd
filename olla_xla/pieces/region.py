"""Which equations are run a piece at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from olla_xla.pieces.calls import CALLS
from olla_xla.pieces.factors import ELEMENTWISE, REDUCED, SUM, Factor
from olla_xla.pieces.graph import Graph, Spread, units_of
from olla_xla.segments.equations import bytes_of, is_variable, operands

LIGHT = frozenset(("broadcast_in_dim", "iota"))
"""Primitives that XLA fuses into the kernels that read them, so they take no memory."""


@dataclasses.dataclass(frozen=True)
class Region:
    """A part of a function that runs a piece of an axis at a time: its equations and how each is
    cut.

    Attributes:
      members: their indices, ascending. before, after: indices of those that run before and after.
      equations: the members. chosen: by index into `equations`, how each is cut (a `Factor`).
      cut_inputs: arrays that are read a piece at a time, and along which dimension.
      whole_inputs: arrays that each piece reads whole.
      stacked: results that keep the axis, and in which dimension. sums: those summed over it.
      reduced: those reduced over it otherwise, with their equations.
      units: the most equal parts into which the axis can be cut.
      twice: the members that also run whole before the region.
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
    reduced: dict[Any, Any]
    units: int
    twice: tuple[int, ...]

    @property
    def reads(self) -> list[Any]:
        """The variables that the region's equations read from outside, whole or in pieces."""
        return [*self.whole_inputs, *(v for v, _ in self.cut_inputs)]


@dataclasses.dataclass(frozen=True)
class Within:
    """A loop, branch or checkpoint in whose body Regions run in pieces. `before`, `after`: as of a
    Region. `equations`: the loop, branch or checkpoint alone. `bodies`: the graphs of the jaxprs in
    `called_by`, and the steps of each.
    """

    graph: Graph
    before: tuple[int, ...]
    after: tuple[int, ...]
    equations: tuple[Any]
    bodies: tuple[tuple[Graph, tuple[AnyStep, ...]], ...]

    @property
    def reads(self) -> Iterable[Any]:
        """The variables that the loop, branch or checkpoint reads."""
        return operands(self.equations[0])


AnyStep = Graph | Region | Within


def regions_in(steps: Iterable[AnyStep]) -> Iterator[tuple[Region, Any]]:
    """Yields (Region, innermost call equation around it or None) for all that run in pieces."""
    for step in steps:
        if isinstance(step, Region):
            yield step, None
        elif isinstance(step, Within):
            for region, e in regions_in(one for _, steps in step.bodies for one in steps):
                yield region, e or step.equations[0]


def _below(graph: Graph, sources: set[int]) -> set[int]:
    """Returns indices of equations that depend on those in `sources`; some may be in `sources`."""
    tainted = {v for i in sources for v in graph.makes(i)}
    below = set()
    for i in range(min(sources, default=0), len(graph.equations)):
        if not tainted.isdisjoint(graph.reads(i)):
            below.add(i)
            tainted |= graph.makes(i)
    return below


def _above(graph: Graph, sinks: set[int]) -> set[int]:
    """Returns the indices of equations on which those in `sinks` depend."""
    wanted = {v for i in sinks for v in graph.reads(i)}
    above = set()
    for i in range(max(sinks, default=-1), -1, -1):
        if not wanted.isdisjoint(graph.makes(i)):
            above.add(i)
            wanted |= graph.reads(i)
    return above


def settled(s: Spread) -> tuple[list[Region], list[int]]:
    """Turns the cut of an axis into regions, which run in pieces as one step of the function each.
    An equation outside a region may depend on it and feed it, as a mean over the axis by which each
    element is divided. It needs all pieces before the first can run. Either the members above it or
    those below it leave the region, whichever make fewer bytes. Or those above it run twice: whole
    before the region, for that equation, and in the region a piece at a time.

    Returns:
      (regions, equations): at most one region in which nothing runs twice (the first), and at most
        one in which something does; the indices of equations that depend on a region and feed it.
    """
    ended: list[int] = []
    regions: list[Region] = []
    members = _sound(s, set(s.chosen))
    while members:
        between = (_below(s.graph, members) & _above(s.graph, members)) - members
        if not between:
            regions[:0] = region_of(s, members)
            break
        if not ended:
            twice = members & _above(s.graph, between)
            regions += region_of(s, members, _first(s.graph, members, twice))
        one = {min(between)}
        ended += one
        above, below = members & _above(s.graph, one), members & _below(s.graph, one)
        fewer = min(above, below, key=lambda part: _weight(s.graph, part))
        members = _sound(s, members - fewer)
    return regions, ended


def _first(graph: Graph, members: set[int], twice: set[int]) -> frozenset[int]:
    """Returns indices of equations that can run before a region (equations `members`, which run in
    pieces) if those in `twice` also run there, whole.
    """
    tainted: set[Any] = set()
    first = set()
    for i in range(len(graph.equations)):
        if i in twice:
            first.add(i)
        elif i in members or not tainted.isdisjoint(graph.reads(i)):
            tainted |= graph.makes(i)
        else:
            first.add(i)
    return frozenset(first)


def _weight(graph: Graph, part: set[int]) -> int:
    return sum(bytes_of(v) for i in part for v in graph.equations[i].outvars)


def _sound(s: Spread, members: set[int]) -> set[int]:
    """Returns `members` (equations) but those that read partial sums which none of them makes."""
    kept: set[int] = set()
    made: set[Any] = set()
    for i in sorted(members):
        e, f = s.graph.equations[i], s.chosen[i]
        if all(d != SUM or v in made for v, d in zip(e.invars, f.ins, strict=True)):
            kept.add(i)
            made.update(e.outvars)
    return kept


def region_of(s: Spread, members: set[int], first: frozenset[int] = frozenset()) -> list[Region]:
    """Returns a list with the region of these equations, or of some of them, cut as in `s`; [] if
    they cannot run in pieces. `first`: equations that run before the region, possibly members too;
    no member may feed one of them by way of others. With these, members that no result needs are
    left out. Reductions (as a maximum) are too if their results are compared with what they reduce.
    """
    graph = s.graph
    if first:
        members = _leading_out(graph, members, first)
        if _ties(graph, members, first):
            return []
    order = tuple(sorted(members))
    equations = tuple(graph.equations[i] for i in order)
    chosen = {k: s.chosen[i] for k, i in enumerate(order)}
    units = units_of(chosen, equations)
    if units < 2:
        return []
    below = _below(graph, members) - first
    outside = [i for i in range(len(graph.equations)) if i not in members or i in first]
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
    results = _results(graph, members, first)
    reductions = {i for i in members if REDUCED in s.chosen[i].outs}
    if reductions and _compared(s, reductions, results, outside):
        return region_of(s, members - reductions, first)
    ordered = [v for e in equations for v in e.outvars if v in results]
    if not ordered or any(v not in s.cut for v in ordered):
        return []
    return [
        Region(
            graph=graph,
            cut=s.cut,
            members=order,
            before=tuple(i for i in outside if i not in below),
            after=tuple(i for i in outside if i in below),
            equations=equations,
            chosen=chosen,
            cut_inputs=tuple(cut_inputs.items()),
            whole_inputs=tuple(whole),
            stacked=tuple((v, s.cut[v]) for v in ordered if s.cut[v] >= 0),
            sums=tuple(v for v in ordered if s.cut[v] == SUM),
            reduced={v: graph.equations[graph.producer[v]] for v in ordered if s.cut[v] == REDUCED},
            units=units,
            twice=tuple(i for i in order if i in first),
        )
    ]


def _ties(graph: Graph, members: set[int], first: frozenset[int]) -> bool:
    """Whether equations `members`, run in pieces, compare values that they compute again with
    elements (as the maximum) of those that ran whole in `first`.
    """

    def equations(of: Iterable[int]) -> list[Any]:
        return [graph.equations[i] for i in sorted(of)]

    twice = {v for e in equations(members & first) for v in e.outvars}
    return compares_with_itself(equations(first - members), twice, equations(members))


def _compared(s: Spread, reductions: set[int], results: set[Any], outside: Sequence[int]) -> bool:
    """Whether equations outside compare a result of a region, or what its `reductions` read, with a
    maximum that the region takes of it: XLA may compute a value in two kernels of a piece, for its
    maximum and as a result, and so round it otherwise.
    """
    equations = [s.graph.equations[i] for i in sorted(reductions)]
    again = results.union(*map(operands, equations))
    after = [s.graph.equations[i] for i in outside]
    return compares_with_itself(equations, again - {v for e in equations for v in e.outvars}, after)


def _results(graph: Graph, members: set[int], first: frozenset[int]) -> set[Any]:
    """Returns the variables made by equations `members` that are outputs or read outside; those in
    `first`, which run before the members, compute their own copies.
    """
    made = {v for i in members for v in graph.equations[i].outvars}
    results = made & set(filter(is_variable, graph.outputs))
    for v in made:
        if any(i not in members and i not in first for i in graph.consumers.get(v, ())):
            results.add(v)
    return results


def _leading_out(graph: Graph, members: set[int], first: frozenset[int]) -> set[int]:
    """Returns those of equations `members` on which the variables of `_results` depend."""
    wanted, kept = _results(graph, members, first), set()
    for i in sorted(members, reverse=True):
        e = graph.equations[i]
        if any(v in wanted for v in e.outvars):
            kept.add(i)
            wanted.update(operands(e))
    return kept


# Comparisons of a value with one chosen from its elements, as with its maximum.
#
# The gradient of a maximum goes where the maximum is: `x == max(x)`. If `x` is computed twice, once
# whole for its maximum and again in pieces, the two may differ in the last bit, since XLA chooses
# another kernel for another shape. Then the comparison holds nowhere.


_CHOOSING = frozenset(
    """
    broadcast_in_dim clamp concatenate convert_element_type copy cummax cummin dynamic_slice
    dynamic_update_slice expand_dims gather max min neg optimization_barrier pad reduce_max
    reduce_min reduce_precision reduce_window_max reduce_window_min reshape rev scatter scatter-max
    scatter-min scatter_max scatter_min select_n slice sort split squeeze top_k transpose
    """.split()
)
"""Primitives whose results are elements of their operands, as they are or negated."""
_TELLING = CALLS | frozenset("ceil eq eq_to floor ge gt le le_to lt lt_to ne round sign".split())
"""Primitives whose results may be others for operands that differ in the last bit."""


def compares_with_itself(before: Sequence[Any], twice: Set[Any], again: Sequence[Any]) -> bool:
    """Whether a value is computed twice and the two may be compared, so that rounding matters. What
    is computed from both copies element by element, as `x - max(x)`, may not be compared with
    anything. `before`: equations that run once, before those in pieces. `twice`: variables that are
    computed before them and again in pieces. `again`: the equations in pieces. All are in order.
    """
    first, second = set[Any](), set(twice)
    for e in before:
        if _leads_on(e) and not (first | twice).isdisjoint(operands(e)):
            first.update(e.outvars)
    for e in again:
        of_first, of_second = (not s.isdisjoint(operands(e)) for s in (first, second))
        if of_first and of_second and e.primitive.name in _TELLING:
            return True
        if of_first and _leads_on(e):
            first.update(e.outvars)
        if of_second and _leads_on(e):
            second.update(e.outvars)
    return False


def _leads_on(e: Any) -> bool:
    """Whether elements of an equation's results may each come from one element of an operand."""
    name = e.primitive.name
    return name in _CHOOSING or name in ELEMENTWISE or name in CALLS
