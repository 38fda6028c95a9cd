"""Checkpointed loops: the state is kept at every k-th iteration, and those in between run again.

The backward loop cannot recompute the state that the forward loop's iteration began with. A scan
residual of it has a slice for each of N iterations. Kept for every k-th iteration, and for all
iterations since the last of these, it takes N / k + k slices, about 2 sqrt(N) at best. In exchange
all iterations run once more. (Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory
cost", 2016.) `hlo.rewrite.checkpoints` says which slice belongs to which iteration.
"""

from __future__ import annotations

import dataclasses
import math

from hlo.rewrite.loop_edit import Checkpointed, Checkpoints, Residual, ValueRef
from olla_xla.errors import PlanMismatchError
from olla_xla.remat.loops.again import Again, New
from olla_xla.remat.loops.pairs import ScanPair
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.recipes import Recipe

_COUNTERS = (4, 5)  # s32 and s64: iterations before the first have negative numbers
_FEWEST_ITERATIONS = 6  # with fewer, N / k + k is no less than N


def can_be_kept(pair: ScanPair) -> bool:
    """Whether a pair of loops can keep its state at every k-th iteration and rerun the others: the
    reader goes back (`goes_back`), iterations are not few, and the counter's type is signed.
    """
    kind = pair.writer.start[pair.writer.counter].shape.element_type
    is_enough = pair.writer.iterations >= _FEWEST_ITERATIONS
    return pair.goes_back and kind in _COUNTERS and is_enough


@dataclasses.dataclass(frozen=True)
class Thin:
    """The iterations at which a loop's state is kept: every k-th one (a checkpointed loop).

    Attributes:
      iterations: of the loop. every: iterations from one that is kept to the next. residuals: value
        numbers of scan residuals of which the slices since the last of these are enough.
    """

    iterations: int
    every: int
    residuals: frozenset[int]

    @property
    def slices(self) -> int:
        """Slices kept of a state element: of N iterations each k-th, and k since: N / k + k."""
        return -(-self.iterations // self.every) + self.every


def least_every(pair: ScanPair, checkpoints: Checkpoints) -> int:
    """The distance in iterations between checkpoints, at least 2, that keeps the fewest bytes."""
    iterations, state = pair.writer.iterations, pair.writer.start
    few = sum(state[k.element].shape.bytes for k in checkpoints.kept)
    since = sum(state[k.element].shape.bytes for k in checkpoints.kept if k.held)
    body = pair.writer.body
    made = {i.name: i for i in body.computation.instructions}
    since += sum(made[r.value].shape.at(r.index).bytes for r in checkpoints.residuals)
    most = max(iterations // 2, 2)
    best = min(math.isqrt(iterations * few // since), most) if since else most
    tried = range(max(best // 2, 2), min(2 * best + 2, most) + 1)
    return min(tried, key=lambda k: -(-iterations // k) * few + k * since)


def residuals(table: RecipeTable, rerun: Rerun) -> set[int]:
    """Returns value numbers of scan residuals, not moved or divided, of which only slices for the
    iterations since the last kept state (checkpoint) are needed, as `rerun` can compute these
    again.
    """
    wholes = {piece.whole for piece in table.pieces.values()}
    return {
        number
        for number, scan_residuals in table.scan_residuals.items()
        if number not in wholes
        and not any(residual.moves for residual in scan_residuals)
        and rerun.can_make(number)
    }


class Rerun(Again):
    """Plans instructions that run iterations of the forward loop again from a kept state.

    Args:
      pair: the two loops, for which `can_be_kept` holds. new: gets the instructions.
      every: iterations from one that is kept to the next.
    """

    def __init__(self, pair: ScanPair, new: New, every: int) -> None:
        bare = dataclasses.replace(pair, scan_residuals=())
        super().__init__(bare, RecipeTable(bare, collectives=False, gone=None), {}, new)
        self._every = every
        self._begun: dict[int, str] = {}
        self._held: dict[int, str] = {}
        self._residuals: dict[int, str] = {}
        self._again = ""
        self._can: dict[int, bool] = {}
        self._depends: dict[int, bool] = {}

    def held(self, recipe: Recipe) -> ValueRef:
        """References the state element that a recipe is for, as it was when the iteration began;
        records it for `checkpoints`.
        """
        (element,) = recipe.node.index
        if element not in self._held:
            self._begin(element)
            self._held[element] = self._new.name(f"{self._named(element)}.held")
        return ValueRef(made=self._held[element])

    def can_make(self, number: int) -> bool:
        """Whether an iteration that runs again can compute value `number` and store it. It must
        depend on the state with which the iteration begins.
        """
        given = number in self._table.given
        return given and self._is_made(number) and self._begins(number)

    def _is_made(self, number: int) -> bool:
        if number not in self._can:
            self._can[number] = False  # what is made of itself is not
            there = self._table.is_iteration(number) or self._table.element(number) is not None
            recipe = None if there else self._table.recipe(number)
            made = (
                recipe is not None and not recipe.updated and all(map(self._is_made, recipe.needs))
            )
            self._can[number] = there or made
        return self._can[number]

    def _begins(self, number: int) -> bool:
        """Whether a value that a rerun can make depends on the state when the iteration begins."""
        if number not in self._depends:
            there = self._table.is_iteration(number) or self._table.element(number) is not None
            recipe = None if there else self._table.recipe(number)
            begins = recipe is not None and (recipe.stacked or any(map(self._begins, recipe.needs)))
            self._depends[number] = begins
        return self._depends[number]

    def residual(self, number: int) -> ValueRef:
        """References value `number` of an iteration that runs again; records it, as `held` does."""
        if number not in self._residuals:
            i, _ = self._table.given[number]
            self._residuals[number] = self._new.name(f"{i.name}.held")
        return ValueRef(made=self._residuals[number])

    def checkpoints(self) -> Checkpoints | None:
        """Returns the checkpoints that references of `held` and `residual` need; None if no state
        is needed. Raises PlanMismatchError if an iteration cannot be run again.
        """
        residuals = tuple(
            Residual(i.name, index, self._value(number), held)
            for number, held in self._residuals.items()
            for i, index in [self._table.given[number]]
        )
        following: dict[int, ValueRef] = {}
        while missing := [k for k in self._begun if k not in following]:  # one may need another
            for k in missing:
                end = self._body.root[(k,)].behind
                following[k] = self._value(self._body.number(end))
        kept = (
            Checkpointed(k, following[k], begun, self._held.get(k, ""))
            for k, begun in self._begun.items()
        )
        if not self._begun:
            return None
        return Checkpoints(self._every, tuple(kept), self._again, residuals)

    def _there(self, number: int) -> ValueRef | None:
        if self._table.is_iteration(number):
            self._again = self._again or self._new.name(f"{self._pair.reader.i.name}.again")
            return ValueRef(made=self._again)
        element = self._table.element(number)
        return None if element is None else self._invariant(element)

    def _stacked(self, recipe: Recipe) -> ValueRef:
        (element,) = recipe.node.index
        return ValueRef(made=self._begin(element))

    def _begin(self, element: int) -> str:
        """Names an element's value as a rerun iteration begins; records that it is needed."""
        if element not in self._begun:
            self._begun[element] = self._new.name(f"{self._named(element)}.begun")
        return self._begun[element]

    def _named(self, element: int) -> str:
        (parameter,) = self._body.computation.parameters
        return f"{parameter.name}.{element}"

    def _updated(self, number: int) -> ValueRef | None:
        recipe = self._table.recipe(number)
        if recipe is not None and recipe.updated:
            raise PlanMismatchError(
                "an iteration's final state is computed as part of a scan residual"
            )
        return None
