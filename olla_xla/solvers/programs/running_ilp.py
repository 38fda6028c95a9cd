"""The serial lifetime ILP in cumulative variables: our own form of the paper's.

Binaries R[v,t], "operator v has run by the end of step t", and L[e,t], "tensor e is live at t".
With one operator per step, R[v,t] - R[v,t-1] is the paper's C of v's outputs, and L is its C + P.
The same equations, by number:

  (3), (10)  R[v,t-1] <= R[v,t]; R is 0 before the span of v and 1 at its end
  (2), (4)   L[e,t] >= R[source,t] - R[u,t-1] for every user u of e: created by t, u yet to run.
             (1) and (5) hold by substitution. Where e's memory passes on at u, R[u,t] replaces
             R[u,t-1], or the binary that says so is added (`sharing`).
  (11), (12) L is 0 or 1 outside and inside known spans
  (14)       peak >= sum_e S_e L[e,t] + the transient bytes of the operator that runs at t

Ours: sum_v R[v,t] = t + 1, and R[v,t] <= R[u,t-1] if u runs before v. This summed form of (2) and
(4) implies theirs but not conversely for fractions, so its relaxation bounds the peak better, and a
row has few coefficients.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import SolverError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.solvers.linear import LinearModel, LinearTerms
from olla_xla.solvers.programs.prepared import Scale
from olla_xla.solvers.programs.sharing import Sharing, SharingRows
from olla_xla.solvers.programs.spans import Reach, StepSpans, spans, users_of


class RunningIlp:
    """The integer linear program for a graph's orders; its optimum is the least lifetime peak.

    Args:
      graph: to be ordered. bound_bytes: a known lower bound on the peak; 0 leaves it to the solver.

    Attributes:
      model: minimises the peak, in units of `scale`. peak: its column.
    """

    def __init__(self, graph: GraphArrays, *, bound_bytes: int = 0) -> None:
        self.scale = Scale.of(graph)
        self.model = LinearModel("running")
        self._g = graph
        self._reach = Reach.of(graph)
        self._spans = self.step_spans(graph, self._reach)
        self._r = [self._running_columns(v) for v in range(graph.n)]
        self._users = [self._reach.latest(users_of(graph, e)) for e in range(graph.m)]
        self._live = [self._live_columns(e) for e in range(graph.m)]
        sharing = Sharing.of(graph, self._reach)
        self._sharing = SharingRows(self.model, sharing, self._spans, self._runs, self._has_run)
        self.peak = self.scale.add_peak(self.model, bound_bytes)
        self._add_order()
        for e in range(graph.m):
            self._add_lifetime(e)
        for t in range(graph.n):
            self._add_load(t)

    def step_spans(self, graph: GraphArrays, reach: Reach) -> StepSpans:
        """Returns the first and last steps at which operators can run and tensors live, so that
        there are columns for these only. Wider spans have the same optimum.
        """
        return spans(graph, reach)

    def decode(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Translates a point, float64 [variables], into an order; SolverError if it has none."""
        running: list[list[int]] = [[] for _ in range(self._g.n)]
        for v, columns in enumerate(self._r):
            steps = [t for t, column in columns.items() if x[column] > 0.5]
            running[min(steps, default=int(self._spans.last[v]))].append(v)
        return sequence(running, self._g.n)

    def start(self, order: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Translates an order into a point, float64 [variables], for the solver to start from."""
        g, x = self._g, np.zeros(self.model.variables)
        position = g.positions(order)
        for v, columns in enumerate(self._r):
            for t, column in columns.items():
                x[column] = t >= position[v]
        stops = self._sharing.fill(x, g, position)
        starts = np.where(g.live_in, 0, position[g.source])
        for e, (first, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            for t, column in self._live[e].items():
                x[column] = first <= t < stop
        x[self.peak] = self.scale.to_units(peak_bytes(g, order))
        return x

    def position(self, terms: LinearTerms, v: int, coefficient: int) -> LinearTerms:
        """Adds `coefficient` times the step of operator `v` to a linear expression; returns it."""
        terms.plus_constant(coefficient * int(self._spans.last[v]))
        for column in self._r[v].values():
            terms.plus(column, -coefficient)
        return terms

    def _running_columns(self, v: int) -> dict[int, int]:
        """Adds variables R[v, t], "operator v has run by the end of step t"; returns step ->
        column. The last step at which v can run has none, as it is always 1 there.
        """
        steps = range(int(self._spans.first[v]), int(self._spans.last[v]))
        block = self.model.add_variables(len(steps), name=lambda i: f"R[{v},{steps[i]}]")
        return dict(zip(steps, block, strict=True))

    def _live_columns(self, e: int) -> dict[int, int]:
        """Adds variables L[e, t], "tensor e is live at step t"; returns step -> column. Steps at
        which that is certain, or known from when operators run, have none.
        """
        g, s = self._g, self._spans
        if g.live_out[e] or not self._users[e]:
            return {}
        created = range(int(s.useful_first[e]) - (not g.live_in[e]), int(s.useful_last[e]) + 1)
        held = range(int(s.held_first[e]), int(s.held_last[e]) + 1)
        if not g.live_in[e] and held:
            held = range(held.start - 1, held.stop)
        steps = [t for t in created if t not in held]
        block = self.model.add_variables(len(steps), name=lambda i: f"L[{e},{steps[i]}]")
        return dict(zip(steps, block, strict=True))

    def _has_run(self, terms: LinearTerms, v: int, t: int, coefficient: int) -> LinearTerms:
        if t >= self._spans.last[v]:
            return terms.plus_constant(coefficient)
        return terms if t < self._spans.first[v] else terms.plus(self._r[v][t], coefficient)

    def _runs(self, terms: LinearTerms, v: int, t: int, coefficient: int) -> LinearTerms:
        return self._has_run(self._has_run(terms, v, t, coefficient), v, t - 1, -coefficient)

    def _created(self, terms: LinearTerms, e: int, t: int, coefficient: int) -> LinearTerms:
        """Adds `coefficient` times "tensor e exists by the end of step t" to an expression."""
        if self._g.live_in[e]:
            return terms.plus_constant(coefficient)
        return self._has_run(terms, int(self._g.source[e]), t, coefficient)

    def _add_order(self) -> None:
        """Adds rows (3), and ours: one operator at each step, in an order that respects edges."""
        first, last = self._spans.first, self._spans.last
        for columns in self._r:
            pairs = list(columns.values())
            for a, b in zip(pairs, pairs[1:], strict=False):
                self.model.add_row([a, b], [1, -1], upper=0, tag="(3)")
        for t in range(self._g.n):
            terms = LinearTerms()
            for v in range(self._g.n):
                self._has_run(terms, v, t, 1)
            terms.into(self.model, lower=t + 1, upper=t + 1, tag="serial")
        for u, v in self._reach.direct(self._g):
            for t in range(int(first[v]), int(last[u]) + 1):
                later = self._has_run(LinearTerms(), v, t, 1)
                self._has_run(later, u, t - 1, -1).into(self.model, upper=0, tag="precedence")

    def _add_lifetime(self, e: int) -> None:
        """Adds rows (2), (4): tensor e is live from its creation until every user has run."""
        sharing = self._sharing.sharing
        for t, column in self._live[e].items():
            for u in self._users[e]:
                live = self._created(LinearTerms().plus(column), e, t, -1)
                self._has_run(live, u, t if (e, u) in sharing.must else t - 1, 1)
                self._sharing.relax(live, e, u, t, 1)
                if live.columns != [column] or live.constant < 0:
                    live.into(self.model, lower=0, tag="(2), (4)")

    def _add_load(self, t: int) -> None:
        """Adds row (14): the peak is no less than the bytes live at step t."""
        g, s = self._g, self._spans
        terms = LinearTerms().plus(self.peak, -1)
        for e in np.flatnonzero(self.scale.sizes).tolist():
            size = int(self.scale.sizes[e])
            if g.live_out[e]:
                self._created(terms, e, t, size)
            elif not self._users[e]:
                self._runs(terms, int(g.source[e]), t, size)
            elif t in self._live[e]:
                terms.plus(self._live[e][t], size)
            elif s.held_first[e] - (not g.live_in[e]) <= t <= s.held_last[e]:
                terms.plus_constant(size)
        for v in np.flatnonzero(self.scale.transient).tolist():
            self._runs(terms, v, t, int(self.scale.transient[v]))
        terms.into(self.model, upper=0, tag="(14)")


def sequence(running: Sequence[Iterable[int]], n: int) -> NDArray[np.int64]:
    """The execution order of operators, int64 [n], by an ILP's solution (the paper's Function 1).
    Raises SolverError if an operator runs twice or not at all.

    Args:
      running: by step, the operators that create a tensor there. Those of one step do not depend on
        each other, by equation (4); they are taken by number.
      n: how many operators there are.
    """
    order = [v for step in running for v in sorted(step)]
    if sorted(order) != list(range(n)):
        missing = sorted(set(range(n)) - set(order))
        raise SolverError(f"the solution runs {len(order)} of {n} operators, but not {missing[:5]}")
    return np.array(order, np.int64)
