"""Integer programs without some of the equations (10), (11) and (12), which only narrow spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from olla_xla.errors import InputError
from olla_xla.memory.arrays import GraphArrays, topological_order
from olla_xla.solvers.programs.running_ilp import RunningIlp
from olla_xla.solvers.programs.spans import Reach, StepSpans, spans, users_of

EQUATIONS = ("10", "11", "12")
"""The equations of `RunningIlp` that can be switched off; the optimum stays the same."""


class RunningBy(RunningIlp):
    """`RunningIlp` by some of `EQUATIONS`; the others' spans are as wide as definitions allow."""

    def __init__(
        self, graph: GraphArrays, *, equations: Collection[str] = EQUATIONS, bound_bytes: int = 0
    ) -> None:
        require_known(equations, EQUATIONS)
        self._equations = equations
        super().__init__(graph, bound_bytes=bound_bytes)

    def step_spans(self, graph: GraphArrays, reach: Reach) -> StepSpans:
        """The spans by the chosen equations."""
        return widened(graph, spans(graph, reach), self._equations)


def require_known(equations: Collection[str], known: Sequence[str]) -> None:
    """Raises InputError for equations that there are not."""
    if unknown := set(equations) - set(known):
        raise InputError(f"no equations {sorted(unknown)}; there are {', '.join(known)}")


def widened(g: GraphArrays, found: StepSpans, used: Collection[str]) -> StepSpans:
    """The spans without those of the equations (10), (11) and (12) that are not in `used`.

    They are as wide as the definitions allow then: all steps; from step 1 on, or 0 if live from
    the start; none.
    """
    wide = {}
    if "10" not in used:
        wide |= {"first": np.zeros(g.n, np.int64), "last": np.full(g.n, g.n - 1)}
    if "11" not in used:
        wide |= {
            "useful_first": np.where(g.live_in, 0, 1),
            "useful_last": np.full(g.m, g.n - 1),
        }
    if "12" not in used:
        wide["held_last"] = np.full(g.m, -1)
    return dataclasses.replace(found, **wide)


def spans_of_paths(g: GraphArrays) -> StepSpans:
    """The spans of a plain graph whose operators may share a step, as in the paper (ASAP, ALAP)."""
    first, last = _longest_paths(g)
    users = [users_of(g, e) for e in range(g.m)]
    return StepSpans(
        first,
        last,
        useful_first=first[g.source] + 1,
        useful_last=np.array([max(last[of], default=-1) for of in users], np.int64),
        held_first=last[g.source] + 1,
        held_last=np.array([max(first[of], default=-1) for of in users], np.int64),
    )


def _longest_paths(g: GraphArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Earliest and latest step of each operator by the longest path to and from it."""
    first, last = np.zeros(g.n, np.int64), np.full(g.n, g.n - 1)
    order = topological_order(g).tolist()
    for v in order:
        near = g.pred_idx[g.pred_ptr[v] : g.pred_ptr[v + 1]]
        first[v] = max(first[near] + 1, default=0)
    for u in reversed(order):
        near = g.succ_idx[g.succ_ptr[u] : g.succ_ptr[u + 1]]
        last[u] = min(last[near] - 1, default=g.n - 1)
    return first, last
