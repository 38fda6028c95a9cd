"""Chooses what is cut: of the axes of the largest values, the one that leaves the lowest peak."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from olla_xla.errors import InputError
from olla_xla.pieces.calls import CHECKPOINTS
from olla_xla.pieces.estimate import bytes_inside, peaks
from olla_xla.pieces.factors import REDUCTIONS, SUM
from olla_xla.pieces.graph import Blocked, Graph, Spread, forbidding, spread
from olla_xla.pieces.region import LIGHT, AnyStep, Region, Within, regions_in, settled
from olla_xla.segments.equations import bytes_of, is_variable, operands, user_line

_SEEDS = 8  # how many of the largest values are tried: those live at the peak are among them
_USUAL = 16  # the number of pieces with which axes are compared, if none is given
_GAIN = 0.02  # the part of the peak that a cut must save at least
_TWICE = 0.1  # peaks are compared in such steps: a cut that runs anything twice must leave less
_REPEATS = 12
"""How often an equation may run before its last time. The gradient of a loss of forces runs one of
an edge three times, and six times where two rounds of messages make the energy."""
_REGIONS = 4  # the most regions that are cut of one function


@dataclasses.dataclass(frozen=True)
class Cut:
    """A function divided into steps: Graphs of equations that run whole, Regions of equations that
    run in pieces, and calls that contain Regions (Within).
    """

    graph: Graph
    steps: tuple[AnyStep, ...]
    accumulate_dtype: Any

    @property
    def regions(self) -> list[Region]:
        """All Regions (what runs in pieces), also those in loops, branches, checkpoints."""
        return [region for region, _ in regions_in(self.steps)]

    def peaks(self, pieces: int) -> list[int]:
        """Estimates each step's peak in bytes, inputs left out, if cut into `pieces` pieces."""
        return peaks(self.steps, self.graph.outputs, pieces, self.accumulate_dtype)

    def peak(self, pieces: int) -> int:
        """Estimates the peak in bytes, inputs left out, of the function run in `pieces` pieces."""
        return max(self.peaks(pieces), default=0)

    def with_step(self, k: int, step: Region | Within) -> Cut:
        """Returns a copy in which step `k`, a Graph, becomes up to three: `step` (equations to run
        in pieces, or a loop, branch or checkpoint whose body has such), Graphs before and after it.
        """
        graph = step.graph
        results = set(filter(is_variable, graph.outputs))
        after = _range(graph, step.after, results)
        before = _range(graph, step.before, {*results, *after.inputs, *step.reads})
        steps = [one for one in (before, step, after) if one.equations]
        return dataclasses.replace(self, steps=(*self.steps[:k], *steps, *self.steps[k + 1 :]))

    def within(self, k: int, part: int) -> Cut | None:
        """Returns a copy in which a loop, branch or checkpoint of step `k`, the one with most bytes
        live inside, runs equations of its body in `part` pieces. None if step `k`, a Graph, has
        none, or no such cut saves enough.
        """
        graph = self.steps[k]
        assert isinstance(graph, Graph)
        calls = [
            i
            for i, e in enumerate(graph.equations)
            if e.primitive.name in (*CHECKPOINTS, "cond", "scan", "while") and not e.effects
        ]
        i = max(calls, key=lambda i: bytes_inside(graph.equations[i]), default=None)
        if i is None:
            return None
        e, after = graph.equations[i], range(i + 1, len(graph.equations))
        bodies = [inner for _, inner in graph.called(i)]
        cuts = [_cut_of(body, None, part, self.accumulate_dtype)[0] for body in bodies]
        if not any(cut.regions for cut in cuts):
            return None
        inner = tuple((cut.graph, cut.steps) for cut in cuts)
        return self.with_step(k, Within(graph, tuple(range(i)), tuple(after), (e,), inner))


def _range(graph: Graph, indices: Sequence[int], needed: set[Any]) -> Graph:
    """Makes a Graph of the equations numbered `indices` and of those broadcasts and iotas that they
    read and that read no other equation. It outputs what it makes of `needed`.
    """
    chosen = set(indices)
    for i in indices:
        made = [graph.producer.get(v) for v in operands(graph.equations[i])]
        chosen.update(k for k in made if k is not None and _is_made_of_nothing(graph, k))
    equations = [graph.equations[i] for i in sorted(chosen)]
    made = {v: None for e in equations for v in e.outvars}
    read = dict.fromkeys(v for e in equations for v in operands(e) if v not in made)
    outputs = [v for v in made if v in needed]
    rows = {v: graph.rows(v) for v in read}
    return Graph(equations, list(read), outputs, zeros=filter(graph.is_zero, read), rows=rows)


def _is_made_of_nothing(graph: Graph, i: int) -> bool:
    """Whether equation `i` is a broadcast or an iota that reads only literals or graph inputs."""
    e = graph.equations[i]
    return e.primitive.name in LIGHT and not any(v in graph.producer for v in operands(e))


class _Candidate(NamedTuple):
    """A tried Cut (which equations run in pieces) and what it is compared by, lower is better: the
    rank of its peaks in steps of 10 %, whether any equation runs twice, and its peak in bytes.
    """

    cut: Cut
    rank: tuple[int, ...]
    is_twice: bool
    peak: int

    @property
    def key(self) -> tuple[Any, ...]:
        return self.rank, self.is_twice, self.peak


def _rank(found: Iterable[int], whole: int) -> tuple[int, ...]:
    """Returns logarithms, in steps of 10 %, of the three largest peaks (bytes) in `found`, largest
    first, by which cuts are compared. Peaks up to 2 % of `whole` are left out.
    """
    large = [p for p in sorted(found, reverse=True)[:3] if p > _GAIN * whole]
    return tuple(round(math.log(p) / math.log1p(_TWICE)) for p in large)


def choose(
    graph: Graph,
    seeds: Mapping[Any, int] | None,
    pieces: int | None,
    name: str,
    accumulate_dtype: Any,
) -> Cut:
    """Chooses which parts of a function run in pieces, for the lowest estimated peak; returns the
    Cut. Raises InputError if nothing can be cut, or nothing would be saved; it names what forbids
    it. `seeds`: variable -> the dimension along which it is to be cut into pieces; None: whatever
    is best, and as many parts as lower the peak. `pieces`: their number; None: cuts are compared
    with 16. `name`: the function's, for messages.
    """
    part = pieces or _USUAL
    best, ends = _cut_of(graph, seeds, part, accumulate_dtype)
    if best.regions:
        return best
    whole = best.peak(part)
    where = " along that axis" if seeds is not None else ""
    reason = _reason(ends)
    if ends.left:
        least, left = min(ends.left), f"no cut lowers the peak of {whole:,} bytes"
        if least < whole:
            left = f"the best cut lowers the peak from {whole:,} to {least:,} bytes"
        reason = f"{left}; {reason}"
    raise InputError(f"{name} cannot be cut into pieces{where}: {reason}")


def _cut_of(
    graph: Graph, seeds: Mapping[Any, int] | None, part: int, accumulate_dtype: Any
) -> tuple[Cut, _Ends]:
    """Looks region by region for the Cut with the lowest estimated peak, which says what of a
    function runs in `part` pieces; returns (it, what stops others). All runs whole if none saves
    enough. `seeds`: {variable: dimension to cut along}; None: any.
    """
    cut = best = Cut(graph, (graph,), accumulate_dtype)
    whole, ends = cut.peak(part), _Ends(graph, [], [], [])
    for _ in range(1 if seeds is not None else _REGIONS):
        step_peaks = cut.peaks(part)
        k = max(range(len(step_peaks)), key=step_peaks.__getitem__, default=0)
        if not step_peaks or not isinstance(cut.steps[k], Graph):
            break
        repeats = _REPEATS if seeds is None else 0
        more = _one_more(cut, k, seeds, part, ends if cut is best else None, repeats)
        if seeds is None and (more is None or more.peak(part) > max(step_peaks) - _GAIN * whole):
            more = cut.within(k, part) or more
        if more is None:
            break
        cut = more
        # A region that helps only with the next one is kept where there is a next one.
        if cut.peak(part) <= best.peak(part) - _GAIN * whole:
            best = cut
    return best, ends


def _one_more(
    cut: Cut, k: int, seeds: Mapping[Any, int] | None, part: int, ends: _Ends | None, repeats: int
) -> Cut | None:
    """Returns the cut with one more region (equations that run in `part` pieces) in step `k`: the
    one with the lowest peaks. None if each would raise the step's. `seeds`: variables and
    dimensions to cut along, or None: any. `ends`: extended by what stops cuts, or None. `repeats`:
    how many times further equations may run twice, whole and in pieces; their whole runs are then
    cut as well, by regions of their own.
    """
    step, whole = cut.steps[k], cut.peaks(part)[k]
    assert isinstance(step, Graph)
    best: _Candidate | None = None
    known: set[frozenset[tuple[Any, int]]] = set()
    for seed in [seeds] if seeds is not None else _seeds(step):
        s = spread(step, seed)
        if (cut_dims := frozenset(s.cut.items())) in known:
            continue
        known.add(cut_dims)
        regions, ended = settled(s)
        if ends is not None and step is ends.graph:
            ends.blocked.extend(b for b in s.blocked if b.dim >= 0)
            ends.sums.extend(_sum_before(s, i) for i in ended)
        for region in regions:
            if region.twice and not repeats:
                continue
            tried = cut.with_step(k, region)
            if region.twice:
                first = _one_more(tried, k, None, part, None, 0)
                left = math.inf if first is None else first.peak(part)
                if repeats > 1 and min(left, math.inf if best is None else best.peak) > whole / 2:
                    along = _along(s, tried.steps[k])
                    deeper = _one_more(tried, k, along, part, None, repeats - 1)
                    first = first if deeper is None or left <= deeper.peak(part) else deeper
                if first is None:
                    continue
                tried = first
            count = len(tried.steps) - len(cut.steps) + 1
            left = tried.peaks(part)[k : k + count]
            if ends is not None:
                ends.left.append(max(left))
            # Running twice takes time, so such a cut must leave clearly less (`_rank`).
            new = _Candidate(tried, _rank(left, whole), bool(region.twice), max(left))
            if max(left) <= whole and (best is None or new.key < best.key):
                best = new
    return None if best is None else best.cut


def _along(s: Spread, step: AnyStep) -> Mapping[Any, int]:
    """Returns {v: d} for the largest variable v made in a step among those that `s` cuts into
    pieces, along dimension d; {} if it cuts none.
    """
    assert isinstance(step, Graph)
    made = [v for e in step.equations for v in e.outvars if s.cut.get(v, SUM) >= 0]
    return {v: s.cut[v] for v in sorted(made, key=bytes_of)[-1:]}


def _seeds(graph: Graph) -> Iterable[Mapping[Any, int]]:
    """Yields {variable: dimension to cut along} for each dimension, if not of size 1, of each of
    the 8 largest values that a graph makes other than by broadcasts and iotas.
    """
    made = [v for e in graph.equations if e.primitive.name not in LIGHT for v in e.outvars]
    for v in sorted(made, key=bytes_of, reverse=True)[:_SEEDS]:
        for d, n in enumerate(v.aval.shape):
            if n > 1:
                yield {v: d}


@dataclasses.dataclass(frozen=True)
class _Ends:
    """What stops the cuts into pieces that were tried, for messages: `blocked`, equations that
    cannot be cut; `sums`, indices of equations that reduce over the axis, whose results must be
    whole; `left`, estimates of the most bytes live under each cut.
    """

    graph: Graph
    blocked: list[Blocked]
    sums: list[int]
    left: list[int]


def _sum_before(s: Spread, i: int) -> int:
    """Returns the index of an equation that reduces over the cut axis and on which `i` depends. If
    none is found, that of the last equation looked at, which may be `i`.
    """
    while True:
        operands = [v for v in s.graph.equations[i].invars if is_variable(v)]
        made = [s.graph.producer[v] for v in operands if v in s.graph.producer]
        sums = [k for k in made if s.cut.get(s.graph.equations[k].outvars[0], 0) < 0]
        if sums or not made:
            return max(sums, default=i)
        i = max(made)


def _reason(ends: _Ends) -> str:
    """Returns the part of an error message that says which operation, at which line of the user's
    code, forbids that a function runs in pieces, or that no value is large.
    """
    graph, mixing = ends.graph, [b for b in ends.blocked if not _is_known(ends.graph, b)]
    if not mixing and ends.sums:
        e = graph.equations[ends.sums[0]]
        is_sum = e.primitive.name == "reduce_sum" or e.primitive.name not in REDUCTIONS
        kind = "sum" if is_sum else "result"
        # A gradient compares elements with their maximum; `fission` of the loss has a rule for it.
        hint = "" if is_sum else "; if this is a gradient, pass the loss to fission instead"
        return (
            f"{e.primitive.name} at {line_of(e)} combines the axis, and every piece needs "
            f"the whole {kind}, {e.outvars[0].aval.str_short()}{hint}"
        )
    if not ends.blocked or (ends.left and not mixing):
        return "no intermediate value is large compared with the arguments and results"
    first = max(mixing or ends.blocked, key=lambda b: bytes_of(b.value))
    e = graph.equations[first.equation]
    why = "mixes" if mixing else "needs the whole of"
    shape = first.value.aval.str_short()
    inner = forbidding(graph, first)
    inside = f", by {inner.primitive.name} at {line_of(inner)}" if inner is not None else ""
    return f"{e.primitive.name} at {line_of(e)} {why} dimension {first.dim} of {shape}{inside}"


def _is_known(graph: Graph, b: Blocked) -> bool:
    """Whether the equation at which a cut into pieces stops could itself be cut along this
    dimension, and only what else is cut forbids it. False for calls.
    """
    e = graph.equations[b.equation]
    for f in graph.factors(b.equation):
        pairs = [*zip(e.invars, f.ins, strict=True), *zip(e.outvars, f.outs, strict=True)]
        if any(v is b.value and d == b.dim for v, d in pairs):
            return True
    return False


def line_of(e: Any) -> str:
    """Returns the user's "file:line" of an equation, for messages; or "an unknown line"."""
    return user_line(e) or "an unknown line"


def pieces_for(cut: Cut) -> int:
    """Returns how many pieces to run a cut function in: the power of two beyond which less than 2 %
    of the uncut function's peak is saved by doubling it, or no axis has so many.
    """
    units = max(region.units for region in cut.regions)
    whole = peaks((cut.graph,), cut.graph.outputs, 1, cut.accumulate_dtype)[0]
    pieces, known = 2, cut.peak(2)
    while pieces * 2 <= units:
        more = cut.peak(pieces * 2)
        if known - more < _GAIN * whole:
            break
        pieces, known = pieces * 2, more
    return pieces
