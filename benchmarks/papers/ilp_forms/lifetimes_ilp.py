"""The lifetime ILP of the paper (Steiner et al., "OLLA", 2022), sections 3 and 4.

Binaries C[e,t], "tensor e is created at step t, by running its source", and P[e,t], "e is preserved
at step t". The paper's equations, by number:

   (1) C[e,t] + P[e,t] <= 1                     (2) P[e,t] <= P[e,t-1] + C[e,t-1]
   (3) sum_t C[e,t] = 1                         (4) C[e,t] <= P[f,t] for f feeding e's source
   (5) C[e,t] = C[g,t] for siblings e, g        (10) C = 0 outside the span of e's source
  (11) P = 0 outside the maximum useful lifetime     (12) P = 1 wherever e must be preserved
(13), (14) minimise the largest over t of sum_e S_e (C[e,t] + P[e,t]).

Two readings:
- `plain`: the paper's. The graph must come from `plain_graph`: tensors and nothing else. Operators
  may share a step; there are as many steps as operators, so that sharing one never helps.
- ours: one operator per step, and all that the evaluator counts: tensors live from the start or to
  the end, transient bytes, and memory that passes from a dying input to an output (`sharing`). One
  C stands for all outputs of an operator, which is (5) by substitution; precedence that no tensor
  carries has rows of its own. The optimum is the least peak of `olla_xla.memory.lifetimes`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from benchmarks.papers.ilp_forms.equations import require_known, spans_of_paths, widened
from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.solvers.linear import LinearModel, LinearTerms
from olla_xla.solvers.programs.prepared import Scale
from olla_xla.solvers.programs.running_ilp import sequence
from olla_xla.solvers.programs.sharing import Sharing, SharingRows
from olla_xla.solvers.programs.spans import Reach, spans

EQUATIONS = ("1", "2", "3", "4", "5", "10", "11", "12")
"""The equations that can be switched off."""

DEFINING = frozenset({"2", "3", "4", "5"})
"""Without one of these the model is a relaxation: its value is only a bound, its point no order."""

_ONE = -1  # in place of a column: P is 1 by (12)


class LifetimeIlp:
    """The ILP of a graph.

    Args:
      graph: to be ordered.
      plain: the paper's reading instead of ours.
      equations: those to use, from `EQUATIONS`.
      bound_bytes: a known lower bound on the peak; 0 leaves it to the solver.

    Attributes:
      model: minimises the peak, in units of `scale`.
    """

    def __init__(
        self,
        graph: GraphArrays,
        *,
        plain: bool = False,
        equations: Collection[str] = EQUATIONS,
        bound_bytes: int = 0,
    ) -> None:
        require_known(equations, EQUATIONS)
        if plain:
            _require_plain(graph)
        self.scale = Scale.of(graph)
        self.model = LinearModel("lifetimes")
        self._g = graph
        self._plain = plain
        self._equations = frozenset(equations)
        self._reach = Reach.of(graph)
        known = spans_of_paths(graph) if plain else spans(graph, self._reach)
        self._spans = widened(graph, known, equations)
        self._c = self._creation_columns()
        self._p = [self._preservation_columns(e) for e in range(graph.m)]
        sharing = Sharing.of(graph, self._reach)
        self._sharing = SharingRows(self.model, sharing, self._spans, self._runs, self._has_run)
        self._peak = self.scale.add_peak(self.model, bound_bytes)
        self._add_rows()

    def decode(self, x: np.ndarray) -> np.ndarray:
        """The order, from C.

        Raises:
          InputError: a defining equation is off.
        """
        missing = sorted(DEFINING - self._equations)
        if missing:
            raise InputError(f"without ({missing[0]}) the model is a relaxation and has no order")
        running: list[list[int]] = [[] for _ in range(self._g.n)]
        for v in range(self._g.n):
            for t, column in self._c[self._keys(v)[0]].items():
                if x[column] > 0.5:
                    running[t].append(v)
        return sequence(running, self._g.n)

    def start(self, order: Sequence[int] | np.ndarray) -> np.ndarray:
        """The point of an order, as a warm start."""
        g, x = self._g, np.zeros(self.model.variables)
        position = g.positions(order)
        for v in range(g.n):
            for key in self._keys(v):
                x[self._c[key][int(position[v])]] = 1
        stops = self._sharing.fill(x, g, position)
        starts = np.where(g.live_in, 0, position[g.source])
        for e, (first, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            for t, column in self._p[e].items():
                if column != _ONE:
                    x[column] = first + (not g.live_in[e]) <= t < stop
        x[self._peak] = self.scale.to_units(peak_bytes(g, order))
        return x

    def _keys(self, v: int) -> Sequence[int]:
        """The keys of the C columns of an operator: its outputs if plain, else itself."""
        g = self._g
        return g.out_idx[g.out_ptr[v] : g.out_ptr[v + 1]].tolist() if self._plain else (v,)

    def _creation_columns(self) -> list[dict[int, int]]:
        """By key: step -> column of C; (10) leaves out the steps at which it is 0."""
        sources = self._g.source.tolist() if self._plain else range(self._g.n)
        columns = []
        for key, v in enumerate(sources):
            steps = range(int(self._spans.first[v]), int(self._spans.last[v]) + 1)
            block = self.model.add_variables(
                len(steps), name=lambda i, key=key, steps=steps: f"C[{key},{steps[i]}]"
            )
            columns.append(dict(zip(steps, block, strict=True)))
        return columns

    def _preservation_columns(self, e: int) -> dict[int, int]:
        """Step -> column of P; by (11) it is 0 at other steps, by (12) 1 at some of these."""
        s = self._spans
        steps = range(int(s.useful_first[e]), int(s.useful_last[e]) + 1)
        held = range(int(s.held_first[e]), int(s.held_last[e]) + 1)
        open_steps = [t for t in steps if t not in held]
        block = self.model.add_variables(len(open_steps), name=lambda i: f"P[{e},{open_steps[i]}]")
        return dict.fromkeys(held, _ONE) | dict(zip(open_steps, block, strict=True))

    def _created(self, terms: LinearTerms, e: int, t: int, coefficient: int) -> LinearTerms:
        """Adds C[e,t]; a tensor that is live from the start is preserved, never created."""
        if self._g.live_in[e] and not self._plain:
            return terms
        column = self._c[e if self._plain else int(self._g.source[e])].get(t)
        return terms if column is None else terms.plus(column, coefficient)

    def _preserved(self, terms: LinearTerms, e: int, t: int, coefficient: int) -> LinearTerms:
        column = self._p[e].get(t)
        if column is None:
            return terms
        return (
            terms.plus_constant(coefficient) if column == _ONE else terms.plus(column, coefficient)
        )

    def _runs(self, terms: LinearTerms, v: int, t: int, coefficient: int) -> LinearTerms:
        column = self._c[self._keys(v)[0]].get(t)
        return terms if column is None else terms.plus(column, coefficient)

    def _has_run(self, terms: LinearTerms, v: int, t: int, coefficient: int) -> LinearTerms:
        if t >= self._spans.last[v]:
            return terms.plus_constant(coefficient)
        for s in range(int(self._spans.first[v]), t + 1):
            self._runs(terms, v, s, coefficient)
        return terms

    def _add_rows(self) -> None:
        for e in range(self._g.m):
            self._add_tensor(e)
        for v in range(self._g.n):
            keys = self._keys(v)
            for key in keys:
                if "3" in self._equations:
                    columns = list(self._c[key].values())
                    self.model.add_row(columns, [1] * len(columns), 1, 1, tag="(3)")
                if "5" in self._equations and key != keys[0]:
                    for t, column in self._c[key].items():
                        self._runs(LinearTerms().plus(column), v, t, -1).into(
                            self.model, lower=0, upper=0, tag="(5)"
                        )
            if "4" in self._equations:
                self._add_inputs(v)
        for t in range(self._g.n):
            self._add_load(t)
        if not self._plain:
            self._add_serial()

    def _add_tensor(self, e: int) -> None:
        """(1) and (2) of a tensor; ours: it is there at the end if it is an output."""
        g, n = self._g, self._g.n
        for t in self._p[e]:
            if "1" in self._equations:
                both = self._created(LinearTerms(), e, t, 1)
                if both.columns:
                    self._preserved(both, e, t, 1).into(self.model, upper=1, tag="(1)")
            if "2" in self._equations and t > 0:
                kept = self._preserved(self._preserved(LinearTerms(), e, t, 1), e, t - 1, -1)
                self._created(kept, e, t - 1, -1).into(self.model, upper=0, tag="(2)")
        if g.live_out[e]:
            last = self._preserved(self._created(LinearTerms(), e, n - 1, 1), e, n - 1, 1)
            last.into(self.model, lower=1, tag="out")

    def _add_inputs(self, v: int) -> None:
        """(4) of an operator; where an input's memory can pass on, ours."""
        g = self._g
        inputs = g.in_idx[g.in_ptr[v] : g.in_ptr[v + 1]].tolist()
        outputs = g.out_idx[g.out_ptr[v] : g.out_ptr[v + 1]]
        inputs += outputs[g.live_in[outputs]].tolist()
        sharing = self._sharing.sharing
        for key in self._keys(v):
            for t, column in self._c[key].items():
                for f in inputs:
                    must = (f, v) in sharing.must
                    if not must:
                        kept = self._preserved(LinearTerms().plus(column), f, t, -1)
                        self._sharing.relax(kept, f, v, t, -1).into(self.model, upper=0, tag="(4)")
                    if (must or (f, v) in sharing.of_input) and (t > 0 or not g.live_in[f]):
                        kept = self._preserved(LinearTerms().plus(column), f, t - 1, -1)
                        self._created(kept, f, t - 1, -1).into(
                            self.model, upper=0, tag="(4) in place"
                        )

    def _add_load(self, t: int) -> None:
        """(13), (14): the peak is no less than the load of a step."""
        terms = LinearTerms().plus(self._peak, -1)
        for e in range(self._g.m):
            size = int(self.scale.sizes[e])
            if size:
                self._preserved(self._created(terms, e, t, size), e, t, size)
        for v in np.flatnonzero(self.scale.transient).tolist():
            self._runs(terms, v, t, int(self.scale.transient[v]))
        terms.into(self.model, upper=0, tag="(14)")

    def _add_serial(self) -> None:
        """Ours: one operator at each step, and precedence that no tensor carries."""
        for t in range(self._g.n):
            terms = LinearTerms()
            for v in range(self._g.n):
                self._runs(terms, v, t, 1)
            terms.into(self.model, lower=1, upper=1, tag="serial")
        for u, v in self._uncarried():
            for t in range(int(self._spans.first[v]), int(self._spans.last[u]) + 1):
                later = self._has_run(LinearTerms(), v, t, 1)
                self._has_run(later, u, t - 1, -1).into(self.model, upper=0, tag="precedence")

    def _uncarried(self) -> Iterator[tuple[int, int]]:
        g = self._g
        for u, v in self._reach.direct(g):
            inputs = g.in_idx[g.in_ptr[v] : g.in_ptr[v + 1]]
            if not ((g.source[inputs] == u) & ~g.live_in[inputs]).any():
                yield u, v


def _require_plain(g: GraphArrays) -> None:
    has_outputs = bool((np.diff(g.out_ptr) > 0).all())
    extras = g.live_in.any() or g.live_out.any() or g.transient.any() or len(g.pair_b)
    if not has_outputs or extras:
        raise InputError("this graph has more than tensors in it; pass it through plain_graph")
