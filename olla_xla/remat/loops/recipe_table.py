"""How values of the forward loop's iteration could be made in the backward loop."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence

from hlo.async_collective_fusion import OwnPart, own_part
from hlo.backend import platform
from hlo.cpu_code import CodeGenerator
from hlo.exchange import STARTS
from hlo.module import Instruction
from hlo.rewrite.loop_edit import SLOTS
from hlo.rounding import may_depend_on_memory
from hlo.shapes import ShapeIndex
from olla_xla.remat.loops.body import Affine, LoopBody, StateRelation
from olla_xla.remat.loops.nodes import PASSING, Node, widens
from olla_xla.remat.loops.pairs import ScanPair
from olla_xla.remat.loops.recipes import ConcatOperand, Recipe
from olla_xla.remat.loops.restored import overwritten, restoring
from olla_xla.remat.loops.scan_residuals import (
    NotAResidual,
    ScanResidual,
    can_be_stored,
    only_hands_on,
    written_slice,
)
from olla_xla.remat.loops.waits import Waits
from olla_xla.remat.purity import CONTROL, control_repeats, pure, pure_but_for_transfer

_NO_RESULTS = frozenset("async-start async-update bitcast constant iota parameter tuple".split())
"""Opcodes of what the backward loop does not make by itself, or for nothing."""


class RecipeTable:
    """How to recompute each value that a pair of loops keeps in scan residuals (its recipe). A
    collective may run again in the backward loop: all devices run one program, and both loops have
    constant trip counts. So all devices reach it in the same iteration, in the same order.

    Args:
      pair: the two loops. collectives: whether they may run again. No other recipe depends on it.
      gone: elements of the forward loop's state, scan residuals that are not kept; None for all.
        With None nothing is restored (`restores`), as where iterations run again.

    Attributes (a number is a value number of the forward loop's body):
      scan_residuals: number -> the scan residuals that hold its value; of these, the first is kept.
      pieces: number -> where a scan residual holds its value as a part, one place each.
      unread: scan residuals that nothing reads.
      own: number -> what the backward loop's body has itself at the same iteration, such as
        weights that it gathers of other devices, or converts.
      restores: number of an array before or after a part of it is overwritten -> (element of the
        state, the update, whether after), if the backward loop can undo that.
      late: number in `own` -> numbers of the scan residuals' values that must be kept for it: it
        waits for their slices, as one collective gathers both.
    """

    def __init__(
        self, pair: ScanPair, *, collectives: bool, gone: Collection[int] | None = ()
    ) -> None:
        self.pair = pair
        self.body = pair.writer.body
        self.scan_residuals: dict[int, list[ScanResidual]] = {}
        self.pieces: dict[int, ConcatOperand] = {}
        self.unread = [s for s in pair.scan_residuals if not s.reads]
        self._collectives = collectives
        self.restores = overwritten(pair) if gone is not None else {}
        self._values = dict(self._made_values())
        self._recipes: dict[int, Recipe | None] = {}
        self._settled: dict[Instruction, bool] = {}
        """Whether nothing else than its operators decides how an instruction rounds."""
        self._written: dict[int, ScanResidual] = {}
        """Number of what an iteration writes, before any moves -> a scan residual of it."""
        for residual in pair.scan_residuals:
            if residual not in self.unread:
                self.scan_residuals.setdefault(self.number(residual), []).append(residual)
        self._handed_on: dict[int, Instruction] = {}
        """`LoopBody.handed_on` of a collective -> an instruction of the backward loop with it."""
        self.late: dict[int, frozenset[int]] = {}
        self.own = self._made_by_reader(gone)
        emits_any = platform(self.body.target).emits_any_fusion
        written = list(self._written.items()) if emits_any else []
        for number, residual in written:
            self._divide(number, residual)
        for number, residual in written:
            self._narrow(number, residual)

    def is_kept(self, number: int, gone: Collection[int]) -> bool:
        """Whether a scan residual other than those dropped (`gone`) holds the value `number`."""
        return any(s.written not in gone for s in self.scan_residuals.get(number, ()))

    def _made_by_reader(self, gone: Collection[int] | None) -> dict[int, Instruction]:
        """Maps value numbers of the forward body to an instruction of the backward body with that
        value. It is made of loop invariants, of the iteration, and of slices of scan residuals.
        What is made of a scan residual's value has a higher number, and is not needed to make that
        value again. What waits for a scan residual that it is not made of, as behind a barrier,
        would come too late and is left out; where one collective gathers both, only if that
        residual is dropped (`gone`). Sets `late`, and notes collectives.
        """
        pair = self.pair
        writer, reader = pair.writer, pair.reader
        begins = {writer.start[w]: w for w in sorted(writer.fixed, reverse=True)}
        elements = {r: begins[reader.start[r]] for r in reader.fixed if reader.start[r] in begins}
        slices = {
            read.i: number
            for number, scan_residuals in self.scan_residuals.items()
            for residual in scan_residuals
            for read in residual.reads
        }
        sign = pair.iteration.factor
        iteration = Affine((writer.counter,), sign, -sign * pair.iteration.offset)
        terms = StateRelation(writer.body, elements, reader.counter, iteration, slices)
        own = reader.body
        together = platform(own.target).keeps_code and not own.exact
        body = LoopBody(own.computation, own.target, together=together, terms=terms)
        body.count(own.known)
        made: dict[int, Instruction] = {}
        waited: dict[int, set[int]] = {}
        waits = Waits(body, slices)
        for (i, index), node in body.at.items():
            is_result = i.computation is body.computation and not index and not i.shape.is_tuple
            if not is_result or i.opcode in _NO_RESULTS or node.i.opcode in _NO_RESULTS:
                continue
            late = waits.joined_with(i, node)
            if late is None:
                continue
            needed = {slices[k] for k in late}
            is_exchange = body.exchanges.get(node.owner) is node.i
            if is_exchange and not (needed or platform(own.target).emits_any_fusion):
                self._handed_on.setdefault(body.handed_on(node), i)
            # On a CPU rounding depends on all of the fusion.
            if is_exchange or not platform(own.target).keeps_code or body.copied(node):
                number = body.number(node)
                if number not in made or (waited.get(number) and not needed):
                    made[number], waited[number] = i, needed
        made = {n: i for n, i in made.items() if n not in self.scan_residuals}
        self.late = {n: frozenset(waited[n]) for n in made if waited[n]}
        gone = {s.written for s in pair.scan_residuals} if gone is None else gone
        late = {n for n, ks in self.late.items() if not all(self.is_kept(k, gone) for k in ks)}
        return {n: i for n, i in made.items() if n not in late}

    def _divide(self, number: int, residual: ScanResidual) -> None:
        """Adds to `pieces` operands of a concatenation that a scan residual holds, none that are
        kept elsewhere or made by moves, or whose layout differs.
        """
        made = residual.value
        if residual.moves or made.i.opcode != "concatenate" or number not in self.scan_residuals:
            return
        if made.owner in self.body.fusions and not self.body.each(made.owner):
            return  # a part may be computed otherwise than it would be alone
        (dimension,) = made.i.dimensions
        start = 0
        for node in made.operands:
            part = self.body.number(node.behind)
            same = node.shape.minor_to_major == made.shape.minor_to_major
            if same and part not in self.scan_residuals and not self._is_moved_in(node):
                self.pieces.setdefault(part, ConcatOperand(number, made, node, start))
            start += node.shape.dimensions[dimension]

    def _is_moved_in(self, node: Node) -> bool:
        """Whether the backward loop can make a node by moving data alone, as a layer's weights."""
        waiting, seen = [node], set()
        while waiting:
            k = waiting.pop().behind
            if k in seen or self.is_there(self.body.number(k)):
                continue
            seen.add(k)
            index = self.body.affine(k)
            if index is not None and index.element in (None, (self.pair.writer.counter,)):
                continue
            if k.i.opcode == "parameter" or not self.body.moved(k):
                return False
            waiting += k.operands
        return True

    def _narrow(self, number: int, residual: ScanResidual) -> None:
        """Adds a recipe for a value that a scan residual holds in a wider type: to convert it back;
        the wider one then has none. Not if it can be had without a new residual or a collective.
        """
        value = residual.value
        if residual.moves or not widens(value) or number not in self.scan_residuals:
            return
        source = value.operands[0].behind
        first = self.body.number(source)
        if first in self.scan_residuals or self.is_there(first):
            return
        recipe = self.recipe(first)
        if recipe is not None and not (recipe.stacked or recipe.exchanged):
            return
        self._recipes[first] = Recipe(source, value.owner, None, (number,), narrowed=True)
        self._recipes[number] = None  # or each would be made of the other

    def slices(self, number: int, owner: Instruction | None = None) -> int:
        """Slices of the array that replaces a scan residual with value `number`: 1 on a CPU where
        what uses it rounds alike, else `SLOTS`. A copy of the forward loop's `owner` writes it.
        """
        here, body = platform(self.body.target), self.pair.reader.body
        if not (here.keeps_code and here.emits_any_fusion):
            return SLOTS
        users = [] if owner is None else [self.body.runs(owner)]
        for residual in self.scan_residuals.get(number, ()):
            for read in residual.reads:
                if not only_hands_on(read, body.root_of(read.owner)):
                    users.append(body.runs(read.owner))
        for i in users:
            if i not in self._settled:
                self._settled[i] = not may_depend_on_memory(i, self.body.target)
        return 1 if all(self._settled[i] for i in users) else SLOTS

    def number(self, residual: ScanResidual) -> int:
        """Returns the value number of what the backward loop reads from a scan residual. Adds a
        recipe for each move of all its slices between the loops.
        """
        number = self.body.number(residual.value)
        self._written.setdefault(number, residual)
        for move, axes in zip(residual.moves, residual.axes, strict=True):
            before, number = number, self.body.between(number, move)
            self._recipes[number] = Recipe(residual.value, move, None, (before,), between=axes)
        return number

    def _made_values(self) -> Iterator[tuple[int, Node]]:
        """Yields (value number, node) of what the forward body's instructions give, last first."""
        for i in reversed(self.body.computation.instructions):
            if i.opcode not in ("tuple", "parameter", "async-start"):
                for node in self.body.leaves(i).values():
                    yield self.body.number(node.behind), node.behind

    @functools.cached_property
    def given(self) -> dict[int, tuple[Instruction, ShapeIndex]]:
        """Values that the forward loop's body could store: number -> (instruction, tuple index)."""
        stored: dict[int, tuple[Instruction, ShapeIndex]] = {}
        for i in self.body.computation.instructions:
            if i.opcode not in PASSING | _NO_RESULTS and not i.opcode.endswith("-start"):
                for index, node in self.body.leaves(i).items():
                    whole = node.behind.shape.key == node.shape.key and len(index) < 2
                    if whole and can_be_stored(node.shape):
                        stored.setdefault(self.body.number(node.behind), (i, index))
        return stored

    def is_there(self, number: int) -> bool:
        """Whether the backward loop has the value `number` without recomputing or storing it."""
        own = number in self.own or self.is_iteration(number)
        return own or self.element(number) is not None

    def is_iteration(self, number: int) -> bool:
        """Whether this value is the forward loop's iteration counter, in the type of that."""
        node = self._values.get(number)
        writer = self.pair.writer
        if node is None or self.body.affine(node) != Affine((writer.counter,), 1, 0):
            return False
        return node.shape.element_type == writer.start[writer.counter].shape.element_type

    def element(self, number: int) -> int | None:
        """Returns the forward loop's state element, if invariant, that has this value; or None."""
        node = self._values.get(number)
        if node is None or node.i.opcode != "parameter":
            return None
        return node.index[0] if node.index[0] in self.pair.writer.fixed else None

    def recipe(self, number: int) -> Recipe | None:
        """Returns how to recompute value `number` (its recipe); None if that is not possible."""
        if number not in self._recipes:
            self._recipes[number] = self._find(number)
        return self._recipes[number]

    def _find(self, number: int) -> Recipe | None:
        if number in self.restores:
            return restoring(self.body, *self.restores[number], self._apart)
        residual = self._written.get(number)
        node = self._values.get(number)
        if residual is not None:
            node = residual.value
        elif node is None and number in self.pieces:
            node = self.pieces[number].node.behind  # inside a fusion
            if not self.body.each(node.owner) or self.body.fusions[node.owner].shape.is_tuple:
                return None
        if node is not None and node.i.opcode == "parameter" and can_be_stored(node.shape):
            return Recipe(node, node.owner, None, (), stacked=True)
        if node is None or node.i.opcode == "parameter":
            return None
        owner = node.owner
        fusion = self.body.runs(owner)
        if fusion.opcode == "constant":
            return Recipe(node, owner, None, ())
        if owner in self.body.exchanges:
            relaid = self._handed_on.get(self.body.handed_on(node))
            if relaid is not None:
                return Recipe(node, owner, None, (), relaid=relaid)
            if owner.opcode in STARTS or not self._collectives:
                return None  # a pair of a start and its done is not copied
            return Recipe(node, owner, None, self._needs(owner), exchanged=True)
        if (part := own_part(owner)) is not None:
            return self._beside_transfer(node, owner, part)
        if fusion.opcode in CONTROL:
            rerun = Recipe(node, owner, None, self._needs(owner))
            return rerun if control_repeats(fusion) else None
        if not pure(fusion) or any(o.shape.is_tuple for o in owner.operands):
            return None
        whole = [n for o in owner.operands for n in self.body.leaves(o).values()]
        if self.body.each(owner) and not fusion.shape.is_tuple:
            return self._opened(node, owner)
        if any(n.behind.i.opcode == "dynamic-update-slice" for n in self.results(owner)):
            return self._putting(node, owner)
        return Recipe(node, owner, None, tuple(self.body.number(n.behind) for n in whole))

    def _apart(self, number: int) -> tuple[int, ...] | None:
        """Returns the numbers of the values that value `number` is recomputed from, () if the
        backward loop has it; None if it is in the forward loop's state or cannot be recomputed.
        """
        if self.is_there(number):
            return ()
        recipe = None if number in self.restores else self.recipe(number)
        return None if recipe is None or recipe.stacked else recipe.needs

    def _beside_transfer(self, node: Node, owner: Instruction, part: OwnPart) -> Recipe | None:
        """Makes a recipe for `node`: to copy the fusion `owner` without the steps of a transfer
        that it also runs; None if that is not possible. `part`: what is copied.
        """
        results = [self.body.at[owner, (k,)] for k in part.results]
        updated = self._updates(owner, results)
        if updated is None or not pure_but_for_transfer(owner):
            return None
        ends = [n.behind for n in results]
        ends += [n.operands[1].behind for n in ends if n.i.opcode == "dynamic-update-slice"]
        if node not in ends:
            return None
        left_out = [k for k in range(len(owner.operands)) if k not in part.operands]
        needs = self._needs(owner, (*left_out, *updated))
        return Recipe(node, owner, None, needs, updated=tuple(updated), part=part)

    def results(self, owner: Instruction) -> list[Node]:
        """Returns the nodes of all arrays that an instruction of the forward body computes."""
        fusion = self.body.runs(owner)
        return list(self.body.leaves(fusion).values())

    def _opened(self, node: Node, owner: Instruction) -> Recipe | None:
        """Makes a recipe for `node`: to copy the fusion `owner`, which is elementwise, or the part
        of it that makes `node` by moves alone; else None. Arithmetic stays as it is. Where it
        slices an operand, and a scan residual has just that slice, the copy may read that instead.
        Not on a CPU: there a fusion with arithmetic is copied whole, or its code would change.
        """
        (result,) = self.results(owner)
        end = result.behind
        divided = b"partitions" in self.body.fusions[owner].backend_config
        if self.body.exact and node is end:
            return Recipe(node, owner, None, self._needs(owner))
        if not platform(self.body.target).emits_any_fusion:
            return self._updating(node, owner, result)
        if end.i.opcode == "dynamic-update-slice" and end.owner is owner:
            end = end.operands[1].behind
        if divided and node is not result.behind:
            return None  # how a CPU divides it among threads is made for its shape
        if not self.body.moved(node):
            if self.body.exact:
                return self._updating(node, owner, result)
            if node is not end:
                return None  # fewer readers of what is inside could change its code
        elif self.body.generator(self.body.fusions[owner]) not in (None, CodeGenerator.LOOP):
            return None
        inside: dict[Node, None] = {}
        waiting, seen = [node], set()
        while waiting:
            k = waiting.pop()
            if k in seen:
                continue
            seen.add(k)
            if k.owner is not owner or k.i.opcode == "parameter":
                inside[k] = None
            elif k is not node and self._is_held(k):
                inside[k] = None
            else:
                waiting += k.operands
        return Recipe(node, owner, inside, tuple(self.body.number(k.behind) for k in inside))

    def _needs(self, owner: Instruction, but: Collection[int] = ()) -> tuple[int, ...]:
        """Value numbers of an instruction's operands; `but`: indices of operands to leave out."""
        given = (self.body.leaves(o) for k, o in enumerate(owner.operands) if k not in but)
        return tuple(self.body.number(n.behind) for leaves in given for n in leaves.values())

    def _updating(self, node: Node, owner: Instruction, result: Node) -> Recipe | None:
        """Makes a recipe for `node`: to copy a fusion that writes it into a residual; or None."""
        k = self._put_into(owner, result)
        if k is None or result.operands[1].behind is not node:
            return None  # fewer readers of what is inside could change its code
        return Recipe(node, owner, None, self._needs(owner, (k,)), updated=(k,))

    def _putting(self, node: Node, owner: Instruction) -> Recipe | None:
        """Makes a recipe for `node`: to copy a fusion that writes some results into scan residuals,
        or None, as on a CPU. It is not elementwise, or has several results: in another form its
        code might compute other bits. One of several results is copied only where fusions stay as
        they are (`exact`).
        """
        results = self.results(owner)
        if platform(self.body.target).keeps_arrays:
            return None
        if len(results) == 1:
            return self._updating(node, owner, results[0])
        if not self.body.exact:
            return None
        updated = self._updates(owner, results)
        if updated is None:
            return None
        return Recipe(node, owner, None, self._needs(owner, updated), updated=tuple(updated))

    def _updates(self, owner: Instruction, results: Sequence[Node]) -> list[int] | None:
        """Returns the numbers of the operands into which a fusion writes slices; None if one is not
        known, or a slice is not written at the index at which the loop writes scan residuals.
        """
        updated = []
        for result in results:
            if result.behind.i.opcode != "dynamic-update-slice":
                continue
            k = self._put_into(owner, result)
            if k is None or not self._is_own_slice(result):
                return None
            updated.append(k)
        return updated

    def _put_into(self, owner: Instruction, result: Node) -> int | None:
        """Number of the operand into which a fusion writes a slice; None if it is not known."""
        if result.i.opcode != "dynamic-update-slice" or owner.opcode != "fusion":
            return None
        if result.owner is not owner or result.i.computation is not owner.called[0]:
            return None
        leaves = [self.body.at.get((o, ())) for o in owner.operands]
        whole = result.operands[0]
        if whole.i.computation is not result.i.computation:  # a nested fusion's copy
            whole = whole.behind
        numbers = [k for k, leaf in enumerate(leaves) if leaf is whole]
        return numbers[0] if len(numbers) == 1 else None

    def _is_own_slice(self, update: Node) -> bool:
        """Whether `update` writes a state element's slice at the index of scan residuals."""
        whole = update.operands[0].behind
        if whole.i.opcode != "parameter":
            return False
        try:
            written, at, _ = written_slice(self.pair.writer, whole.index[0])
        except NotAResidual:
            return False
        return written is update and at == self.pair.written

    def _is_held(self, k: Node) -> bool:
        """Whether a node in a fusion, made by moves alone, is in a residual or a part of one."""
        if self.body.affine(k) is not None or not self.body.moved(k):
            return False
        number = self.body.number(k.behind)
        recipe = self.recipe(number) if number in self.pieces else None
        return number in self.scan_residuals or (recipe is not None and not recipe.exchanged)
