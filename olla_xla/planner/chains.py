"""In-place chains of one computation: results bound to operands, and orders that follow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import olla_xla.planner.in_place as in_place
import olla_xla.schedule as schedule
from hlo.rewrite.aliases import Alias
from olla_xla.planner.work import Candidates


def with_chains(
    work: Candidates, tolerance: float, own: str
) -> tuple[Candidates, Mapping[str, tuple[Alias, ...]]]:
    """Binds results to operands in a computation where that lowers the predicted total.

    It looks for bindings under the order of least total, under the best order of a rule, and under
    the best of the search's own orders.

    Args:
      work: the computation with its orders and their scores.
      tolerance: the least saving of a binding, as a fraction of the least total.
      own: the prefix of the names of the search's own orders.

    Returns:
      The computation, rewritten if anything was bound, else as it was; and fusion name -> the
      results that were bound.
    """
    model = work.planned.model
    best, *_ = ranked = sorted(work.scores, key=lambda name: work.scores[name])
    by_rule = next(name for name in ranked if not name.startswith(own))
    limit = work.scores[best][0] * (1 - tolerance)
    chosen: list[tuple[int, str, list[in_place.Binding]]] = []
    for name in dict.fromkeys((best, by_rule, own)):
        orders = work.whole(work.starts[name])
        found = in_place.bindings(
            work.planned.dataflow,
            work.lowered,
            work.arrays,
            work.starts[name],
            work.planned.kept,
        )
        kept, total = in_place.choose(
            found,
            lambda pairs, o=orders: model.merged(pairs).simulate(o).total_bytes,
            work.arrays.n,
        )
        if kept and total < limit:
            chosen.append((total, name, kept))
    if not chosen:
        return work, {}
    # Choices about as good as the best are compared by the orders that they lead to.
    least = min(total for total, *_ in chosen)
    ways = [
        _with_bindings(work, name, kept, own)
        for total, name, kept in chosen
        if total <= least * (1 + tolerance)
    ]
    return min(ways, key=lambda way: min(way[0].scores.values()))


def _with_bindings(
    work: Candidates, name: str, kept: list[in_place.Binding], own: str
) -> tuple[Candidates, Mapping[str, tuple[Alias, ...]]]:
    """The computation with bindings that were chosen under the order of that name."""
    aliases = in_place.aliases(kept)
    planned = work.planned.rewritten(aliases, work.whole(work.starts[name]))
    computation = planned.computations[work.lowered.computation.name]
    other = Candidates(planned, planned.lowered(computation))
    other.add({name: np.arange(other.arrays.n)})
    other.add({f"{n}+": o for n, o in schedule.candidates(other.arrays).items()})
    other.add({f"{n}+": o for n, o in _orders_for(work, other, own).items()})
    return other, aliases


def _orders_for(work: Candidates, other: Candidates, own: str) -> dict[str, NDArray[np.int64]]:
    """The orders whose names begin with `own`, of the operators of a rewritten module."""
    step = {i.name: k for k, i in enumerate(other.lowered.instructions)}
    names = [i.name for i in work.lowered.instructions]
    if step.keys() != set(names):
        return {}
    moved = np.array([step[name] for name in names])
    return {name: moved[o] for name, o in work.starts.items() if name.startswith(own)}
