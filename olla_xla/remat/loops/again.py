"""Recomputes values of an iteration of the forward loop in the backward loop's body.

LLVM rounds a product and a sum once or twice, depending on all of the code that it compiles. XLA
passes an array to a fusion's code only once. So a copy of a fusion is given as many different
arrays as the original, even if some hold the same values (`ReadArrays`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Hashable

from hlo.backend import platform
from hlo.module import Instruction, Module
from hlo.rewrite.fused_body import Part, stack_shape
from hlo.rewrite.loop_edit import (
    Added,
    FinalElement,
    NewInstruction,
    NewResidual,
    Overwritten,
    ValueRef,
)
from hlo.shapes import Shape, ShapeIndex
from olla_xla.errors import PlanMismatchError
from olla_xla.remat.loops import restored
from olla_xla.remat.loops.nodes import Node
from olla_xla.remat.loops.pairs import ScanPair
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.recipes import ConcatOperand, Recipe
from olla_xla.remat.loops.scan_residuals import ScanResidual
from olla_xla.remat.purity import pure

_LARGE = 1 << 20
"""Bytes of an array that is made anew in each iteration sooner than held as long as a loop runs."""


class New:
    """Collects new instructions of the backward loop's body (`made`), new elements of its state
    (`added`, as in `LoopEdit`) and unused names while a pair of loops of `module` is changed.
    """

    def __init__(self, module: Module) -> None:
        self._names = {i.name for c in module.computations for i in c.instructions}
        self.made: list[NewInstruction] = []
        self.added: list[Added] = []

    def name(self, name: str) -> str:
        """Takes an unused name for a new instruction: `name`, with a number if it is taken."""
        for k in itertools.count(1):
            unused = name if k == 1 else f"{name}.{k}"
            if unused not in self._names:
                self._names.add(unused)
                return unused
        raise AssertionError


class Again:
    """Plans the instructions with which the backward loop recomputes values of the forward loop.
    Values are found by value number; a ValueRef says where the backward loop has one.

    Args:
      pair: the two loops. table: the recipes for the forward loop's values.
      kept: value number -> scan residual that stays and holds it.
      new: gets the instructions. stored: value numbers that get a new scan residual.
    """

    def __init__(
        self,
        pair: ScanPair,
        table: RecipeTable,
        kept: dict[int, ScanResidual],
        new: New,
        stored: frozenset[int] = frozenset(),
    ) -> None:
        self._pair = pair
        self._table = table
        self._body = table.body
        self._kept = kept
        self._new = new
        self._stored = stored
        self._values: dict[int, ValueRef] = {}
        self._runs: dict[tuple[Instruction, Node | None], str] = {}
        self._updates: dict[Instruction, str] = {}
        self._making: set[int] = set()
        self._undone: dict[int, tuple[ValueRef, ValueRef]] = {}
        """Element of the forward loop's state -> what it is after its update, and before."""
        self._made_here: dict[Instruction, str] = {}
        """Instruction beside the loops -> name of its copy."""

    def _updated(self, number: int) -> ValueRef | None:
        """Returns where the backward loop has value `number` in a copy of the fusion that computes
        it and writes slices; None if no such fusion is copied for it. The copy, which is added at
        its first use, writes into arrays of one or a few slices instead.
        """
        if number in self._kept or number in self._stored or number in self._table.pieces:
            return None
        if self._table.is_there(number):
            return None
        recipe = self._table.recipe(number)
        if recipe is None or not recipe.updated:
            return None
        results = self._leaves(recipe)
        puts = {k: n for k, n in results.items() if n.i.opcode == "dynamic-update-slice"}
        if recipe.owner not in self._updates:
            name = self._new.name(f"{recipe.owner.name}.again")
            slots = tuple(
                (k, _axis(put), self._slices(put))
                for k, put in zip(recipe.updated, puts.values(), strict=True)
            )
            self._new.made.append(self._copied(name, recipe, slots))
            self._updates[recipe.owner] = name
        name = self._updates[recipe.owner]
        for index, update in puts.items():
            if update.operands[1].behind is recipe.node:
                ref = ValueRef(made=name, index=index)
                if self._slices(update) == 1:
                    return ref
                return dataclasses.replace(ref, whole=update.shape.key, axis=_axis(update))
        return ValueRef(made=name, index=self._leaf(recipe))

    def _slices(self, update: Node) -> int:
        """Counts the slices of the array into which a copy of a fusion writes by `update`, one of
        its dynamic-update-slices.
        """
        return self._table.slices(self._body.number(update.operands[1].behind), update.owner)

    def _copied(
        self, name: str, recipe: Recipe, slots: tuple[tuple[int, int, int], ...] = ()
    ) -> NewInstruction:
        """Describes a copy, named `name`, of the instruction that a recipe runs again, without its
        part in a transfer between devices; adds what recomputes its operands. `slots`: (operand,
        dimension, number of slices) of each operand that it writes a slice into.
        """
        owner, part = recipe.owner, recipe.part
        left_out = set(recipe.updated)
        if part is not None:
            left_out.update(k for k in range(len(owner.operands)) if k not in part.operands)
        operands = self._operands(owner, left_out)
        results = () if part is None else part.results
        return NewInstruction(name, owner.name, "", operands, slots=slots, results=results)

    def _leaves(self, recipe: Recipe) -> dict[ShapeIndex, Node]:
        """Maps the tuple indices of arrays in the result of a copy of the instruction that a recipe
        runs again to the nodes of the original's result.
        """
        leaves = self._body.leaves(self._body.runs(recipe.owner))
        if recipe.part is None:
            return leaves
        nodes = [leaves[k,] for k in recipe.part.results]
        return {(): nodes[0]} if len(nodes) == 1 else {(k,): n for k, n in enumerate(nodes)}

    def _operands(
        self, owner: Instruction, but: Collection[int] = ()
    ) -> tuple[tuple[int, ValueRef], ...]:
        """Returns (operand number, where the backward loop has its value) for a copy of `owner`,
        not for the numbers in `but`. Adds what recomputes these values.
        """
        arrays = ReadArrays(self._value)
        nodes = (node for o in owner.operands for node in self._body.leaves(o).values())
        leaves = [(k, node) for k, node in enumerate(nodes) if k not in but]
        return tuple(
            (k, arrays.given(self._array(leaf), self._body.number(leaf.behind)))
            for k, leaf in leaves
        )

    def _inside(self, number: int) -> ValueRef:
        """Where a fusion in the backward loop reads the value `number`: in a kept scan residual, of
        which it slices the value or a part, or the device's copy of it; else as for `_value`.
        """
        residual = self._kept.get(number)
        if residual is not None:
            if residual.whole.is_host:
                return _fetched(residual)
            return ValueRef(element=residual.read, whole=residual.whole.key, axis=residual.axis)
        piece = self._table.pieces.get(number)
        if piece is not None and piece.whole in self._kept:
            return self._part(piece)
        return self._value(number)

    def _part(self, piece: ConcatOperand) -> ValueRef:
        """Returns where a fusion reads a value that a scan residual holds in each slice as `piece`,
        an operand of a concatenation.
        """
        (dimension,) = piece.made.i.dimensions
        part = Part(piece.made.shape.key, piece.node.shape.key, dimension, piece.start)
        return dataclasses.replace(self._inside(piece.whole), part=part)

    def _value(self, number: int) -> ValueRef:
        """Returns where the backward loop has the value `number`; adds what recomputes it. Raises
        PlanMismatchError if nothing can.
        """
        if number not in self._values:
            if number in self._making:
                raise PlanMismatchError("recomputing a loop's value would need the value itself")
            self._making.add(number)
            self._values[number] = self._find(number)
        return self._values[number]

    def _there(self, number: int) -> ValueRef | None:
        """Returns where the backward loop has a value with no recipe run, if only in a new element;
        or None.
        """
        if self._table.is_iteration(number):
            return ValueRef(iteration=True)
        if (element := self._table.element(number)) is not None:
            return self._invariant(element)
        if (own := self._table.own.get(number)) is not None:
            return ValueRef(own=own.name)
        return None

    def _stacked(self, recipe: Recipe) -> ValueRef:
        """Returns the element of the forward loop's state that the recipe is for, as it was when
        the iteration began: a slice of a scan residual, which is added for it.
        """
        return self._slice_of_new(recipe.node.i, recipe.node.shape, recipe.node.index[0])

    def _slice_of_new(self, i: Instruction, shape: Shape, stored: int | NewResidual) -> ValueRef:
        """Adds a new scan residual and an instruction that slices it; returns that slice, of this
        shape. `stored` is an element of the forward loop's state, or a result of `i`, in its body.
        """
        whole = stack_shape(shape.key, self._pair.writer.iterations)
        return self._slice(i, self._added(stored, whole))

    def _slice(self, i: Instruction, given: ValueRef) -> ValueRef:
        """Adds an instruction that only slices `given`, named after `i`; returns its result."""
        name = self._new.name(f"{i.name}.slice")
        return self._made(NewInstruction(name, "", operands=((0, given),)))

    def _made(self, new: NewInstruction) -> ValueRef:
        """Adds a new instruction to the backward loop's body; returns its result."""
        self._new.made.append(new)
        return ValueRef(made=new.name)

    def _find(self, number: int) -> ValueRef:
        if number in self._kept:
            if self._kept[number].whole.is_host:
                return _fetched(self._kept[number])
            return self._slice(self._kept[number].update.owner, self._inside(number))
        piece = self._table.pieces.get(number)
        if piece is not None and piece.whole in self._kept:
            return self._slice(self._kept[piece.whole].update.owner, self._part(piece))
        if (there := self._there(number)) is not None:
            return there
        if number in self._stored:
            i, index = self._table.given[number]
            return self._slice_of_new(i, i.shape.at(index), NewResidual(i.name, index))
        recipe = self._table.recipe(number)
        if recipe is None:
            raise PlanMismatchError("a scan residual that is to be dropped cannot be recomputed")
        if recipe.stacked:
            return self._stacked(recipe)
        if recipe.restored is not None:
            return self._restored(recipe, recipe.restored)
        if recipe.relaid is not None:
            name = self._new.name(f"{recipe.owner.name}.relaid")
            given, layout = ((0, ValueRef(own=recipe.relaid.name)),), recipe.node.shape.key
            return self._made(NewInstruction(name, "", operands=given, layout=layout))
        if recipe.narrowed:
            name = self._new.name(f"{recipe.owner.name}.narrow")
            given, kind = ((0, self._inside(recipe.needs[0])),), recipe.node.shape.element_type
            return self._made(NewInstruction(name, "", operands=given, element_type=kind))
        if recipe.between:
            name = self._new.name(f"{recipe.owner.name}.slice")
            given, axes = ((0, self._value(recipe.needs[0])),), recipe.between
            original = recipe.owner.name
            return self._made(NewInstruction(name, original, operands=given, slice_axes=axes))
        if (updated := self._updated(number)) is not None:
            return self._slice(recipe.owner, updated) if updated.whole else updated
        return self._run(recipe)

    def _restored(self, recipe: Recipe, array: int) -> ValueRef:
        """Returns element `array` of the forward loop's state as it was after an iteration
        overwrote a part of it (`recipe.is_after`), or before. Adds what undoes the iteration's
        update.
        """
        if array not in self._undone:
            owner, update = recipe.owner.name, recipe.node.i.name
            whole, part, *_ = recipe.node.operands
            last = self._added(FinalElement(array))
            slices = stack_shape(part.shape.key, self._pair.writer.iterations)
            given = [last, self._added(Overwritten(array, owner, update), slices)]
            given += [self._index_of(recipe, array, k) for k in restored.moving(recipe.node)]
            name = self._new.name(f"{whole.i.name}.restored")
            undo = NewInstruction(name, "", operands=tuple(enumerate(given)), restores=True)
            self._undone[array] = last, self._made(undo)
        return self._undone[array][not recipe.is_after]

    def _index_of(self, recipe: Recipe, array: int, k: int) -> ValueRef:
        """Returns an iteration's index of an update along dimension `k`, recomputed or newly
        stored.
        """
        node = recipe.node.operands[2 + k].behind
        number = self._body.number(node)
        if number in recipe.needs:
            return self._inside(number)
        made = Overwritten(array, recipe.owner.name, recipe.node.i.name, k)
        return self._added(made, stack_shape(node.shape.key, self._pair.writer.iterations))

    def _added(self, new: Added, whole: bytes = b"") -> ValueRef:
        """Adds an element to the backward loop's state. Returns a reference to it, or to the slice
        of it for the iteration if `whole`, the shape of all slices, is given.
        """
        self._new.added.append(new)
        element = len(self._pair.reader.start) + len(self._new.added) - 1
        return ValueRef(element=element, whole=whole)

    def _run(self, recipe: Recipe) -> ValueRef:
        """References what a recipe recomputes in a copy of its instruction, which is added once."""
        run = recipe.owner, recipe.node if recipe.inside is not None else None
        if run not in self._runs:
            if recipe.inside is None:
                made = self._copied(self._new.name(f"{recipe.owner.name}.again"), recipe)
            else:
                made = self._opened(recipe.owner, recipe.node, recipe.inside)
            self._new.made.append(made)
            self._runs[run] = made.name
        return ValueRef(made=self._runs[run], index=self._leaf(recipe))

    def _opened(self, owner: Instruction, node: Node, inside: dict[Node, None]) -> NewInstruction:
        """Describes a copy of a part of the fusion `owner`, with root `node`, that takes the values
        of the nodes `inside` as operands, instead of computing them; adds what recomputes these.
        """
        given, arrays = [], ReadArrays(self._value)
        arrays.whole = self._inside
        for i in self._body.fusions[owner].called[0].instructions:
            leaf = self._body.at.get((i, ()))
            if leaf in inside:
                source = self._sources(leaf, owner)
                given.append((i.name, arrays.given(source, self._body.number(leaf.behind))))
        return NewInstruction(
            self._new.name(f"{owner.name}.again"), owner.name, node.i.name, tuple(given)
        )

    def _array(self, node: Node) -> Hashable:
        """Identifies the array in which a value of the forward loop's body lies: equal for the same
        array. Elements of the state that no iteration changes are one array if they begin as one.
        """
        node, writer = uncast(node), self._pair.writer
        if node.i.opcode != "parameter" or node.index[0] not in writer.fixed:
            return node
        return writer.start[node.index[0]].behind("bitcast")

    def _sources(self, node: Node, owner: Instruction) -> Hashable:
        """Keys (`_array`) of the arrays outside a fusion of which a node inside it is made."""
        arrays, waiting = set(), [node]
        while waiting:
            k = uncast(waiting.pop())
            if k.owner is owner and k.i.opcode != "parameter":
                waiting += k.operands
            else:
                arrays.add(self._array(k))
        return frozenset(arrays)

    def _leaf(self, recipe: Recipe) -> ShapeIndex:
        """Tuple index of the value that a recipe recomputes in a copy of its instruction."""
        leaves = self._leaves(recipe)
        if () in leaves:
            return ()
        return next(k for k, leaf in leaves.items() if leaf.behind is recipe.node.behind)

    def _invariant(self, k: int) -> ValueRef:
        """Returns where the backward loop has the forward loop's state element `k`, which no
        iteration changes. If its state has none, it is added; or the value is made in each
        iteration, where it is a large one that is made of constants alone.
        """
        writer, reader = self._pair.writer, self._pair.reader
        start = writer.start[k]
        for r in sorted(reader.fixed):
            if reader.start[r] is start:
                return ValueRef(element=r)
        if self._is_made_of_nothing(start):
            if start not in self._made_here:
                name = self._made_here[start] = self._new.name(f"{start.name}.again")
                self._made(NewInstruction(name, start.name, beside=True))
            return ValueRef(made=self._made_here[start])
        if start.name not in self._new.added:
            self._new.added.append(start.name)
        return ValueRef(element=len(reader.start) + self._new.added.index(start.name))

    def _is_made_of_nothing(self, start: Instruction) -> bool:
        """Whether a large initial array is made by a fusion of constants alone, as of a mask's
        least value, and the loop may make it instead: only on a CPU. On a GPU one more kernel in
        each iteration would take more time than it is worth.
        """
        here = platform(self._body.target)
        large = start.opcode == "fusion" and start.shape.is_array and start.shape.bytes >= _LARGE
        constants = all(o.opcode == "constant" for o in start.operands)
        whole = here.keeps_code and here.emits_any_fusion
        return whole and large and constants and pure(start)


class ReadArrays:
    """Chooses the operands of a copied fusion, as many different arrays as its original reads.
    `value`: value number -> where the value is found. `whole`: value number -> the array that the
    fusion slices the value from itself; `value` unless it is set.
    """

    def __init__(self, value: Callable[[int], ValueRef]) -> None:
        self._value = value
        self.whole = value
        self._used: dict[ValueRef, Hashable] = {}

    def keep(self, given: ValueRef, source: Hashable) -> None:
        """Records that a copied fusion reads `given` where its original reads array `source`."""
        self._used[given] = source

    def given(self, source: Hashable, number: int) -> ValueRef:
        """Chooses what the copy reads instead of the array `source`, and records it: the array of
        the value `number`, or a copy of that if it replaces another array already.
        """
        given = self.whole(number)
        if self._is_free(_array(given), source):
            return given
        given = self._value(number)
        while not self._is_free(given, source):
            given = dataclasses.replace(given, copy=given.copy + 1)
        return given

    def _is_free(self, array: ValueRef, source: Hashable) -> bool:
        """Makes `array` stand for `source` in the copy; False if it stands for another one."""
        return self._used.setdefault(array, source) == source


def _axis(update: Node) -> int:
    """The first dimension along which a dynamic-update-slice writes a part; 0 if it writes all."""
    return next(iter(restored.moving(update)), 0)


def _array(given: ValueRef) -> ValueRef:
    """The whole array in which a value lies, without slicing."""
    return dataclasses.replace(given, whole=b"", axis=0, part=None)


def uncast(node: Node) -> Node:
    """The node that a chain of bitcasts starts from; `node` itself if it is no bitcast."""
    while node.i.opcode == "bitcast":
        (node,) = node.operands
    return node


def _fetched(residual: ScanResidual) -> ValueRef:
    """The device's copy of a slice that is in host memory; PlanMismatchError if there is none."""
    users = (user for read in residual.reads for user in read.owner.users)
    done = next((user for user in users if user.opcode == "async-done"), None)
    if done is None:
        raise PlanMismatchError("no copy to the device reads a scan residual in host memory")
    return ValueRef(own=done.name)
