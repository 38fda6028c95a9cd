"""Which scan residuals to keep: the cheapest choice for a price of memory, as a minimum cut.

A value that is computed again needs its operands. Those in scan residuals are kept or computed
again, whichever is cheaper; others are computed again with it, or get a new scan residual. A scan
residual, kept or new, costs its bytes at their price and the time to write and read it. A value
that is computed again costs its time. The least sum is a minimum cut (the closure problem of
Picard, "Maximal closure of a graph", 1976), as PyTorch's min-cut partitioner has it for graphs
without loops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from hlo.module import Instruction
from olla_xla.memory.max_flow import min_cut
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.loops.checkpoints import Thin
from olla_xla.remat.loops.nodes import Node
from olla_xla.remat.loops.recipe_prices import RecipePrices
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.recipes import Recipe

_HIGHEST_PRICE = 1.0
"""Seconds that a byte of a scan residual is worth that should go wherever it can."""

_ALL, _NEVER = 1 << 50, 1 << 60
"""Capacities: of all finite arcs together, and of an arc that must not be cut."""


@dataclasses.dataclass(frozen=True)
class Gone:
    """Which scan residuals a pair of loops drops, and which it adds.

    Attributes:
      dropped: elements of the forward loop's state. kept: value numbers that get a new scan
        residual instead.
    """

    dropped: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class SolvedChoices:
    """What an integer program chose for pairs of loops, and its bound.

    Attributes:
      gone: of each pair, what it drops and adds.
      bytes: of the scan residuals that stay, new ones too.
      bound: no choice from these recipes within the limit keeps fewer bytes; 0 where time was
        the objective.
      seconds: that it adds, as the cost model has them operator by operator.
    """

    gone: tuple[Gone, ...]
    bytes: int
    bound: int
    seconds: float


class Choice:
    """Chooses which scan residuals of one pair of loops to drop, by a price for memory.

    Attributes:
      table: of the recipes for its values. prices: of these.
      needed: value number -> its recipe or None, for the values of scan residuals and all values
        that they could be made of.
    """

    def __init__(self, table: RecipeTable, cost: CostModel, *, beside: bool = False) -> None:
        self.table = table
        self.prices = RecipePrices(table, cost, beside=beside)
        self.needed: dict[int, Recipe | None] = {}
        waiting = list(table.scan_residuals)
        while waiting:
            number = waiting.pop()
            if number in self.needed or table.is_there(number):
                continue
            recipe = self.needed[number] = table.recipe(number)
            waiting += recipe.needs if recipe is not None else ()

    def gone(self, price: float, thin: Thin | None = None, *, new: bool = True) -> Gone:
        """The scan residuals to drop and to add at a price of memory, by a minimum cut.

        Args:
          price: seconds that a byte is worth. At 0 nothing is dropped that would take longer.
          thin: how the forward loop is checkpointed (states of some iterations are kept), or None.
            With it, scan residuals not in `thin.residuals` are dropped where possible.
          new: whether intermediate values may get scan residuals of their own; ignored with `thin`.

        Returns:
          Elements of the forward loop's state to drop, and value numbers to keep instead.
        """
        source, sink = 0, 1
        nodes: dict[object, int] = {}
        arcs: list[tuple[int, int, float]] = []
        never = float("inf")

        def node(key: object) -> int:
            return nodes.setdefault(key, len(nodes) + 2)

        iterations, priced = self.table.pair.writer.iterations, set()
        slices = None if thin is None else thin.slices
        for number in self.needed:
            here, recipe = node(number), self.recipe(number, thin)
            scan_residuals = self.table.scan_residuals.get(number, ())
            if scan_residuals:
                arcs.append((source, here, self._kept_cost(number, price, thin)))
            if recipe is None:
                arcs.append((here, sink, never))
                continue
            run = node(run_of(recipe))
            arcs.append((here, run, never))
            if run not in priced:
                priced.add(run)
                cost = iterations * self.prices.seconds(recipe) + price * self.prices.new_bytes(
                    recipe, slices
                )
                arcs.append((run, sink, cost))
            for need in self.made_with(number):
                if new and thin is None and self.can_be_kept(need):
                    wanted = node(("wanted", need))
                    arcs += [
                        (run, wanted, never),
                        (wanted, node(need), self._kept_anew_cost(need, price)),
                    ]
                else:
                    arcs.append((run, node(need), never))
            for need in self.taken_with(number) if thin is None else ():
                taken = node(("taken", need))
                arcs += [(run, taken, never), (taken, node(need), self.taken_seconds(need))]
        if thin is None:
            for k, (seconds, numbers) in enumerate(self.prices.written_together):
                together = node(("together", k))
                arcs.append((source, together, iterations * seconds))
                arcs += [(together, node(number), never) for number in numbers if number in nodes]
        again = _source_side(arcs, source, sink) if arcs else set()
        made = {n for n in self.needed if n in nodes and nodes[n] in again}
        wanted = {n for n in self.needed if nodes.get(("wanted", n)) in again}
        return Gone(self.without(made), frozenset(wanted - made))

    def recipe(self, number: int, thin: Thin | None = None) -> Recipe | None:
        """How to recompute the value with this number; None if impossible or if it keeps no less.

        Args:
          number: of `needed`. thin: as for `gone`.
        """
        recipe = self.needed[number]
        if (
            recipe is not None
            and recipe.stacked
            and thin is None
            and number in self.table.scan_residuals
        ):
            return None  # another scan residual of it would be no smaller
        return recipe

    def can_be_kept(self, number: int) -> bool:
        """Whether a value of `needed` that is in no scan residual can get a new one."""
        if number in self.table.scan_residuals or number in self.table.pieces:
            return False
        recipe = self.needed[number]
        return number in self.table.given and (recipe is None or not recipe.stacked)

    def kept_anew(self, number: int) -> tuple[int, float]:
        """Cost of storing a value in a new scan residual: (bytes, seconds of a step)."""
        i, index = self.table.given[number]
        iterations, size = self.table.pair.writer.iterations, i.shape.at(index).bytes
        return iterations * size, iterations * self.prices.moved_seconds(size)

    def _kept_anew_cost(self, number: int, price: float) -> float:
        size, seconds = self.kept_anew(number)
        return price * size + seconds

    def _kept_cost(self, number: int, price: float, thin: Thin | None) -> float:
        """Seconds that it costs to keep a scan residual: its bytes, and to write and read it."""
        residual, iterations = (
            self.table.scan_residuals[number][0],
            self.table.pair.writer.iterations,
        )
        seconds = iterations * self.prices.saved_seconds(residual)
        if thin is None:
            return price * residual.bytes + seconds
        if number not in thin.residuals:
            return _HIGHEST_PRICE * residual.whole.bytes
        seconds += iterations * self.prices.put_seconds(residual)
        return price * residual.bytes * thin.every / iterations + seconds

    def made_with(self, number: int) -> list[int]:
        """Value numbers that must be recomputed too whenever `number` is.

        Scan residuals are kept or made again by their own choice, and their parts with them.
        """
        recipe = self.needed[number]
        pieces = self.table.pieces
        return [
            need
            for need in (() if recipe is None else recipe.needs)
            if need in self.needed
            and need not in self.table.scan_residuals
            and (need not in pieces or pieces[need].whole == number)
        ]

    def taken_with(self, number: int) -> list[int]:
        """Value numbers that must be sliced out of scan residuals whenever `number` is recomputed.

        Only those that an operator of its own slices out; a recipe may also slice for itself.
        """
        recipe = self.needed[number]
        if recipe is None or recipe.inside is not None or recipe.between or recipe.narrowed:
            return []  # these slice for themselves
        return [n for n in recipe.needs if n in self.needed and n in self.table.scan_residuals]

    def taken_seconds(self, number: int) -> float:
        """Seconds of a step to slice a scan residual by an operator of its own."""
        iterations = self.table.pair.writer.iterations
        return iterations * self.prices.put_seconds(self.table.scan_residuals[number][0])

    def without(self, again: Collection[int]) -> frozenset[int]:
        """Elements of the forward loop's state to drop if the values `again` are recomputed."""
        gone = {s.written for s in self.table.unread}
        for number, scan_residuals in self.table.scan_residuals.items():
            is_there = number not in self.needed
            kept = 0 if is_there or number in again else 1
            gone.update(s.written for s in scan_residuals[kept:])
        return frozenset(gone)

    def is_possible(self, gone: Gone) -> bool:
        """Whether no recomputed value must wait for a scan residual that is dropped."""
        table, seen = self.table, set[int]()
        waiting = [n for n in table.scan_residuals if not table.is_kept(n, gone.dropped)]
        while waiting:
            number = waiting.pop()
            if not all(table.is_kept(n, gone.dropped) for n in table.late.get(number, ())):
                return False
            recipe = self.needed.get(number)
            if number not in seen and recipe is not None:
                seen.add(number)
                waiting += [
                    n
                    for n in recipe.needs
                    if n not in gone.kept and not table.is_kept(n, gone.dropped)
                ]
        return True

    @property
    def free_seconds(self) -> float:
        """Predicted seconds of a step to write and read all scan residuals, duplicates included."""
        iterations = self.table.pair.writer.iterations
        every = [
            s for scan_residuals in self.table.scan_residuals.values() for s in scan_residuals
        ] + self.table.unread
        together = sum(seconds for seconds, _ in self.prices.written_together)
        return iterations * (sum(self.prices.saved_seconds(s) for s in every) + together)


def _source_side(arcs: Sequence[tuple[int, int, float]], source: int, sink: int) -> set[int]:
    """The nodes before a minimum cut through arcs (tail, head, seconds; infinite: never cut)."""
    tails, heads = (np.array([arc[k] for arc in arcs], np.int64) for k in (0, 1))
    costs = np.array([arc[2] for arc in arcs])
    finite = np.isfinite(costs)
    scale = _ALL / max(costs[finite].sum(), 1e-300)
    capacities = np.full(len(arcs), _NEVER, np.int64)
    capacities[finite] = np.rint(costs[finite] * scale)
    return set(min_cut(tails, heads, capacities, source, sink)[1].tolist())


def run_of(recipe: Recipe) -> tuple[Instruction, Node | None, bool]:
    """A key for the instruction that a recipe copies; recipes with equal keys need one copy."""
    node = recipe.node if recipe.inside is not None or recipe.stacked else None
    return recipe.owner, node, recipe.narrowed
