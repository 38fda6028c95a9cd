"""From stacks to do without to the change of the module: what is made, from what, and who reads it.

The same choice gives the same change, so a plan need only say which stacks go.

Where a product is added to something, LLVM decides between one rounding and two, by the whole code
that it is given. What was given several arrays is given as many, if all hold the same too
(`_Arrays`), for XLA passes an array to a fusion's code but once. On a CPU a fusion that computes
stays as it is altogether:
- What puts a value into a stack is copied with that, and the copy has a stack of `SLOTS` slices.
- What took slices out of a stack takes them out of one of `SLOTS` slices, at the same place, which
  XLA moves back into it.
On a GPU it takes what it needs out of the stacks itself, and one slice is one slice: what this does
to rounding was not seen, as nothing has been run there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable

from hlo.module import Instruction, Module
from hlo.rewrite.fused_body import Part
from hlo.rewrite.loops import Given, LoopEdit, Made, Taken, stack_shape
from olla_xla.errors import PlanMismatchError
from olla_xla.problem.plan import LoopRecord
from olla_xla.remat.loops.nodes import Body, Node
from olla_xla.remat.loops.pairs import Pair, Stack, only_hands_on, pairs
from olla_xla.remat.loops.ways import Piece, Ways

__all__ = ["edits", "recipe"]


def edits(module: Module, records: Iterable[LoopRecord], target: str) -> list[LoopEdit]:
    """The changes that records of a plan stand for; target: "cpu" or "cuda".

    Raises:
      PlanMismatchError: the module has no such loops or stacks.
    """
    records = tuple(records)
    if not records:
        return []
    found = {(p.writer.i.name, p.reader.i.name): p for p in pairs(module, target)}
    result = []
    for writer, reader, dropped in records:
        pair = found.get((writer, reader))
        if pair is None or not set(dropped) <= {s.written for s in pair.stacks}:
            raise PlanMismatchError(f"the module has no stacks of {writer} to do without")
        result.append(recipe(module, pair, frozenset(dropped)))
    return result


def recipe(module: Module, pair: Pair, dropped: frozenset[int]) -> LoopEdit:
    """The change that does without some stacks.

    Args:
      module: it is of. pair: of loops. dropped: elements of the writing loop's state.

    Raises:
      PlanMismatchError: they cannot all be done without.
    """
    return _Recipe(module, pair, dropped).edit()


class _Recipe:
    def __init__(self, module: Module, pair: Pair, dropped: frozenset[int]) -> None:
        self._pair = pair
        self._dropped = [s for s in pair.stacks if s.written in dropped]
        self._ways = Ways(pair, None, collectives=True)
        self._body = self._ways.body
        self._kept = {
            number: kept[0]
            for number, stacks in self._ways.stacks.items()
            if (kept := [s for s in stacks if s.written not in dropped])
        }
        self._names = {i.name for c in module.computations for i in c.instructions}
        self._made: list[Made] = []
        self._values: dict[int, Given] = {}
        self._runs: dict[tuple[Instruction, Node | None], str] = {}
        self._updates: dict[Instruction, Given] = {}
        self._added: list[str | int] = []
        self._making: set[int] = set()

    def edit(self) -> LoopEdit:
        """The change."""
        pair = self._pair
        taken = self._taken()
        return LoopEdit(
            writer=pair.writer.i.name,
            reader=pair.reader.i.name,
            dropped=tuple((s.written, s.read) for s in self._dropped),
            added=tuple(self._added),
            counter=self._counter(),
            turns=pair.writer.turns,
            written=(pair.written.factor, pair.written.offset),
            place=(pair.place.factor, pair.place.offset),
            turn=(pair.turn.factor, pair.turn.offset),
            made=tuple(self._made),
            taken=tuple(taken),
            target=self._body.target,
        )

    def _counter(self) -> str:
        """What has the number of the reading loop's turn: a copy, where the next one is made early.

        An element may be overwritten by the next turn's before all that is new has read it.
        """
        reader = self._pair.reader
        body, opcodes = reader.body, ("copy", "get-tuple-element")
        (parameter,) = reader.i.called[0].parameters
        counter = body.at[parameter, (reader.counter,)]
        found = [
            i
            for i in body.computation.instructions
            if i.opcode in opcodes and not i.shape.is_tuple and body.at[i, ()].behind is counter
        ]
        return min(found, key=lambda i: opcodes.index(i.opcode)).name

    def _taken(self) -> list[Taken]:
        """What the readers of the stacks read instead."""
        reads = [(s, o) for s in self._dropped for o in dict.fromkeys(r.owner for r in s.reads)]
        inner = self._pair.reader.body
        replaced: dict[Instruction, Given] = {}
        copies: dict[Given, list[set[Instruction]]] = {}
        for stack, owner in reads:
            node = next(r.node for r in stack.reads if r.owner is owner)
            if only_hands_on(node, inner.root_of(owner)):
                given = self._value(self._ways.number(stack))
                readers = _reading(inner, owner)
                used = copies.setdefault(given, [])
                k = next((k for k, o in enumerate(used) if not o & readers), len(used))
                used[k : k + 1] = [readers.union(*used[k : k + 1])]
                replaced[owner] = dataclasses.replace(given, copy=k)
        arrays = {o: self._arrays_of(o, replaced) for _, o in reads if o not in replaced}
        result = []
        for stack, owner in reads:
            where = self._where(stack, owner)
            if owner in replaced:
                result.append(Taken(owner.name, where[0], replaced[owner], replaced=True))
            else:
                arrays[owner].whole = functools.partial(self._whole, stack)
                given = arrays[owner].given(stack.read, self._ways.number(stack))
                axis = stack.axis if self._body.exact else -1
                result += [Taken(owner.name, k, given, axis=axis) for k in where]
        return result

    def _where(self, stack: Stack, owner: Instruction) -> list[int]:
        """Which operands of an instruction of the reading loop's body are a stack."""
        inner = self._pair.reader.body
        element = inner.leaves(inner.computation.parameters[0])[(stack.read,)]
        leaves = [inner.at.get((o, ())) for o in owner.operands]
        return [k for k, leaf in enumerate(leaves) if leaf is not None and leaf.behind is element]

    def _arrays_of(self, owner: Instruction, replaced: dict[Instruction, Given]) -> _Arrays:
        """What an instruction of the reading loop's body reads beside the stacks that go."""
        inner, arrays = self._pair.reader.body, _Arrays(self._value)
        results = {inner.root_of(o): given for o, given in replaced.items()}
        gone = {s.read for s in self._dropped}
        own = {i.name for i in self._ways.own.values()}
        for operand in owner.operands:
            leaf = inner.at.get((operand, ()))
            node = None if leaf is None else _uncast(leaf)
            if node in results:
                arrays.keep(results[node], node)
            elif operand.name in own:
                arrays.keep(Given(own=operand.name), node or operand)
            elif node is not None and node.i.opcode == "parameter" and node.index[0] not in gone:
                arrays.keep(Given(element=node.index[0]), node)
        return arrays

    def _whole(self, old: Stack, number: int) -> Given:
        """An array for a reader of a stack, of which it takes a value itself; or just the value."""
        if not self._body.exact:
            return self._inside(number)
        stack, start = self._kept.get(number), self._pair.reader.start
        if stack is not None and start[stack.read].shape.key == start[old.read].shape.key:
            return Given(element=stack.read, whole=stack.whole.key, axis=stack.axis)
        return self._updated(number) or self._value(number)

    def _updated(self, number: int) -> Given | None:
        """The few slices into which a value is put where it is computed again, if it is so."""
        if number in self._kept or number in self._ways.pieces or self._ways.is_there(number):
            return None
        way = self._ways.way(number)
        if way is None or way.updated < 0:
            return None
        if way.owner not in self._updates:
            update = self._body.at[self._body.fusions[way.owner], ()]
            part, whole = (update.operands[1].shape.dimensions, update.shape.dimensions)
            axis = next((k for k, n in enumerate(part) if n != whole[k]), 0)
            name = self._name(f"{way.owner.name}.again")
            operands = self._operands(way.owner, way.updated)
            slots = (way.updated, axis)
            self._made.append(Made(name, way.owner.name, "", operands, slots=slots))
            self._updates[way.owner] = Given(made=name, whole=update.shape.key, axis=axis)
        return self._updates[way.owner]

    def _operands(self, owner: Instruction, but: int = -1) -> tuple[tuple[int, Given], ...]:
        """What a copy of an instruction is given, but for one operand."""
        arrays = _Arrays(self._value)
        leaves = [(k, self._body.at[o, ()]) for k, o in enumerate(owner.operands) if k != but]
        return tuple(
            (k, arrays.given(self._array(leaf), self._body.number(leaf.behind)))
            for k, leaf in leaves
        )

    def _inside(self, number: int) -> Given:
        """A value for a fusion, which may take it out of a stack itself."""
        stack = self._kept.get(number)
        if stack is not None:
            return Given(element=stack.read, whole=stack.whole.key, axis=stack.axis)
        piece = self._ways.pieces.get(number)
        if piece is not None and piece.whole in self._kept:
            return self._part(piece)
        return self._value(number)

    def _part(self, piece: Piece) -> Given:
        """What a fusion takes out of a concatenation."""
        (dimension,) = piece.made.i.dimensions
        part = Part(piece.made.shape.key, piece.node.shape.key, dimension, piece.start)
        return dataclasses.replace(self._inside(piece.whole), part=part)

    def _value(self, number: int) -> Given:
        """A value in the reading loop's body."""
        if number not in self._values:
            if number in self._making:
                raise PlanMismatchError("a value of a loop is made of itself")
            self._making.add(number)
            self._values[number] = self._find(number)
        return self._values[number]

    def _find(self, number: int) -> Given:
        if number in self._kept:
            stack = self._kept[number]
            name = self._name(f"{stack.update.owner.name}.slice")
            self._made.append(Made(name, "", "", ((0, self._inside(number)),)))
            return Given(made=name)
        piece = self._ways.pieces.get(number)
        if piece is not None and piece.whole in self._kept:
            name = self._name(f"{self._kept[piece.whole].update.owner.name}.slice")
            self._made.append(Made(name, "", "", ((0, self._part(piece)),)))
            return Given(made=name)
        if self._ways.is_turn(number):
            return Given(turn=True)
        if (element := self._ways.element(number)) is not None:
            return Given(element=self._element(element))
        if (own := self._ways.own.get(number)) is not None:
            return Given(own=own.name)
        way = self._ways.way(number)
        if way is None:
            raise PlanMismatchError("a stack that is to go cannot be computed again")
        run = way.owner, way.node if way.inside is not None else None
        if way.stacked:
            self._added.append(way.node.index[0])
            whole = stack_shape(way.node.shape.key, self._pair.writer.turns)
            name = self._name(f"{way.node.i.name}.slice")
            given = Given(element=len(self._pair.reader.start) + len(self._added) - 1, whole=whole)
            self._made.append(Made(name, "", "", ((0, given),)))
            return Given(made=name)
        if way.narrowed:
            name = self._name(f"{way.owner.name}.narrow")
            given = ((0, self._inside(way.needs[0])),)
            self._made.append(Made(name, "", "", given, element_type=way.node.shape.element_type))
            return Given(made=name)
        if way.between:
            name = self._name(f"{way.owner.name}.slice")
            given = ((0, self._value(way.needs[0])),)
            self._made.append(Made(name, way.owner.name, "", given, of_slice=True))
            return Given(made=name)
        if (updated := self._updated(number)) is not None:
            name = self._name(f"{way.owner.name}.slice")
            self._made.append(Made(name, "", "", ((0, updated),)))
            return Given(made=name)
        if run not in self._runs:
            if way.inside is None:
                operands = self._operands(way.owner)
                made = Made(self._name(f"{way.owner.name}.again"), way.owner.name, "", operands)
            else:
                made = self._opened(way.owner, way.node, way.inside)
            self._made.append(made)
            self._runs[run] = made.name
        return Given(made=self._runs[run], index=self._leaf(way.owner, way.node))

    def _opened(self, owner: Instruction, node: Node, inside: dict[Node, None]) -> Made:
        """A copy of a fusion that ends with a node; on a CPU it only moves bytes up to there."""
        given, arrays = [], _Arrays(self._value)
        arrays.whole = self._inside
        for i in self._body.fusions[owner].called[0].instructions:
            leaf = self._body.at.get((i, ()))
            if leaf in inside:
                source = self._sources(leaf, owner)
                given.append((i.name, arrays.given(source, self._body.number(leaf.behind))))
        return Made(self._name(f"{owner.name}.again"), owner.name, node.i.name, tuple(given))

    def _array(self, node: Node) -> Hashable:
        """What tells the array of a value of the writing loop's body from others.

        Elements of its state that begin as one array, and that no turn changes, are one.
        """
        node, writer = _uncast(node), self._pair.writer
        if node.i.opcode != "parameter" or node.index[0] not in writer.fixed:
            return node
        start = writer.start[node.index[0]]
        while start.opcode == "bitcast":
            (start,) = start.operands
        return start

    def _sources(self, node: Node, owner: Instruction) -> Hashable:
        """The arrays outside a fusion that a value is taken from inside it."""
        found, waiting = set(), [node]
        while waiting:
            k = _uncast(waiting.pop())
            if k.owner is owner and k.i.opcode != "parameter":
                waiting += k.operands
            else:
                found.add(self._array(k))
        return frozenset(found)

    def _leaf(self, owner: Instruction, node: Node) -> tuple[int, ...]:
        """Where a value stands in the result of a copy of an instruction."""
        runs = self._body.runs(owner)
        if not runs.shape.is_tuple:
            return ()
        leaves = self._body.leaves(runs)
        return next(index for index, leaf in leaves.items() if leaf.behind is node.behind)

    def _element(self, k: int) -> int:
        """The element of the reading loop's state that has what never changes in the other's."""
        writer, reader = self._pair.writer, self._pair.reader
        start = writer.start[k]
        for r in sorted(reader.fixed):
            if reader.start[r] is start:
                return r
        if start.name not in self._added:
            self._added.append(start.name)
        return len(reader.start) + self._added.index(start.name)

    def _name(self, name: str) -> str:
        for k in itertools.count(1):
            found = name if k == 1 else f"{name}.{k}"
            if found not in self._names:
                self._names.add(found)
                return found
        raise AssertionError


class _Arrays:
    """The arrays that one instruction is given: as many as it was, even if they hold the same.

    Args:
      value: number -> where a value is found.

    Attributes:
      whole: number -> the array that it is taken from, where that is done inside; else `value`.
    """

    def __init__(self, value: Callable[[int], Given]) -> None:
        self._value = value
        self.whole = value
        self._used: dict[Given, Hashable] = {}

    def keep(self, given: Given, source: Hashable) -> None:
        """Notes what stays as it is."""
        self._used[given] = source

    def given(self, source: Hashable, number: int) -> Given:
        """A value that was in an array of the writing loop: its source."""
        given = self.whole(number)
        if self._is_free(_array(given), source):
            return given
        given = self._value(number)
        while not self._is_free(given, source):
            given = dataclasses.replace(given, copy=given.copy + 1)
        return given

    def _is_free(self, array: Given, source: Hashable) -> bool:
        """Whether an array is, or now becomes, that of a source."""
        return self._used.setdefault(array, source) == source


def _array(given: Given) -> Given:
    """The array that a value lies in."""
    return dataclasses.replace(given, whole=b"", axis=0, part=None)


def _uncast(node: Node) -> Node:
    """What is in the same array, before bitcasts."""
    while node.i.opcode == "bitcast":
        (node,) = node.operands
    return node


def _reading(body: Body, owner: Instruction) -> set[Instruction]:
    """The instructions that read what one gives, through bitcasts."""
    found: set[Instruction] = set()
    result = body.root_of(owner)
    waiting = [] if result is None else [result]
    while waiting:
        for user in body.used.get(waiting.pop(), ()):
            if user.i.opcode == "bitcast" and user.owner is user.i:
                waiting.append(user)
            else:
                found.add(user.owner)
    return found
