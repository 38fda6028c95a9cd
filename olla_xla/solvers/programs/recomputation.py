"""Recomputation as an integer linear program: keep or compute again, budget at every step.

The order is given. The form follows Checkmate (Jain et al., MLSys 2020, section 4), with variables
only where something can change: for each tensor that may be made again, the steps at which it may
be read are its events; between two events it is kept or not (S of the paper), and before an event
it may be made (R of the paper). Rows, with the paper's equations:

- (1b) what is read at an event was kept until then, or is made there; so are a clone's operands;
- (1c) what is kept on after an event was there at the event;
- (wanted) a clone is read by an operator, or by another clone, at the step before which it runs;
- (1d) at every step, and before every step where clones may run, live bytes stay in the budget.

Chains of clones are limited to `_DEPTH`, and tensors below a part of the peak are kept as they are,
so the optimum and the bound are those of this restricted problem.
"""

import bisect
import dataclasses

import numpy as np
from numpy.typing import NDArray

from olla_xla.remat.evictions import expand
from olla_xla.remat.graph import RematGraph
from olla_xla.solvers.linear import LinearModel, SolverLimits, SolverResult
from olla_xla.solvers.solve import solve

_DEPTH = 2
_SMALL = 2e-3


@dataclasses.dataclass(frozen=True, eq=False)
class ExactChoice:
    """What the integer program found: the evictions (tensors dropped and computed again for their
    next readers) that add the least time.

    Attributes:
      result: of the solver; values and bound are predicted seconds added.
      evictions: int64 [k, 2] of (tensor, key: a moment in the order at which it is dropped); None
        if no feasible point was found.
      variables, rows: of the program.
    """

    result: SolverResult
    evictions: NDArray[np.int64] | None
    variables: int
    rows: int


def choose_exactly(
    g: RematGraph, budget: int, limits: SolverLimits, small: float = _SMALL
) -> ExactChoice:
    """Solves for evictions that keep the lifetime peak within a budget at the least added time. An
    evicted tensor is dropped over a moment of the order and computed again for its next reader.

    Args:
      g: the problem, in its order. budget: bytes. limits: of the solver.
      small: tensors below this part of the peak are left alone.
    """
    program = _Formulation(g, budget, small)
    result = solve(program.model, limits)
    evictions = None if result.x is None else program.evictions(result.x)
    return ExactChoice(result, evictions, program.model.variables, program.model.rows)


def evictions(g: RematGraph, budget: int, seconds: float) -> tuple[NDArray[np.int64] | None, float]:
    """Runs `choose_exactly` for at most `seconds`. Returns (int64 [k, 2] of (tensor, moment at
    which it is dropped), or None; lower bound on the added seconds, -inf if none is known).
    """
    choice = choose_exactly(g, budget, SolverLimits(time_limit=seconds))
    return choice.evictions, choice.result.bound


class _Formulation:
    def __init__(self, g: RematGraph, budget: int, small: float) -> None:
        self.g, self.arrays = g, g.arrays
        self.base = expand(g, np.zeros((0, 2), np.int64))
        self.candidate = g.evictable & (self.arrays.bytes >= small * self.base.peak)
        self.last = np.zeros(self.arrays.m, np.int64)
        self.last[self.base.seg_tensor] = self.base.seg_end // (2 * self.arrays.n)
        self.last[self.arrays.live_out] = self.arrays.n
        self.model = LinearModel("recomputation")
        self.levels: list[dict[int, int]] = [{} for _ in range(self.arrays.m)]
        self._collect()
        self.events = [sorted(levels) for levels in self.levels]
        self.keep: dict[tuple[int, int], int] = {}
        self.make: dict[tuple[int, int], int] = {}
        self._variables()
        self._presence()
        self._budget(budget)

    def inputs(self, v: int) -> list[int]:
        """Returns the numbers of the tensors that operator v reads."""
        return self.arrays.in_idx[self.arrays.in_ptr[v] : self.arrays.in_ptr[v + 1]].tolist()

    def outputs(self, v: int) -> list[int]:
        """Returns the numbers of the tensors that operator v defines."""
        return self.arrays.out_idx[self.arrays.out_ptr[v] : self.arrays.out_ptr[v + 1]].tolist()

    def stands(self, t: int, step: int) -> bool:
        """Whether tensor t is no candidate for eviction, and in memory at a step in any case."""
        start = -1 if self.arrays.live_in[t] else int(self.arrays.source[t])
        return not self.candidate[t] and start <= step <= self.last[t]

    def _collect(self) -> None:
        """Fills `levels`: for each tensor, the steps at which it may be made or read (events), each
        with the length of the chain of clones that reads it, 0 if the module's own operators do.
        """
        g = self.g
        for v in range(self.arrays.n - 1, -1, -1):
            for t in self.outputs(v):
                self.levels[t][v] = 0
            again = {
                step: level
                for t in self.outputs(v)
                if self.candidate[t]
                for step, level in self.levels[t].items()
                if step > v and level < _DEPTH
            }
            for t in self.inputs(v):
                if self.candidate[t]:
                    self.levels[t][v] = 0
                for step, level in again.items():
                    if not self.stands(t, step) and step <= g.marks.limit[t]:
                        known = self.levels[t].get(step, _DEPTH + 1)
                        self.levels[t][step] = min(known, level + 1)
                        if not self.candidate[t]:  # kept from its last reader on, if at all
                            self.levels[t][int(self.last[t])] = 0

    def _variables(self) -> None:
        g, model = self.g, self.model
        for t in range(self.arrays.m):
            for k in range(len(self.events[t]) - 1):
                if self.candidate[t] or self.events[t][k] >= self.last[t]:
                    name = f"keep[{t},{self.events[t][k]}]"
                    self.keep[t, k] = model.add_variable(name=name)
            if not self.candidate[t]:
                continue
            v = int(self.arrays.source[t])
            for step in self.events[t][1:]:
                if self.levels[t][step] <= _DEPTH and (v, step) not in self.make:
                    if all(self.stands(a, step) or step in self.levels[a] for a in self.inputs(v)):
                        self.make[v, step] = model.add_variable(
                            cost=float(g.seconds[v]), name=f"make[{v},{step}]"
                        )

    def _there(self, t: int, step: int) -> list[int]:
        """Columns (kept, or recomputed): one or both are 1 if tensor t is in memory at `step`."""
        k = bisect.bisect_left(self.events[t], step) - 1
        columns = [self.keep[t, k]] if (t, k) in self.keep else []
        made = self.make.get((int(self.arrays.source[t]), step))
        return columns + ([made] if made is not None else [])

    def _presence(self) -> None:
        """Adds rows: a tensor that is read was kept until then, or is made there (1b); what is kept
        on was in memory before (1c); and those of `_wanted`.
        """
        for t in np.flatnonzero(self.candidate).tolist():
            for step, level in self.levels[t].items():
                if level == 0 and step > self.arrays.source[t]:
                    columns = self._there(t, step)
                    self.model.add_row(columns, [1.0] * len(columns), lower=1, tag="(1b)")
        for (v, step), column in self.make.items():
            for t in self.inputs(v):
                if not self.stands(t, step):
                    columns = self._there(t, step)
                    values = [1.0] * len(columns)
                    self.model.add_row([*columns, column], [*values, -1.0], lower=0, tag="(1b)")
        self._wanted()
        for (t, k), column in self.keep.items():
            first = self.events[t][k]
            read = self.levels[t][first] == 0
            if k and not read:
                columns = self._there(t, first)
                values = [1.0] * len(columns)
                self.model.add_row([*columns, column], [*values, -1.0], lower=0, tag="(1c)")

    def _wanted(self) -> None:
        """Adds rows (wanted): a clone runs only if an operator or a clone reads it at its step."""
        clones: dict[tuple[int, int], list[int]] = {}
        for (v, step), column in self.make.items():
            for t in self.inputs(v):
                clones.setdefault((int(self.arrays.source[t]), step), []).append(column)
        for (v, step), column in self.make.items():
            if all(self.levels[t].get(step) != 0 for t in self.outputs(v)):
                readers = list(dict.fromkeys(clones.get((v, step), [])))
                values = [1.0] * len(readers)
                self.model.add_row([*readers, column], [*values, -1.0], lower=0, tag="wanted")

    def _budget(self, budget: int) -> None:
        """Adds rows (1d): live bytes are within the budget, at each step where they might not."""
        g = self.arrays
        unit = max(self.base.peak / 1e4, 1.0)
        run = [[float(b), [], []] for b in self.base.live]
        before = [[0.0, [], []] for _ in range(g.n)]
        change = np.zeros(g.n + 1)
        starts = np.where(g.live_in, 0, g.source + 1)
        np.add.at(change, np.minimum(starts, g.n), g.bytes)
        np.subtract.at(change, np.minimum(self.last + 1, g.n), g.bytes * (self.last >= starts))
        np.subtract.at(change, np.minimum(starts, g.n), g.bytes * (self.last < starts))
        for step, live in enumerate(np.cumsum(change)[: g.n]):
            before[step][0] = float(self.g.held + live)
        for t in range(g.m):
            self._tensor_bytes(t, run, before)
        active = {step for _, step in self.make}
        for step in range(g.n):
            for here, used in ((run[step], True), (before[step], step in active)):
                constant, columns, values = here
                if used and constant + sum(v for v in values if v > 0) > budget:
                    scaled = [v / unit for v in values]
                    self.model.add_row(
                        columns, scaled, upper=(budget - constant) / unit, tag="(1d)"
                    )

    def _tensor_bytes(self, t: int, run: list, before: list) -> None:
        """Adds to `run` and `before`, in place, how tensor t's columns (variables) change the live
        bytes: `run` has (constant, columns, coefficients) for each step while it runs, `before` as
        it begins. Adds the variables and rows that this takes.
        """
        size, last = float(self.arrays.bytes[t]), int(self.last[t])
        for k, first in enumerate(self.events[t][:-1]):
            column = self.keep.get((t, k))
            if column is None:
                continue
            second = self.events[t][k + 1]
            for step in range(first + 1, second):
                for here in (run[step], before[step]):
                    here[0] -= size * (step <= last)
                    here[1].append(column)
                    here[2].append(size)
            self._at_event(t, second, run, before)

    def _at_event(self, t: int, step: int, run: list, before: list) -> None:
        size, inside = float(self.arrays.bytes[t]), step <= self.last[t]
        if self.levels[t][step] == 0:
            return  # it is read there: live before and while the operator runs
        there = self._there(t, step)
        k = bisect.bisect_left(self.events[t], step)
        onward = self.keep.get((t, k))
        run[step][0] -= size * inside
        if onward is not None:
            run[step][1].append(onward)
            run[step][2].append(size)
        present = self.model.add_variable(integer=False, name=f"present[{t},{step}]")
        for column in there:
            self.model.add_row([present, column], [1.0, -1.0], lower=0, tag="(1d)")
        before[step][0] -= size * inside
        before[step][1].append(present)
        before[step][2].append(size)

    def evictions(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns the evictions, int64 [k, 2] of (tensor, moment when it is dropped), of a point
        `x`: one wherever a tensor is not kept between two steps at which it may be made or read.
        """
        dropped = [
            (t, (2 * self.events[t][k] + 1) * self.arrays.n + 1)
            for (t, k), column in self.keep.items()
            if self.candidate[t] and x[column] < 0.5
        ]
        return np.array(dropped, np.int64).reshape(-1, 2)
