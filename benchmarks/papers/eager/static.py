"""Static memory planners of MXNet: storages shared by counting the readers that are left.

MXNet's note "Optimizing Memory Consumption in Deep Learning" (in-place operation, memory sharing,
one-pass simulation of the execution with a counter for each storage), with the size matching of
NNVM's PlanMemory. Arguments, results and gradients are external: they have memory of their own,
and gradients are summed up in theirs.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

from benchmarks.papers.eager.graph import Program
from olla_xla.errors import InputError
from olla_xla.problem.graph import TensorGraph

EXTERNAL = -1
"""Storage of a tensor that is not planned."""
PARALLEL = ("colour", "ancestors")
"""Rules under which storages are shared only between operators that can never run in parallel."""
MATCH_RANGE = 16
"""A free storage serves a request if their sizes differ by at most this factor (NNVM's default)."""
MAX_COLOURS = 64
MAX_ANCESTORS = 20_000


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Which storage every tensor lies in.

    Attributes:
      storage: storage id by tensor, or `EXTERNAL`.
      sizes: bytes of each storage.
    """

    storage: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all storages together."""
        return sum(self.sizes)


def external(program: Program) -> frozenset[int]:
    """Arguments, results, gradients, and the addends that are summed up in a gradient's memory.

    The last as frameworks do where a parameter is used several times (MXNet's "addto"): each use's
    contribution is accumulated onto the gradient by the operator that computes it.
    """
    graph = program.graph
    by_source: dict[int, list[int]] = {}
    addends: dict[int, list[int]] = {}
    for number, t in enumerate(graph.tensors):
        by_source.setdefault(t.source, []).append(number)
        if len(t.sinks) == 1:
            addends.setdefault(t.sinks[0], []).append(number)
    gradients = {
        n for n, t in enumerate(graph.tensors) if t.live_out and t.source in program.backward
    } | program.gradients
    stack = list(gradients)
    while stack:
        t = graph.tensors[stack.pop()]
        if graph.operators[t.source].opcode != "add":
            continue
        for number in addends.get(t.source, ()):
            a = graph.tensors[number]
            if a.source in program.backward and a.bytes == t.bytes and number not in gradients:
                gradients.add(number)
                stack.append(number)
    fixed = {n for n, t in enumerate(graph.tensors) if t.live_in or t.live_out}
    return frozenset(fixed | gradients)


def assign(
    program: Program,
    *,
    in_place: bool,
    sharing: bool,
    parallel: str | None = None,
    encouraged: bool = False,
) -> Assignment:
    """Plans the storages of a program's temporaries.

    Args:
      program: executed in program order.
      in_place: whether an operator may overwrite an operand that only it still has to read.
      sharing: whether storages are recycled.
      parallel: None, or one of `PARALLEL`: no reuse, in place or shared, but by operators that the
        program's data flow puts after all that touched the storage. "colour": those on one of the
        longest paths, taken one after the other; "ancestors": all.
      encouraged: with no rule for parallel, of the storages that are large enough those are taken
        first that an operator of the same longest path used last, and of those that must grow too
        (the note's weaker use of colours): fewer dependencies are added, none is ruled out.

    Raises InputError if the program is too large for "ancestors", or both are asked for.
    """
    if encouraged and parallel is not None:
        raise InputError(f"encouraged=True goes without a rule; parallel={parallel!r} rules it out")
    rule = _Encouraged(program.graph) if encouraged else _rule(program.graph, parallel)
    planner = _Planner(program, sharing, rule)
    return planner.run(in_place)


class _AnyOrder:
    """No rule: program order keeps readers and writers apart."""

    strict = True
    """Whether no storage passes from one group to another."""

    def group(self, v: int) -> int | None:
        """Operators of different groups, or of none, never hand a storage to each other."""
        return 0

    def after(self, before: Sequence[int], v: int) -> bool:
        """Whether `v`, of the same group, certainly runs after all the others."""
        return True


class _SameColour(_AnyOrder):
    """Operators of one colour lie on a path."""

    def __init__(self, graph: TensorGraph) -> None:
        self._colour = colours(graph)

    def group(self, v: int) -> int | None:
        return self._colour[v] if self._colour[v] >= 0 else None


class _Encouraged(_AnyOrder):
    """Operators of one colour come first; those without a colour are a group too."""

    strict = False

    def __init__(self, graph: TensorGraph) -> None:
        self._colour = colours(graph)

    def group(self, v: int) -> int | None:
        return self._colour[v]


class _Ancestors(_AnyOrder):
    """All that the data flow puts first."""

    def __init__(self, graph: TensorGraph) -> None:
        size = len(graph.operators) // 8 + 1
        self._above = [bits.to_bytes(size, "little") for bits in ancestors(graph)]

    def after(self, before: Sequence[int], v: int) -> bool:
        above = self._above[v]
        return all(u == v or above[u >> 3] >> (u & 7) & 1 for u in reversed(before))


def _rule(graph: TensorGraph, parallel: str | None) -> _AnyOrder:
    if parallel is None:
        return _AnyOrder()
    if parallel == "colour":
        return _SameColour(graph)
    if parallel == "ancestors":
        return _Ancestors(graph)
    raise InputError(f"parallel={parallel!r} is not one of {', '.join(PARALLEL)}")


class _Planner:
    """NNVM's one pass: `left` counts the reads still to come of each storage's content."""

    def __init__(self, program: Program, sharing: bool, rule: _AnyOrder) -> None:
        self.graph = program.graph
        self.fixed = external(program)
        self.sharing = sharing
        self.rule = rule
        self.storage = [EXTERNAL] * len(self.graph.tensors)
        self.sizes: list[int] = []
        self.left: list[int] = []
        self.touched: list[list[int]] = []
        self.free: dict[int, list[tuple[int, int]]] = {}  # by group: (bytes, storage), ascending

    def run(self, in_place: bool) -> Assignment:
        tensors = self.graph.tensors
        made: list[list[int]] = [[] for _ in self.graph.operators]
        read: list[list[int]] = [[] for _ in self.graph.operators]
        for number, t in enumerate(tensors):
            if number not in self.fixed:
                made[t.source].append(number)
                for v in t.sinks:
                    read[v].append(number)
        options: dict[int, list[int]] = {}
        for b, a in self.graph.inplace if in_place else ():
            options.setdefault(b, []).append(a)
        for v in range(len(self.graph.operators)):
            for b in made[v]:
                self._overwrite(b, options.get(b, ()), v)
            for b in sorted(made[v], key=lambda n: -tensors[n].bytes):
                if self.storage[b] == EXTERNAL:
                    self._request(b, v)
            for a in read[v]:
                self._done(a, v)
            for b in made[v]:
                if not tensors[b].sinks:
                    self._done(b, v)
        return Assignment(tuple(self.storage), tuple(self.sizes))

    def _reads(self, b: int) -> int:
        """Reads to come; what nobody reads is taken to be read by its own operator."""
        return max(len(self.graph.tensors[b].sinks), 1)

    def _overwrite(self, b: int, operands: Sequence[int], v: int) -> None:
        """In place, only where `v` is the one reader left: a count of one."""
        for a in operands:
            s = self.storage[a]
            alone = s != EXTERNAL and self.left[s] == 1
            if alone and self._may_take(s, v):
                self.storage[b] = s
                # The read by v is taken off again in `_done`; later reads are those of b.
                self.left[s] += self._reads(b)
                self.touched[s] = [v]
                return

    def _request(self, b: int, v: int) -> None:
        tensor = self.graph.tensors[b]
        s = self._recycled(tensor.bytes, v) if self.sharing else None
        if s is None:
            s = len(self.sizes)
            self.sizes.append(0)
            self.left.append(0)
            self.touched.append([])
        self.sizes[s] = max(self.sizes[s], tensor.bytes)
        self.left[s] = self._reads(b)
        self.touched[s] = [v]
        self.storage[b] = s

    def _recycled(self, size: int, v: int) -> int | None:
        """The least free storage that is large enough, else the largest that can grow."""
        group = self.rule.group(v)
        groups = [] if group is None else [group]
        if not self.rule.strict:
            groups += sorted(k for k in self.free if k != group)
        for grow in (False, True):
            for group in groups:
                s = self._fitting(group, size, v, grow)
                if s is not None:
                    return s
        return None

    def _fitting(self, group: int, size: int, v: int, grow: bool) -> int | None:
        """Takes a free storage of a group, of those that must grow or of those that need not."""
        free = self.free.get(group, [])
        middle = bisect.bisect_left(free, (size, -1))
        if grow:
            start = bisect.bisect_left(free, (-(-size // MATCH_RANGE), -1))
            places = range(middle - 1, start - 1, -1)
        else:
            stop = bisect.bisect_right(free, (size * MATCH_RANGE, len(self.sizes)))
            places = range(middle, stop)
        for at in places:
            s = free[at][1]
            if self.rule.after(self.touched[s], v):
                del free[at]
                return s
        return None

    def _may_take(self, s: int, v: int) -> bool:
        if not self.rule.strict:
            return True
        groups = {self.rule.group(u) for u in (*self.touched[s], v)}
        return len(groups) == 1 and None not in groups and self.rule.after(self.touched[s], v)

    def _done(self, a: int, v: int) -> None:
        s = self.storage[a]
        self.left[s] -= 1
        if self.touched[s][-1] != v:
            self.touched[s].append(v)
        if self.left[s] == 0:
            self._release(s)

    def _release(self, s: int) -> None:
        touched = self.touched[s] if self.rule.strict else self.touched[s][-1:]
        groups = {self.rule.group(u) for u in touched}
        group = groups.pop()
        if self.sharing and not groups and group is not None:
            bisect.insort(self.free.setdefault(group, []), (self.sizes[s], s))


def colours(graph: TensorGraph, limit: int = MAX_COLOURS) -> list[int]:
    """A colour for every operator of one of the `limit` longest paths, -1 for the rest.

    Operators of one colour lie on a path, so they never run in parallel. Paths are taken one after
    the other; those already coloured count nothing (NNVM's ColorNodeGroup, but that operators left
    over share no colour).
    """
    before = graph.predecessors
    n = len(before)
    colour = [-1] * n
    for number in range(limit):
        longest, following = [0] * n, [-1] * n
        for v in range(n - 1, -1, -1):
            longest[v] += colour[v] < 0
            for u in before[v]:
                if longest[v] > longest[u]:
                    longest[u], following[u] = longest[v], v
        v = max(range(n), key=lambda k: (longest[k], -k), default=-1)
        if v < 0 or longest[v] == 0:
            break
        while v >= 0:
            if colour[v] < 0:
                colour[v] = number
            v = following[v]
    return colour


def ancestors(graph: TensorGraph) -> list[int]:
    """For every operator a bit set of its ancestors. Raises InputError above 20,000 operators."""
    before = graph.predecessors
    if len(before) > MAX_ANCESTORS:
        raise InputError(
            f"{len(before)} operators are too many for ancestor sets; use the colour rule"
        )
    above: list[int] = []
    for v, predecessors in enumerate(before):
        bits = 0
        for u in predecessors:
            if u >= v:
                raise InputError(f"operators of {graph.name} are not in a topological order")
            bits |= above[u] | 1 << u
        above.append(bits)
    return above
