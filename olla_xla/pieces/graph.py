"""How far a cut spreads: from one dimension of one value to the equations around it."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from olla_xla.pieces.calls import CALLS, Called, called_by
from olla_xla.pieces.factors import REDUCED, SUM, Factor, factors_of, linear_factors
from olla_xla.pieces.hoist import prepared
from olla_xla.pieces.rows import Rows, agreed, row_factors, rows_made, shifted
from olla_xla.segments.equations import has_effect, is_variable, scan_counts


class Graph:
    """A function's jaxpr as a graph: equations, and which of them make and read each variable."""

    def __init__(
        self,
        equations: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        rules: int = 2,
        constants: Mapping[Any, Any] | None = None,
        zeros: Iterable[Any] = (),
        rows: Mapping[Any, Rows] | None = None,
    ) -> None:
        """Finds which equation makes each variable, which read it, and which are known to be zeros.
        `equations`: in an order in which they can run. `inputs`, `outputs`: variables. `rules`: how
        many custom derivative rules, each inside another, are cut; see `called_by`. `constants`:
        values by variable; each piece needs them whole. `zeros`: inputs that are all zeros. `rows`:
        along which dimension integers of inputs count up.
        """
        self.constants = dict(constants or {})
        self._rules = rules
        self.equations = tuple(equations)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.producer: dict[Any, int] = {}
        self.consumers: dict[Any, list[int]] = collections.defaultdict(list)
        self._zeros: set[Any] = set(zeros)
        self._rows: dict[Any, Rows] = dict(rows or {})
        self._factors: dict[int, list[Factor]] = {}
        self._called: dict[int, list[tuple[Called, Graph]]] = {}
        self._effects = [i for i, e in enumerate(self.equations) if has_effect(e)]
        for i, e in enumerate(self.equations):
            for v in dict.fromkeys(filter(is_variable, e.invars)):
                self.consumers[v].append(i)
            self.producer.update((v, i) for v in e.outvars)
            if e.primitive.name in ("broadcast_in_dim", "convert_element_type"):
                if self.is_zero(e.invars[0]):
                    self._zeros.add(e.outvars[0])

    @classmethod
    def of(cls, jaxpr: Any, rules: int = 2, rows: Sequence[Rows] = ()) -> Graph:
        """Makes the graph of a jaxpr, rewritten by `prepared`. `rules`: how many custom derivative
        rules, each inside another, are cut. `rows`: along which dimension each input counts up.
        """
        closed, jaxpr = jaxpr, getattr(jaxpr, "jaxpr", jaxpr)
        equations, outputs, constants = prepared(jaxpr)
        constants.update(zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True))
        of_inputs = dict(zip(jaxpr.invars, rows, strict=False))
        return cls(equations, jaxpr.invars, outputs, rules, constants, rows=of_inputs)

    def is_zero(self, atom: Any) -> bool:
        """Whether an operand is known to be all zeros; False if not known."""
        if is_variable(atom):
            return atom in self._zeros
        if atom.aval.dtype == jax.dtypes.float0:
            return True
        return not atom.aval.shape and bool(atom.val == 0)

    def reads(self, i: int) -> set[Any]:
        """Returns the variables that equation `i` reads. If it has a side effect, also the index of
        the last equation before that has one, so that these keep their order.
        """
        read = set(filter(is_variable, self.equations[i].invars))
        if has_effect(self.equations[i]) and (k := bisect.bisect_left(self._effects, i)):
            read.add(self._effects[k - 1])
        return read

    def makes(self, i: int) -> set[Any]:
        """Returns the variables that equation `i` defines; also `i` if it has a side effect."""
        e = self.equations[i]
        return {*e.outvars, i} if has_effect(e) else set(e.outvars)

    def factors(self, i: int) -> list[Factor]:
        """Returns the Factors, axes to cut along, of equation `i`, which is no call; cached."""
        if i not in self._factors:
            e, axes = self.equations[i], factors_of(self.equations[i], self.is_zero)
            if axes and e.primitive.name.startswith(("gather", "scatter")):
                axes = row_factors(e, self.rows(e.invars[1])) + axes
            self._factors[i] = axes
        return self._factors[i]

    def rows(self, v: Any) -> Rows:
        """Returns where integer array `v` is known to count up along a dimension, as an iota does:
        {c: d} if v[..., c] is the index in dimension d, {None: d} if all of `v` is, else {}.
        """
        if not is_variable(v) or v not in self.producer:
            return self._rows.get(v, {}) if is_variable(v) else {}
        if v not in self._rows:
            i = self.producer[v]
            e = self.equations[i]
            if e.primitive.name in CALLS:
                self._rows[v] = self._rows_called(i, e.outvars.index(v))
            else:
                self._rows[v] = rows_made(e, self.rows, self._made_by)
        return self._rows[v]

    def _made_by(self, v: Any) -> Any:
        i = self.producer.get(v) if is_variable(v) else None
        return None if i is None else self.equations[i]

    def _rows_given(self, i: int, c: Called) -> list[Rows]:
        """Returns where each input of a called jaxpr counts up; {} if it is carried or unknown."""
        given, carried = self.equations[i].invars, {k for _, k in c.carried}
        known = [
            None if place is None or k in carried or place[0] >= len(given) else place
            for k, place in enumerate(c.ins)
        ]
        return [{} if p is None else shifted(self.rows(given[p[0]]), -p[1]) for p in known]

    def _rows_called(self, i: int, result: int) -> Rows:
        """Returns the Rows of result number `result` of call `i` (where it counts up, as an iota)
        on which all jaxprs agree that give it; {} if a loop carries it.
        """
        return agreed(
            shifted(inner.rows(w), place[1])
            for c, inner in self.called(i)
            for k, (w, place) in enumerate(zip(inner.outputs, c.outs, strict=True))
            if place is not None and place[0] == result and k not in dict(c.carried)
        )

    def called(self, i: int) -> list[tuple[Called, Graph]]:
        """Returns (Called, graph of its jaxpr) for each jaxpr that equation `i` calls; [] where the
        call cannot run in pieces (see `called_by`); cached.
        """
        if i not in self._called:
            calls = called_by(self.equations[i], self._rules > 0)
            inner = [
                Graph.of(c.jaxpr, self._rules - c.is_rule, self._rows_given(i, c)) for c in calls
            ]
            self._called[i] = list(zip(calls, inner, strict=True))
        return self._called[i]


@dataclasses.dataclass(frozen=True)
class Blocked:
    """An equation (its index) at which a cut into pieces must stop, and `value`, a variable that it
    reads or makes and that is cut along `dim`: a dimension, SUM or REDUCED.
    """

    equation: int
    value: Any
    dim: int


@dataclasses.dataclass
class Spread:
    """Which variables and equations of a graph are cut into pieces along one axis. `cut`: variable
    -> the dimension in which the axis lies, SUM (a piece has a partial sum over it) or REDUCED (a
    partial result of another reduction). `chosen`: index of an equation -> the factor along which
    it is cut. `blocked`: where the cut ends.
    """

    graph: Graph
    cut: dict[Any, int]
    chosen: dict[int, Factor]
    blocked: list[Blocked]


def spread(graph: Graph, seeds: Mapping[Any, int], inside_call: bool = False) -> Spread:
    """Extends a cut of some variables to others that can be cut into pieces with them, equation by
    equation; returns the Spread. `seeds`: variable -> the dimension along which it is cut, or SUM.
    `inside_call`: whether the graph is a called jaxpr's. Then a cut input exists in pieces only,
    not whole as well; partial sums go on through linear equations; other reductions are not cut.
    """
    s = Spread(graph, {}, {}, [])
    # Forward first: a value's readers decide what else must be whole, before its producer leads to
    # other readers. So attention's queries are cut, and keys made of the same tokens are not.
    forward, backward = collections.deque[Any](), collections.deque[Any]()

    def visit(v: Any, places: Iterable[int]) -> None:
        for i in places:
            if i in s.chosen:
                continue
            for f in _options(s, i, v, inside_call):
                new = _fits(s, i, f, inside_call)
                if new is not None:
                    s.chosen[i] = f
                    s.cut.update(new)
                    forward.extend(new)
                    backward.extend(new)
                    break
            else:
                s.blocked.append(Blocked(i, v, s.cut[v]))

    for v, d in seeds.items():
        s.cut[v] = d
        forward.append(v)
        backward.append(v)
    while forward or backward:
        if forward:
            v = forward.popleft()
            visit(v, graph.consumers.get(v, ()))
        else:
            v = backward.popleft()
            if s.cut[v] >= 0 and v in graph.producer:
                visit(v, (graph.producer[v],))
    return dataclasses.replace(s, blocked=[b for b in s.blocked if b.equation not in s.chosen])


def _fits(s: Spread, i: int, f: Factor, inside_call: bool) -> dict[Any, int] | None:
    """Returns {variable: dimension, SUM or REDUCED} that cutting equation `i` along Factor `f`
    newly cuts; None if it does not go with what `s` cuts so far. `inside_call`: as in `spread`.
    """
    e = s.graph.equations[i]
    new: dict[Any, int] = {}
    for v, d in [*zip(e.invars, f.ins, strict=True), *zip(e.outvars, f.outs, strict=True)]:
        if not is_variable(v):
            if d is not None:
                return None
            continue
        if v in s.graph.constants and d is not None:
            return None
        given = v not in s.graph.producer and (not inside_call or v in s.graph.constants)
        known = s.cut.get(v, new.get(v))
        if d is None:
            if known is not None and not given:
                return None
        elif known is None:
            if d < 0 and v not in e.outvars:
                return None
            new[v] = d
        elif known != d:
            return None
    for v, d in new.items():
        if any(_reads_otherwise(s, reader, v, d) for reader in s.graph.consumers.get(v, ())):
            if v in s.graph.producer or inside_call:
                return None
    whole = {v for v, d in zip(e.invars, f.ins, strict=True) if is_variable(v) and d is None}
    if any(v in new and (v in s.graph.producer or inside_call) for v in whole):
        return None
    return new


def _reads_otherwise(s: Spread, i: int, v: Any, d: int) -> bool:
    """Whether `s` cuts equation `i`, and this reads `v` whole or cut along a dimension but `d`."""
    if i not in s.chosen:
        return False
    e = s.graph.equations[i]
    return any(w is v and k != d for w, k in zip(e.invars, s.chosen[i].ins, strict=True))


def _options(s: Spread, i: int, v: Any, inside_call: bool) -> Iterator[Factor]:
    """Yields the Factors (axes to cut along) of equation `i` in which `v` lies along `s.cut[v]`,
    the dimension in which `s` cuts it into pieces. `inside_call`: as in `spread`.
    """
    graph, d = s.graph, s.cut[v]
    e = graph.equations[i]
    if e.primitive.name in CALLS:
        yield from _call_options(s, i, v)
        return
    linear = linear_factors(e, graph.is_zero) if inside_call and d == SUM else []
    for f in (*graph.factors(i), *linear):
        if REDUCED in f.outs and inside_call:
            continue
        pairs = [*zip(e.invars, f.ins, strict=True), *zip(e.outvars, f.outs, strict=True)]
        if any(w is v and k == d for w, k in pairs):
            yield f


class _Contradiction(Exception):
    """Raised where a call cannot be cut as asked; holds the equation at fault, if one is known."""


def forbidding(graph: Graph, b: Blocked) -> Any:
    """Returns the equation, inside the call `b.equation`, because of which the call cannot be cut
    into pieces; None if it is no call, or no single equation is known to be to blame.
    """
    e = graph.equations[b.equation]
    if e.primitive.name not in CALLS:
        return None
    at = {k: b.dim for k, w in enumerate((*e.invars, *e.outvars)) if w is b.value}
    try:
        _cut_calls(graph.called(b.equation), at, len(e.invars), set())
    except _Contradiction as found:
        return next(iter(found.args), None)
    return None


def _call_options(s: Spread, i: int, v: Any) -> Iterator[Factor]:
    """Yields the Factor that cuts call `i` (scan, ...) so that `v` and the call's results are cut
    as in `s`, if there is one: by cutting all called jaxprs, or a scan along its iterations.
    """
    graph, d = s.graph, s.cut[v]
    e, called = graph.equations[i], graph.called(i)
    if not called or d < 0:
        return
    # Dimensions by place; results are numbered after the operands.
    atoms = (*e.invars, *e.outvars)
    known = {w: s.cut[w] for w in e.outvars if s.cut.get(w, SUM) >= 0} | {v: d}
    at = {k: known[w] for k, w in enumerate(atoms) if is_variable(w) and w in known}
    if e.primitive.name == "scan" and d == 0:
        constants, carries = scan_counts(e)
        if not carries and all(k >= constants for k in at):
            stacked = range(constants, len(atoms))
            dims = [0 if k in stacked else None for k in range(len(atoms))]
            yield Factor(tuple(dims[: len(e.invars)]), tuple(dims[len(e.invars) :]))
            return
    try:
        # A scan only: whether a while goes on may be told by the whole sum.
        is_scan = e.primitive.name == "scan"
        zeros = {k for k, w in enumerate(e.invars) if is_scan and graph.is_zero(w)}
        inner = _cut_calls(called, at, len(e.invars), zeros)
    except _Contradiction:
        return
    dims = [at.get(k) for k in range(len(atoms))]
    outs = tuple(dims[len(e.invars) :])
    read = [bool(graph.consumers.get(w)) or w in graph.outputs for w in e.outvars]
    if all(k is not None or not r for k, r in zip(outs, read, strict=True)):
        yield Factor(tuple(dims[: len(e.invars)]), outs, inner)


def _cut_calls(
    called: Sequence[tuple[Called, Graph]], at: dict[int, int], operands: int, zeros: set[int]
) -> tuple[Spread, ...]:
    """Cuts the jaxprs of one call into pieces until they agree; returns a Spread of each. `at`:
    number of an operand or result (these follow the `operands` operands) -> cut dimension or SUM;
    extended. `zeros`: numbers of operands of zeros only. Raises _Contradiction if they cannot be.
    """
    while True:
        before = dict(at)
        spreads = [_cut_called(c, inner, at, operands, zeros) for c, inner in called]
        if at == before:
            return tuple(spreads)


def _spread_called(
    inner: Graph, seeds: Mapping[Any, int], may_be_sums: set[Any]
) -> tuple[Spread, set[Any]]:
    """Cuts a called jaxpr into pieces along the dimensions `seeds` of variables; returns (the
    Spread, those inputs in `may_be_sums` that must be partial sums, one in each piece, for it).
    Raises _Contradiction if an equation forbids it.
    """
    summed: set[Any] = set()
    while True:
        s = spread(inner, {**seeds, **dict.fromkeys(summed, SUM)}, inside_call=True)
        if not s.blocked:
            return s, summed
        stops = [inner.equations[b.equation] for b in s.blocked if b.dim == SUM]
        read = {w for e in stops for w in filter(is_variable, e.invars)}
        more = (may_be_sums & read) - s.cut.keys()
        if not more:
            raise _Contradiction(inner.equations[s.blocked[0].equation])
        summed |= more


def _cut_called(
    c: Called, inner: Graph, at: dict[int, int], operands: int, zeros: set[int]
) -> Spread:
    """Cuts one jaxpr of a call into pieces; returns the Spread, or raises _Contradiction. `at`
    (extended), `operands`, `zeros`: as in `_cut_calls`. What a loop carries from operands of zeros
    only may be a partial sum.
    """
    outs = [None if o is None else (o[0] + operands, o[1]) for o in c.outs]
    # A custom rule's jaxpr also takes cotangents of results, at the places of these results.
    places = [*zip(inner.inputs, c.ins, strict=True), *zip(inner.outputs, outs, strict=True)]
    places_of_zeros = ((inner.inputs[i], c.ins[i]) for _, i in c.carried)
    may_be_sums = {w for w, place in places_of_zeros if place is not None and place[0] in zeros}
    s, summed = _spread_called(inner, _seeds_of(places, at), may_be_sums)

    def dim_of(w: Any) -> int | None:
        return s.cut.get(w) if is_variable(w) else None

    def agree(place: tuple[int, int] | None, dim: int) -> None:
        outer = None if place is None else (dim if dim == SUM else dim + place[1])
        if place is None or outer is None or at.setdefault(place[0], outer) != outer:
            raise _Contradiction

    for k, i in c.carried:
        if inner.inputs[i] in summed:
            if dim_of(inner.outputs[k]) != SUM:
                raise _Contradiction
            agree(outs[k], SUM)
            continue
        for dim in (dim_of(inner.outputs[k]), dim_of(inner.inputs[i])):
            if dim is None:
                continue
            if dim == SUM:
                raise _Contradiction
            agree(outs[k], dim)
            agree(c.ins[i], dim)
    for n, (w, place) in enumerate(places):
        dim = dim_of(w)
        if n < len(inner.inputs) and w in summed:
            continue
        if dim == SUM and (n < len(inner.inputs) or (place is None and not c.gradients)):
            raise _Contradiction
        if dim is not None and place is not None:
            agree(place, dim)
    for k, operand in enumerate(c.gradients):
        w = inner.outputs[k]
        if dim_of(w) != at.get(operand, SUM) and not (dim_of(w) is None and inner.is_zero(w)):
            raise _Contradiction
    return s


def _seeds_of(
    places: Sequence[tuple[Any, tuple[int, int] | None]], at: Mapping[int, int]
) -> dict[Any, int]:
    """Returns {variable of a called jaxpr: its cut dimension} from `at`, those of the call's
    operands and results; sums are left out. `places`: (variable, None or (number in `at`, how many
    more dimensions that has)). Raises _Contradiction if one cannot be cut so.
    """
    seeds: dict[Any, int] = {}
    for w, place in places:
        dim = None if place is None else at.get(place[0])
        if place is None or dim is None:
            continue
        # A literal has no axis; what a loop stacks cannot be cut along the loop's iterations.
        if not is_variable(w) or (dim != SUM and dim < place[1]):
            raise _Contradiction
        if dim != SUM and seeds.setdefault(w, dim - place[1]) != dim - place[1]:
            raise _Contradiction
    return seeds


def units_of(chosen: Mapping[int, Factor], equations: Sequence[Any]) -> int:
    """Returns the most equal pieces that an axis can have, the greatest common divisor of its
    sizes; 0 if no array has it. `chosen`: index of an equation -> the Factor along which it is cut.
    """
    units = 0
    for i, f in chosen.items():
        e = equations[i]
        for v, d in [*zip(e.invars, f.ins, strict=True), *zip(e.outvars, f.outs, strict=True)]:
            if d is not None and d >= 0:
                units = math.gcd(units, v.aval.shape[d])
        for inner in f.inner:
            units = math.gcd(units, units_of(inner.chosen, inner.graph.equations))
    return units
