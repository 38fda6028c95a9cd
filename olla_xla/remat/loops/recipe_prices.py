"""What it costs to make values of a loop's iterations again, and what scan residuals cost."""

from __future__ import annotations

import functools

from hlo.backend import platform
from hlo.module import Instruction
from olla_xla.remat.cost.path import alone_seconds, host_waits, is_hosted
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import Work
from olla_xla.remat.loops.body import LoopBody
from olla_xla.remat.loops.nodes import Node
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.recipes import Recipe
from olla_xla.remat.loops.scan_residuals import ScanResidual, only_hands_on


class RecipePrices:
    """Predicted time and memory of recipes and of scan residuals, for one pair of loops.

    Args:
      table: of the recipes. cost: prices operators.
      beside: whether asynchronous operations are priced without their start.
    """

    def __init__(self, table: RecipeTable, cost: CostModel, *, beside: bool = False) -> None:
        self._table = table
        self._cost = cost
        self._beside = beside
        self._waits: dict[LoopBody, float] = {}
        self._iterations = table.pair.writer.iterations

    def seconds(self, recipe: Recipe) -> float:
        """Predicted seconds of an iteration to run a recipe's owner once more."""
        if recipe.stacked:
            return self._moving_seconds(3 * recipe.node.shape.bytes)  # read, and written twice
        if recipe.relaid is not None:
            return self._moving_seconds(2 * recipe.node.shape.bytes)
        if recipe.between:
            return self._cost.seconds(recipe.owner) / self._iterations
        if recipe.narrowed:
            residual = self._table.scan_residuals[recipe.needs[0]][0]
            wide = residual.whole.bytes // self._iterations
            return self._moving_seconds(wide + recipe.node.shape.bytes)
        if recipe.owner.opcode == "conditional":
            return alone_seconds(recipe.owner, self._cost)
        seconds = self._cost.copied_seconds(self._table.body.runs(recipe.owner))
        return seconds + (self._slots_seconds(recipe) if recipe.updated else 0.0)

    def _slots_seconds(self, recipe: Recipe) -> float:
        """Predicted time of the arrays of few slices into which a copy of an owner writes: to
        initialise them, where the target must, and to slice them for readers of the bare value.
        """
        body, inner = self._table.body, self._table.pair.reader.body
        seconds = 0.0
        for result in self._table.results(recipe.owner):
            end = result.behind
            if end.i.opcode != "dynamic-update-slice":
                continue
            size = end.operands[1].shape.bytes
            number = body.number(end.operands[1].behind)
            slices = self._table.slices(number, recipe.owner)
            if not platform(body.target).allocating_call:
                seconds += self._moving_seconds(slices * size)
            if slices == 1:
                continue
            reads = [r for s in self._table.scan_residuals.get(number, ()) for r in s.reads]
            if any(only_hands_on(read.node, inner.root_of(read.owner)) for read in reads):
                seconds += self._moving_seconds(2 * size)
        return seconds

    def _moving_seconds(self, moved: int) -> float:
        """Predicted time of an operator that only moves so many bytes."""
        return self._cost.device.seconds(Work(bytes=moved, kernels=1))

    def saved_seconds(self, residual: ScanResidual) -> float:
        """Predicted seconds of an iteration of both loops that dropping a scan residual saves."""
        owner = residual.update.owner
        # An owner of several results may run for the others (`written_together`).
        alone = len(self._table.results(owner)) == 1
        saved = self._exposed_seconds(self._table.body, owner) if alone else 0.0
        saved += sum(self._cost.seconds(i) for i in residual.moves) / self._iterations
        start = self._table.pair.writer.start[residual.written]
        if len(start.users) == 1:
            saved += self._cost.seconds(start) / self._iterations
        inner = self._table.pair.reader.body
        for read in residual.reads:
            if only_hands_on(read.node, inner.root_of(read.owner)):
                saved += self._exposed_seconds(inner, read.owner)
            else:
                saved += self._cost.nearer_seconds(inner.runs(read.owner), read.node.shape.bytes)
        return saved

    @functools.cached_property
    def written_together(self) -> list[tuple[float, frozenset[int]]]:
        """(seconds, value numbers) of instructions that only write scan residuals, several each.

        The seconds are of an iteration, and saved if all of these residuals are dropped. A second
        scan residual of the same slices is dropped anyway.
        """
        written: dict[Instruction, dict[Node, int | None]] = {}
        for residual in self._table.unread:
            written.setdefault(residual.update.owner, {})[residual.update] = None
        for number, (first, *others) in self._table.scan_residuals.items():
            written.setdefault(first.update.owner, {})[first.update] = number
            for residual in others:
                written.setdefault(residual.update.owner, {})[residual.update] = None
        found = []
        for owner, numbers in written.items():
            results = [n.behind for n in self._table.results(owner)]
            if len(results) > 1 and all(n in numbers for n in results):
                kept = frozenset(n for n in numbers.values() if n is not None)
                found.append((self._exposed_seconds(self._table.body, owner), kept))
        return found

    def _exposed_seconds(self, body: LoopBody, owner: Instruction) -> float:
        """Predicted time of what an instruction runs; with `beside`, less what is hidden.

        Of copies to and from the host that is what the body waits for now, of other asynchronous
        ones all but the start (remat.cost.path).
        """
        seconds = self._cost.seconds(body.runs(owner))
        if not self._beside or owner.opcode != "async-start":
            return seconds
        if is_hosted(owner):
            if body not in self._waits:
                self._waits[body] = host_waits(body.computation, self._cost)
            return seconds * self._waits[body]
        return seconds - min(self._cost.device.start_seconds, seconds)

    def moved_seconds(self, size: int) -> float:
        """Predicted seconds to write and to read a slice of `size` bytes by two operators."""
        return 2 * self._moving_seconds(2 * size)

    def put_seconds(self, residual: ScanResidual) -> float:
        """Predicted seconds to write one slice of a scan residual, as an operator by itself."""
        return self._moving_seconds(2 * residual.whole.bytes // self._iterations)

    def new_bytes(self, recipe: Recipe, slices: int | None = None) -> int:
        """Bytes of the new scan residual that a recipe stores for its value; 0 if it stores none.

        Args:
          recipe: for a value. slices: that it has; None: one for each iteration.
        """
        count = self._iterations if slices is None else slices
        return count * recipe.node.shape.bytes if recipe.stacked else 0
