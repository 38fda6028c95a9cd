"""In-place reuse as rows of the ILP: which outputs take over the memory of which dying inputs.

The evaluator (`memory.lifetimes`) fixes who shares: at the step of operator v, an input of v that
no other operator still needs passes its memory to an output of the same buffer. The other pairs
(output b, input a) are taken in the graph's order, and one shares if its a and b are both still
unmatched. Here a binary G[k,t] says that pair k shares at step t.

Where every output can take every input, all of one size, the greedy rule is a maximum matching, and
a row that gives each output one input at most is enough. At other operators ("strict"), the rule
itself becomes rows, with binaries D[a,t]: a dies at v, which runs at t.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import spans_and_passes
from olla_xla.solvers.linear import LinearModel, LinearTerms
from olla_xla.solvers.programs.spans import Reach, StepSpans


@dataclasses.dataclass(frozen=True)
class InPlacePair:
    """An output that may take over the memory of an input that dies at its operator.

    Attributes:
      operator: source of the output. output, input: tensors. number: of the pair in GraphArrays.
    """

    operator: int
    output: int
    input: int
    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class Sharing:
    """Which outputs can take over which inputs' memory at each operator, whatever the order.

    Attributes:
      must: (input, operator): the input's memory passes on if it dies there.
      pairs: operator -> pairs of which one or the other may share, in the graph's order.
      of_input: (input, operator) -> its pairs among these.
      forced: (output, operator) -> inputs of the same buffer, which pass on to it first.
      strict: operators at which the rule (pairs share in order, if both are unmatched) needs rows.
      others: (input, operator) -> the other operators that need the input, the latest only.
    """

    must: frozenset[tuple[int, int]]
    pairs: dict[int, list[InPlacePair]]
    of_input: dict[tuple[int, int], list[InPlacePair]]
    forced: dict[tuple[int, int], list[int]]
    strict: frozenset[int]
    others: dict[tuple[int, int], list[int]]

    @classmethod
    def of(cls, g: GraphArrays, reach: Reach) -> Sharing:
        """Collects a graph's in-place pairs that may share memory in some order and matter."""
        must: set[tuple[int, int]] = set()
        optional: dict[int, list[InPlacePair]] = {}
        forced: dict[tuple[int, int], list[int]] = defaultdict(list)
        others: dict[tuple[int, int], list[int]] = {}
        for v in range(g.n):
            numbers = range(int(g.pair_ptr[v]), int(g.pair_ptr[v + 1]))
            for k in numbers:
                a = int(g.pair_a[k])
                others[a, v] = reach.latest(_needs(g, a, v))
            alive = [k for k in numbers if _may_die(reach, others, int(g.pair_a[k]), v)]
            for k in alive:
                if g.pair_must[k]:
                    must.add((int(g.pair_a[k]), v))
                    forced[int(g.pair_b[k]), v].append(int(g.pair_a[k]))
            free = [
                InPlacePair(v, int(g.pair_b[k]), int(g.pair_a[k]), k)
                for k in alive
                if not g.pair_must[k] and (int(g.pair_a[k]), v) not in must
            ]
            kept = [p for part in _parts(free) for p in part if _worth(g, part)]
            if kept:
                optional[v] = sorted(kept, key=lambda p: p.number)
        of_input: dict[tuple[int, int], list[InPlacePair]] = defaultdict(list)
        for pairs in optional.values():
            for p in pairs:
                of_input[p.input, p.operator].append(p)
        strict = frozenset(v for v, pairs in optional.items() if _is_strict(g, pairs, forced))
        return cls(frozenset(must), optional, dict(of_input), dict(forced), strict, others)


def _needs(g: GraphArrays, a: int, v: int) -> list[int]:
    """The operators other than v that need tensor a in memory: its source and its readers."""
    users = g.sink_idx[g.sink_ptr[a] : g.sink_ptr[a + 1]].tolist()
    return [u for u in {*users, int(g.source[a])} if u != v]


def _may_die(reach: Reach, others: dict[tuple[int, int], list[int]], a: int, v: int) -> bool:
    return not any(reach.is_before(v, u) for u in others[a, v])


def _parts(pairs: Sequence[InPlacePair]) -> list[list[InPlacePair]]:
    """Splits pairs (output, input) of one operator into groups that have no tensor in common."""
    parts: list[list[InPlacePair]] = []
    for p in pairs:
        joined = [q for q in parts if any(p.output == r.output or p.input == r.input for r in q)]
        parts = [q for q in parts if q not in joined]
        parts.append([r for q in joined for r in q] + [p])
    return parts


def _worth(g: GraphArrays, part: Sequence[InPlacePair]) -> bool:
    return any(g.bytes[p.input] > 0 for p in part)


def _is_strict(
    g: GraphArrays, pairs: Sequence[InPlacePair], forced: dict[tuple[int, int], list[int]]
) -> bool:
    """Whether in some order pairs (output, input) might share more bytes than by the rule that
    counts peaks: one after the other, if neither is taken, those of one buffer (`forced`) first.
    """
    for part in _parts(pairs):
        outputs, inputs = {p.output for p in part}, {p.input for p in part}
        if len(part) < len(outputs) * len(inputs):
            return True
        if len({int(g.bytes[a]) for a in inputs}) > 1:
            return True
        if any((p.output, p.operator) in forced for p in part):
            return True
    return False


class SharingRows:
    """Adds variables and rows to a model for which outputs take over their inputs' memory.

    Args:
      model: where they are added. sharing: of the graph.
      spans: the first and last step at which each operator can run.
      runs: `runs(terms, v, t, c)` adds c times "v runs at step t" to an expression.
      has_run: `has_run(terms, v, t, c)` adds c times "v has run by the end of step t".
    """

    def __init__(
        self,
        model: LinearModel,
        sharing: Sharing,
        spans: StepSpans,
        runs: Callable[[LinearTerms, int, int, int], LinearTerms],
        has_run: Callable[[LinearTerms, int, int, int], LinearTerms],
    ) -> None:
        self.sharing = sharing
        self._model = model
        self._runs = runs
        self._has_run = has_run
        self._steps = {v: range(int(spans.first[v]), int(spans.last[v]) + 1) for v in sharing.pairs}
        self.columns: dict[tuple[int, int], int] = {}
        """(pair number, step) -> column of G."""
        self.deaths: dict[tuple[int, int, int], int] = {}
        """(input, operator, step) -> column of D."""
        self._inputs: dict[int, list[int]] = {}  # of those by operator
        for v, pairs in sharing.pairs.items():
            self._add_columns(v, pairs)
            for t in self._steps[v]:
                self._add_outputs(v, pairs, t)
                if v in sharing.strict:
                    self._add_strict(v, pairs, t)

    def relax(self, terms: LinearTerms, a: int, v: int, t: int, coefficient: int) -> LinearTerms:
        """Adds `coefficient` times "v runs at step t, and its input a passes its memory on" (to an
        output of another buffer); returns `terms`.
        """
        for p in self.sharing.of_input.get((a, v), ()):
            if (p.number, t) in self.columns:
                terms.plus(self.columns[p.number, t], coefficient)
        return terms

    def fill(
        self, x: NDArray[np.float64], g: GraphArrays, position: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Sets the sharing variables of point `x`, in place, to what shares memory in an order
        (`memory.lifetimes`). `position`: int64 [n], step of each operator. Returns int64 [m], one
        past the last step at which each tensor occupies memory in the model: as in that order, but
        for pairs without bytes, which have no column.
        """
        spans, passes = spans_and_passes(g, position)
        stop = spans[:, 1]
        needed = stop.copy()
        needed[g.pair_a[passes]] += 1  # before its memory passes on
        for (k, t), column in self.columns.items():
            x[column] = passes[k] and position[g.source[g.pair_b[k]]] == t
        for (a, v, t), column in self.deaths.items():
            x[column] = position[v] == t and needed[a] == t + 1
        modelled = g.pair_must.copy()
        modelled[[p.number for pairs in self.sharing.pairs.values() for p in pairs]] = True
        stop[g.pair_a[passes & ~modelled]] += 1
        return stop

    def _add_columns(self, v: int, pairs: Sequence[InPlacePair]) -> None:
        steps = self._steps[v]
        for p in pairs:
            block = self._model.add_variables(
                len(steps), name=lambda i, p=p: f"G[{p.output},{p.input},{steps[i]}]"
            )
            self.columns.update({(p.number, t): c for t, c in zip(steps, block, strict=True)})
        if v in self.sharing.strict:
            inputs = {p.input for p in pairs}
            for p in pairs:
                inputs.update(self.sharing.forced.get((p.output, v), ()))
            self._inputs[v] = sorted(inputs)
            for a in self._inputs[v]:
                block = self._model.add_variables(
                    len(steps), name=lambda i, a=a: f"D[{a},{v},{steps[i]}]"
                )
                self.deaths.update({(a, v, t): c for t, c in zip(steps, block, strict=True)})

    def _add_outputs(self, v: int, pairs: Sequence[InPlacePair], t: int) -> None:
        """Adds rows: each output of v takes over one input's memory at most, and if v runs at t."""
        by_output: dict[int, LinearTerms] = defaultdict(LinearTerms)
        for p in pairs:
            by_output[p.output].plus(self.columns[p.number, t])
        for terms in by_output.values():
            self._runs(terms, v, t, -1).into(self._model, upper=0, tag="share output")

    def _add_strict(self, v: int, pairs: Sequence[InPlacePair], t: int) -> None:
        """Adds rows: if v runs at t, its pairs (output, input) share memory one after the other in
        the graph's order, each if its input dies there and neither is matched yet.
        """
        for a in self._inputs[v]:
            self._add_death(a, v, t)
        by_input: dict[int, LinearTerms] = defaultdict(LinearTerms)
        for p in pairs:
            by_input[p.input].plus(self.columns[p.number, t])
        for a, terms in by_input.items():
            terms.plus(self.deaths[a, v, t], -1).into(self._model, upper=0, tag="share input")
        for i, p in enumerate(pairs):
            # G = 1 where the input dies, unless an earlier pair or a forced input was first.
            terms = (
                LinearTerms().plus(self.columns[p.number, t]).plus(self.deaths[p.input, v, t], -1)
            )
            for q in pairs[:i]:
                if q.output == p.output or q.input == p.input:
                    terms.plus(self.columns[q.number, t])
            for a in self.sharing.forced.get((p.output, v), ()):
                terms.plus(self.deaths[a, v, t])
                blocked = LinearTerms().plus(self.columns[p.number, t]).plus(self.deaths[a, v, t])
                self._runs(blocked, v, t, -1).into(self._model, upper=0, tag="share forced")
            terms.into(self._model, lower=0, tag="share greedy")

    def _add_death(self, a: int, v: int, t: int) -> None:
        """Adds rows: D[a, v, t] = 1 exactly if v runs at t after all others that need tensor a."""
        death = self.deaths[a, v, t]
        self._runs(LinearTerms().plus(death), v, t, -1).into(self._model, upper=0, tag="dies")
        least = self._runs(LinearTerms().plus(death), v, t, -1)
        for u in self.sharing.others[a, v]:
            self._has_run(LinearTerms().plus(death), u, t - 1, -1).into(
                self._model, upper=0, tag="dies"
            )
            self._has_run(least.plus_constant(1), u, t - 1, -1)
        least.into(self._model, lower=0, tag="dies")
