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
import functools
from collections.abc import Collection, Sequence

import numpy as np

from hlo.backend import platform
from hlo.module import Instruction
from olla_xla.memory.max_flow import min_cut
from olla_xla.remat.cost.path import alone_seconds, host_waits, is_hosted
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.cost.work import Work
from olla_xla.remat.loops.body import LoopBody
from olla_xla.remat.loops.checkpoints import Thin
from olla_xla.remat.loops.nodes import Node
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.recipes import Recipe
from olla_xla.remat.loops.restored import moving
from olla_xla.remat.loops.scan_residuals import ScanResidual, only_hands_on
from olla_xla.remat.purity import CONTROL

_HIGHEST_PRICE = 1.0
"""Seconds that a byte of a scan residual is worth that should go wherever it can."""

_ALL, _NEVER = 1 << 50, 1 << 60
"""Capacities: of all finite arcs together, and of an arc that must not be cut."""


@dataclasses.dataclass(frozen=True)
class Gone:
    """Which scan residuals a pair of loops drops (`dropped`: elements of the forward loop's state),
    and which it gets instead (`kept`: value numbers).
    """

    dropped: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class SolvedChoices:
    """What an integer program chose for pairs of loops, and its bound.

    Attributes:
      gone: of each pair, what it drops and adds.
      bytes: of the scan residuals that stay, new ones too.
      bound: no choice from these recipes within the limit keeps fewer bytes; 0 if time was minimal.
      seconds: that it adds, as the cost model has them operator by operator.
    """

    gone: tuple[Gone, ...]
    bytes: int
    bound: int
    seconds: float


class Choice:
    """Chooses which scan residuals of one pair of loops to drop, by a price for memory.

    Attributes:
      table: of the recipes for its values. prices: of these. needed: value number -> its recipe or
        None, for the values of scan residuals and all values that they could be made of.
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
        """Returns the scan residuals to drop and to add at a price of memory, by a minimum cut.

        Args:
          price: seconds that a byte is worth. At 0 nothing is dropped that would take longer.
          thin: how the forward loop is checkpointed (states of some iterations are kept), or None.
            With it, scan residuals not in `thin.residuals` are dropped where possible.
          new: whether intermediate values may get scan residuals of their own; ignored with `thin`.

        Returns:
          Elements of the forward loop's state to drop (see `without`), and value numbers to keep.
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
        """Returns how to recompute value `number`, one of `needed`; None if impossible or if that
        saves no bytes. `thin`: how the forward loop is checkpointed, or None (see `gone`).
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
        """Whether a value of `needed` can get a new scan residual: not if one holds it already, if
        only as a part, nor if it is an element of the forward loop's state.
        """
        if number in self.table.scan_residuals or number in self.table.pieces:
            return False
        recipe = self.needed[number]
        return number in self.table.given and (recipe is None or not recipe.stacked)

    def kept_anew(self, number: int) -> tuple[int, float]:
        """Returns the cost of a new scan residual, written and read: (bytes, seconds of a step)."""
        i, index = self.table.given[number]
        iterations, size = self.table.pair.writer.iterations, i.shape.at(index).bytes
        return iterations * size, iterations * 2 * self.prices.moving_seconds(2 * size)

    def _kept_anew_cost(self, number: int, price: float) -> float:
        size, seconds = self.kept_anew(number)
        return price * size + seconds

    def _kept_cost(self, number: int, price: float, thin: Thin | None) -> float:
        """Predicts the seconds that keeping a scan residual costs: its bytes at `price` seconds
        each, and the time to write and read it. With `thin`, a checkpointed loop, only some of its
        slices are kept, or it costs so much that it is dropped.
        """
        residual, count = self.table.scan_residuals[number][0], self.table.pair.writer.iterations
        seconds = count * self.prices.saved_seconds(residual)
        if thin is None:
            return price * residual.bytes + seconds
        if number not in thin.residuals:
            return _HIGHEST_PRICE * residual.whole.bytes
        seconds += count * self.prices.put_seconds(residual)
        return price * residual.bytes * thin.every / count + seconds

    def made_with(self, number: int) -> list[int]:
        """Returns the value numbers that recomputing `number` reads and that are recomputed, or
        stored, for it. Not among them are those of scan residuals, and parts of these (except of
        `number` itself): whether to keep these is chosen separately.
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
        """Returns the value numbers whose slices of scan residuals recomputing `number` reads, each
        by an operator of its own; none where the operator that is run again slices for itself.
        """
        recipe = self.needed[number]
        if recipe is None or recipe.inside is not None or recipe.between or recipe.narrowed:
            return []  # these slice for themselves
        return [n for n in recipe.needs if n in self.needed and n in self.table.scan_residuals]

    def taken_seconds(self, number: int) -> float:
        """Predicts the seconds of a step to slice a scan residual by an operator of its own."""
        iterations = self.table.pair.writer.iterations
        return iterations * self.prices.put_seconds(self.table.scan_residuals[number][0])

    def without(self, again: Collection[int]) -> frozenset[int]:
        """Returns the scan residuals, by element of the forward loop's state, that are not needed
        if values `again` are rerun: duplicates and those that nothing reads, too.
        """
        gone = {s.written for s in self.table.unread}
        for number, scan_residuals in self.table.scan_residuals.items():
            is_there = number not in self.needed
            kept = 0 if is_there or number in again else 1
            gone.update(s.written for s in scan_residuals[kept:])
        return frozenset(gone)

    def is_possible(self, gone: Gone) -> bool:
        """Whether `gone` keeps all scan residuals that must be there, by `RecipeTable.late`, for
        the values of which others are recomputed.
        """
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
    is_node = recipe.inside is not None or recipe.stacked or recipe.restored is not None
    node = recipe.node if is_node else None
    return recipe.owner, node, recipe.narrowed


class RecipePrices:
    """Predicted time and memory of recipes and of scan residuals, for one pair of loops.

    Args:
      table: of the recipes. cost: prices operators.
      beside: whether asynchronous operations cost only the time that other work does not hide.
    """

    def __init__(self, table: RecipeTable, cost: CostModel, *, beside: bool = False) -> None:
        self._table = table
        self._cost = cost
        self._beside = beside
        self._waits: dict[LoopBody, float] = {}
        self._iterations = table.pair.writer.iterations

    def seconds(self, recipe: Recipe) -> float:
        """Predicts the seconds to make a value by a recipe in an iteration of the backward loop."""
        if recipe.stacked:
            return self.moving_seconds(3 * recipe.node.shape.bytes)  # read, and written twice
        if recipe.restored is not None:
            _, part, *_ = recipe.node.operands  # kept, and put back
            own = len(moving(recipe.node)) - len(recipe.needs)  # indices that are kept
            return 2 * self.moving_seconds(2 * part.shape.bytes) + own * self.moving_seconds(0)
        if recipe.relaid is not None:
            return self.moving_seconds(2 * recipe.node.shape.bytes)
        if recipe.between:
            return self._cost.seconds(recipe.owner) / self._iterations
        if recipe.narrowed:
            residual = self._table.scan_residuals[recipe.needs[0]][0]
            wide = residual.whole.bytes // self._iterations
            return self.moving_seconds(wide + recipe.node.shape.bytes)
        if recipe.owner.opcode in CONTROL:
            return alone_seconds(recipe.owner, self._cost)
        seconds = self._cost.copied_seconds(self._table.body.runs(recipe.owner))
        return seconds + (self._slots_seconds(recipe) if recipe.updated else 0.0)

    def _slots_seconds(self, recipe: Recipe) -> float:
        """Predicts the seconds in each iteration that a recipe's fusion, run again, spends on the
        arrays into which it writes instead of scan residuals: to initialise them, where the target
        must, and to slice them for instructions that read nothing but the slice.
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
                seconds += self.moving_seconds(slices * size)
            if slices == 1:
                continue
            reads = [r for s in self._table.scan_residuals.get(number, ()) for r in s.reads]
            if any(only_hands_on(read, inner.root_of(read.owner)) for read in reads):
                seconds += self.moving_seconds(2 * size)
        return seconds

    def moving_seconds(self, moved: int) -> float:
        """Predicts the time of an operator that only moves so many bytes."""
        return self._cost.device.seconds(Work(bytes=moved, kernels=1))

    def saved_seconds(self, residual: ScanResidual) -> float:
        """Predicts the seconds that dropping a residual saves, in an iteration of both loops."""
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
            if only_hands_on(read, inner.root_of(read.owner)):
                saved += self._exposed_seconds(inner, read.owner)
            else:
                saved += self._cost.nearer_seconds(inner.runs(read.owner), read.shape.bytes)
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
        groups = []
        for owner, numbers in written.items():
            results = [n.behind for n in self._table.results(owner)]
            if len(results) > 1 and all(n in numbers for n in results):
                kept = frozenset(n for n in numbers.values() if n is not None)
                groups.append((self._exposed_seconds(self._table.body, owner), kept))
        return groups

    def _exposed_seconds(self, body: LoopBody, owner: Instruction) -> float:
        """Predicts the seconds of what an instruction runs; with `beside`, less what other work
        hides. Of copies to and from the host that leaves what the body waits for now, of other
        asynchronous operations all but the start (remat.cost.path).
        """
        seconds = self._cost.seconds(body.runs(owner))
        if not self._beside or owner.opcode != "async-start":
            return seconds
        if is_hosted(owner):
            if body not in self._waits:
                self._waits[body] = host_waits(body.computation, self._cost)
            return seconds * self._waits[body]
        return seconds - min(self._cost.device.start_seconds, seconds)

    def put_seconds(self, residual: ScanResidual) -> float:
        """Predicts the seconds to write one slice of a scan residual, as an operator by itself."""
        return self.moving_seconds(2 * residual.whole.bytes // self._iterations)

    def new_bytes(self, recipe: Recipe, slices: int | None = None) -> int:
        """Returns the bytes of the new scan residual that a recipe stores for its value, of so many
        `slices` (None: one for each iteration); 0 if it stores none. Of a restored array: those of
        the parts that iterations overwrite, and of the array itself.
        """
        if recipe.restored is not None:
            whole, part, *_ = recipe.node.operands
            return whole.shape.bytes + self._iterations * part.shape.bytes
        count = self._iterations if slices is None else slices
        return count * recipe.node.shape.bytes if recipe.stacked else 0
