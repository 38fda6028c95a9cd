"""Makes the edits of a module's loops that recompute given scan residuals.

The same choice gives the same change, so a plan need only say which scan residuals go.

On a CPU and a TPU a fusion with arithmetic stays as it is (`again` says why):
- A fusion that writes a value into a scan residual is copied with its update; the copy writes into
  an array of `SLOTS` slices.
- A fusion that sliced a scan residual slices an array of `SLOTS` slices at the same index, which
  XLA clamps to the array.
- The array has one slice where no addition in these fusions reads two products, so that nothing but
  their operators decides how they round (hlo.rounding). It is then the value itself.
On a GPU fusions slice the scan residuals that they need themselves, and a single slice stays one.
What this does to rounding is not known, as nothing has been run there.
"""

import dataclasses
import functools
from collections.abc import Iterable

from hlo.module import Instruction, Module
from hlo.rewrite.loop_edit import SLOTS, LoopEdit, OperandReplacement, ValueRef
from olla_xla.errors import PlanMismatchError
from olla_xla.problem.plan_parts import LoopRecord
from olla_xla.remat.loops.again import Again, New, ReadArrays, uncast
from olla_xla.remat.loops.body import LoopBody
from olla_xla.remat.loops.checkpoints import Rerun, can_be_kept, residuals
from olla_xla.remat.loops.pairs import ScanPair, pairs
from olla_xla.remat.loops.recipe_table import RecipeTable
from olla_xla.remat.loops.recipes import Recipe
from olla_xla.remat.loops.scan_residuals import ScanResidual, only_hands_on


def edits(module: Module, records: Iterable[LoopRecord], target: str) -> list[LoopEdit]:
    """The edits of a module that recompute the scan residuals in a plan's records, one for each.
    Raises PlanMismatchError if it has no such loops, or no such residuals that can be recomputed.
    """
    records = tuple(records)
    if not records:
        return []
    by_names = {(p.writer.i.name, p.reader.i.name): p for p in pairs(module, target)}
    result = []
    for record in records:
        pair = by_names.get(record[:2])
        if pair is None or not set(record.dropped) <= {s.written for s in pair.scan_residuals}:
            raise PlanMismatchError(
                f"the module has no scan residuals of loop {record.writer} to recompute"
            )
        result.append(recipe(module, pair, record))
    return result


def recipe(module: Module, pair: ScanPair, record: LoopRecord) -> LoopEdit:
    """The edit of a module that recomputes the scan residuals in one record of a plan.

    Args:
      module: the module. pair: its two loops.
      record: what is dropped. With `every`, states of every so many iterations are kept, and scan
        residuals that stay are, where possible, kept only since the last of these (`checkpoints`).

    Raises:
      PlanMismatchError: the scan residuals cannot all be recomputed.
    """
    return _EditBuilder(module, pair, record).edit()


class _EditBuilder(Again):
    def __init__(self, module: Module, pair: ScanPair, record: LoopRecord) -> None:
        every, dropped = record.every, frozenset(record.dropped)
        gone = None if every else dropped
        table, new = RecipeTable(pair, collectives=True, gone=gone), New(module)
        if every and not can_be_kept(pair):
            raise PlanMismatchError(f"loop {pair.reader.i.name} does not run iterations in reverse")
        self._rerun = Rerun(pair, new, every) if every else None
        kept = {
            number: kept[0]
            for number, scan_residuals in table.scan_residuals.items()
            if (kept := [s for s in scan_residuals if s.written not in dropped])
        }
        self._since = set() if self._rerun is None else {*kept} & residuals(table, self._rerun)
        gone = dropped.union(s.written for n in self._since for s in table.scan_residuals[n])
        self._dropped = [s for s in pair.scan_residuals if s.written in gone]
        kept = {number: residual for number, residual in kept.items() if number not in self._since}
        super().__init__(pair, table, kept, new, self._new_residuals(pair, table, record))

    @staticmethod
    def _new_residuals(pair: ScanPair, table: RecipeTable, record: LoopRecord) -> frozenset[int]:
        """Finds values that `record` gives a new residual; PlanMismatchError if one is unknown."""
        numbers = {(i.name, index): number for number, (i, index) in table.given.items()}
        if unknown := [name for name, index in record.kept if (name, index) not in numbers]:
            raise PlanMismatchError(f"loop {pair.writer.i.name} has no value {unknown[0]} to store")
        return frozenset(numbers[value] for value in record.kept)

    def edit(self) -> LoopEdit:
        """Makes the edit of the pair of loops, with all new instructions and replaced operands."""
        pair = self._pair
        taken = self._taken()
        checkpoints = None if self._rerun is None else self._rerun.checkpoints()
        return LoopEdit(
            writer=pair.writer.i.name,
            reader=pair.reader.i.name,
            dropped=tuple((s.written, s.read) for s in self._dropped),
            added=tuple(self._new.added),
            counter=self._counter(),
            iterations=pair.writer.iterations,
            written=(pair.written.factor, pair.written.offset),
            place=(pair.place.factor, pair.place.offset),
            iteration=(pair.iteration.factor, pair.iteration.offset),
            made=tuple(self._new.made),
            taken=tuple(taken),
            target=self._body.target,
            checkpoints=checkpoints,
        )

    def _there(self, number: int) -> ValueRef | None:
        if self._rerun is not None and number in self._since:
            return self._rerun.residual(number)
        return super()._there(number)

    def _updated(self, number: int) -> ValueRef | None:
        return None if number in self._since else super()._updated(number)

    def _stacked(self, recipe: Recipe) -> ValueRef:
        return super()._stacked(recipe) if self._rerun is None else self._rerun.held(recipe)

    def _counter(self) -> str:
        """Returns the name of the backward loop's counter: of a copy of it, if the body has one.
        The element itself may be overwritten by the next iteration's before all new instructions
        have read it.
        """
        reader = self._pair.reader
        body, opcodes = reader.body, ("copy", "get-tuple-element")
        (parameter,) = reader.i.called[0].parameters
        counter = body.at[parameter, (reader.counter,)]
        counters = [
            i
            for i in body.computation.instructions
            if i.opcode in opcodes and not i.shape.is_tuple and body.at[i, ()].behind is counter
        ]
        return min(counters, key=lambda i: opcodes.index(i.opcode)).name

    def _taken(self) -> list[OperandReplacement]:
        """Makes the replacements of operands, or whole instructions, that read dropped scan
        residuals; adds the instructions that make what is read instead.
        """
        reads = [(s, o) for s in self._dropped for o in dict.fromkeys(r.owner for r in s.reads)]
        inner = self._pair.reader.body
        replaced: dict[Instruction, ValueRef] = {}
        copies: dict[ValueRef, list[set[Instruction]]] = {}
        for residual, owner in reads:
            node = next(r for r in residual.reads if r.owner is owner)
            if only_hands_on(node, inner.root_of(owner)):
                given = self._value(self._table.number(residual))
                readers = _reading(inner, owner)
                used = copies.setdefault(given, [])
                k = next((k for k, o in enumerate(used) if not o & readers), len(used))
                used[k : k + 1] = [readers.union(*used[k : k + 1])]
                replaced[owner] = dataclasses.replace(given, copy=k)
        arrays = {o: self._arrays_of(o, replaced) for _, o in reads if o not in replaced}
        result = []
        for residual, owner in reads:
            at = self._where(residual, owner)
            if owner in replaced:
                result.append(OperandReplacement(owner.name, at[0], replaced[owner], replaced=True))
            else:
                arrays[owner].whole = functools.partial(self._whole, residual)
                number = self._table.number(residual)
                given = arrays[owner].given(residual.read, number)
                axis = residual.axis if self._body.exact or (given.whole and given.made) else -1
                slices = SLOTS if given.whole else self._table.slices(number)
                result += [
                    OperandReplacement(owner.name, k, given, axis=axis, slices=slices) for k in at
                ]
        return result

    def _where(self, residual: ScanResidual, owner: Instruction) -> list[int]:
        """Finds the numbers of operands of `owner`, in the backward loop, that are `residual`."""
        inner = self._pair.reader.body
        element = inner.leaves(inner.computation.parameters[0])[(residual.read,)]
        leaves = [inner.at.get((o, ())) for o in owner.operands]
        return [k for k, leaf in enumerate(leaves) if leaf is not None and leaf.behind is element]

    def _arrays_of(self, owner: Instruction, replaced: dict[Instruction, ValueRef]) -> ReadArrays:
        """Makes a ReadArrays with the arrays that an instruction of the backward loop still reads
        after the change. `replaced`: instructions of which the result is read elsewhere -> where.
        """
        inner, arrays = self._pair.reader.body, ReadArrays(self._value)
        results = {inner.root_of(o): given for o, given in replaced.items()}
        gone = {s.read for s in self._dropped}
        own = {i.name for i in self._table.own.values()}
        for operand in owner.operands:
            leaf = inner.at.get((operand, ()))
            node = None if leaf is None else uncast(leaf)
            if node in results:
                arrays.keep(results[node], node)
            elif operand.name in own:
                arrays.keep(ValueRef(own=operand.name), node or operand)
            elif node is not None and node.i.opcode == "parameter" and node.index[0] not in gone:
                arrays.keep(ValueRef(element=node.index[0]), node)
        return arrays

    def _whole(self, old: ScanResidual, number: int) -> ValueRef:
        """Returns what a reader of the scan residual `old` reads instead for the value `number`: an
        array to slice itself, or just the value.
        """
        if not self._body.exact:
            updated = self._updated(number)
            return updated if updated is not None and updated.whole else self._inside(number)
        residual, start = self._kept.get(number), self._pair.reader.start
        if residual is not None and start[residual.read].shape.key == start[old.read].shape.key:
            return ValueRef(element=residual.read, whole=residual.whole.key, axis=residual.axis)
        return self._updated(number) or self._value(number)


def _reading(body: LoopBody, owner: Instruction) -> set[Instruction]:
    """The instructions that read an instruction's result, through bitcasts."""
    readers: set[Instruction] = set()
    result = body.root_of(owner)
    waiting = [] if result is None else [result]
    while waiting:
        for user in body.used.get(waiting.pop(), ()):
            if user.i.opcode == "bitcast" and user.owner is user.i:
                waiting.append(user)
            else:
                readers.add(user.owner)
    return readers
