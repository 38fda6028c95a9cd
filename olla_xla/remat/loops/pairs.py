"""Pairs of loops: one writes stacks slice by slice, a later one reads them at its own turns."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Sequence

from hlo.cpu_code import one_function
from hlo.module import Computation, Instruction, Module
from hlo.rounding import may_depend_on_others
from hlo.shapes import Shape
from olla_xla.remat.loops.nodes import Affine, Body, Node

__all__ = ["Loop", "Pair", "Read", "Stack", "only_hands_on", "pairs"]


@dataclasses.dataclass(eq=False)
class Loop:
    """A while with a known number of turns.

    Attributes:
      i: the while. body: its body's nodes.
      site: what stands for it beside other loops: itself, or a call that runs it and no more, as
        XLA:CPU makes of small loops.
      counter: the element that counts from 0 in ones. turns: how many.
      start: the instruction that each element of the state begins as.
      fixed: elements that no turn changes.
    """

    i: Instruction
    site: Instruction
    body: Body
    counter: int
    turns: int
    start: Sequence[Instruction]
    fixed: frozenset[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Read:
    """One slice that the reading loop takes.

    Attributes:
      node: the dynamic-slice.
    """

    node: Node

    @property
    def owner(self) -> Instruction:
        """The instruction of the body that takes it."""
        return self.node.owner


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """An element of the writing loop's state that the reading loop reads slice by slice.

    Attributes:
      written, read: the element's number in the two states.
      update: the dynamic-update-slice of each turn. value: what it writes.
      reads: the slices taken.
      whole: shape of all slices together, as they are read. axis: the dimension of it that counts
        them; it is 0 where anything but a loop sees the stack as another shape, or moves it.
      moves: instructions between the loops that only move bytes within slices, the first one first.
    """

    written: int
    read: int
    update: Node
    value: Node
    reads: tuple[Read, ...]
    whole: Shape
    axis: int = 0
    moves: tuple[Instruction, ...] = ()

    @property
    def bytes(self) -> int:
        """Of the whole."""
        return self.whole.bytes


@dataclasses.dataclass(eq=False)
class Pair:
    """Two loops of one computation.

    Attributes:
      writer, reader: the loops.
      stacks: that could be done without.
      refused: (element of the writer, why it is none of these), of what looks like one.
      written: the slice that a turn of the writer writes.
      place: the slice that a turn of the reader reads.
      turn: the turn of the writer that the reader's turn j goes back to, as a multiple of j.
    """

    writer: Loop
    reader: Loop
    stacks: tuple[Stack, ...]
    refused: tuple[tuple[int, str], ...]
    written: Affine
    turn: Affine
    place: Affine


def pairs(module: Module, target: str) -> list[Pair]:
    """The pairs of loops of a module, in the order in which they are read.

    Args:
      module: scheduled. target: "cpu" or "cuda".
    """
    loops: dict[Instruction, Loop | None] = {}
    sites = _sites(module)
    together = one_function(module) if target == "cpu" else {}
    settled: dict[tuple[Computation, ...], bool] = {}

    def loop(site: Instruction) -> Loop | None:
        if site not in loops:
            whole = sites[site].called[0] in together
            loops[site] = _loop(sites[site], site, target, together=whole)
        return loops[site]

    def are_apart(*both: Instruction) -> bool:
        """Whether each fusion of two loops is compiled alone, or as if it was, in either."""
        functions = [together.get(sites[k].called[0]) for k in both]
        if None in functions:
            return functions == [None, None]  # else copies would be other code
        parts = tuple(dict.fromkeys(c for f in functions for c in f or ()))
        if parts not in settled:
            settled[parts] = not may_depend_on_others(parts)
        return settled[parts]

    found = []
    for site in sites:
        for earlier in _writers(site, sites):
            if not are_apart(earlier, site):
                continue  # copies would be other code, or change that of what stands beside them
            writer, reader = loop(earlier), loop(site)
            pair = _pair(writer, reader) if writer and reader else None
            if pair is not None:
                found.append(pair)
    return found


def _sites(module: Module) -> dict[Instruction, Instruction]:
    """What stands for a loop -> the while, in order."""
    computations = module.control_computations
    calls = collections.Counter(
        i.called[0] for c in computations for i in c.instructions if i.opcode == "call"
    )
    found: dict[Instruction, Instruction] = {}
    for computation in computations:
        for i in computation.instructions:
            if i.opcode == "while" and i.operands[0].opcode != "parameter":
                found[i] = i
            elif i.opcode == "call" and calls[i.called[0]] == 1:
                inner = i.called[0].instructions
                if [k.opcode for k in inner] == ["parameter", "while"] and inner[1].is_root:
                    found[i] = inner[1]
    return found


def _writers(reader: Instruction, sites: dict[Instruction, Instruction]) -> list[Instruction]:
    """The loops whose results a loop's state begins with; all as what stands for them."""
    (start,) = reader.operands
    taken = (_before(o)[0] for o in start.operands)
    return [
        i
        for i in dict.fromkeys(o.operands[0] for o in taken if o.opcode == "get-tuple-element")
        if i in sites
    ]


def _before(start: Instruction) -> tuple[Instruction, tuple[Instruction, ...]]:
    """What a loop's element begins as, before it was moved; and what moved it, the first first."""
    moves: list[Instruction] = []
    while start.opcode == "bitcast" or _moves(start):
        if start.opcode != "bitcast":
            moves.append(start)
        (start,) = start.operands
    return start, tuple(reversed(moves))


def _moves(i: Instruction) -> bool:
    """Whether an instruction gives the bytes of its one operand in another place, and no more."""
    if i.opcode == "fusion":
        inner = i.called[0].instructions
        kinds = {k.opcode for k in inner} - {"parameter", "bitcast", "copy", "transpose"}
        return len(i.operands) == 1 and not kinds and not i.shape.is_tuple
    return i.opcode in ("transpose", "copy")


def _moves_within_slices(i: Instruction, turns: int) -> bool:
    """Whether what `_moves` does so slice by slice, and its code fits one slice as well."""
    if b"partitions" in i.backend_config:
        return False  # how a CPU divides it among threads is made for its shape
    steps = i.called[0].instructions if i.opcode == "fusion" else [i]
    return _leading(i.operands[0].shape, turns) and all(
        _leading(k.shape, turns) and (k.opcode != "transpose" or k.dimensions[0] == 0)
        for k in steps
    )


def _loop(i: Instruction, site: Instruction, target: str, *, together: bool) -> Loop | None:
    """The loop of a while, if its turns are known and its state is a plain tuple."""
    body, condition = i.called
    (start,) = site.operands
    if body.root is None or start.opcode != "tuple" or body.root.opcode != "tuple":
        return None
    if any(s.is_tuple for s in i.shape.elements) or start.users != [site]:
        return None
    for computation in (body, condition):
        (parameter,) = computation.parameters
        if any(u.opcode != "get-tuple-element" for u in parameter.users):
            return None
    if any(u.opcode != "get-tuple-element" for u in site.users) or site.is_root:
        return None
    if i.side_effect or site.side_effect:
        return None
    nodes = Body(body, target, together=together)
    state = nodes.leaves(body.parameters[0])
    fixed = frozenset(
        k for k in range(len(start.operands)) if nodes.root[(k,)].behind is state[(k,)]
    )
    constants = {k: _constant(start.operands[k]) for k in fixed}
    ranges = {(k,): (value, value) for k, value in constants.items() if value is not None}
    found = _count(nodes, Body(condition, target, ranges), start.operands)
    if found is None or not _says(i, *found):
        return None
    counter, turns = found
    nodes.count({**ranges, (counter,): (0, turns - 1)})
    return Loop(i, site, nodes, counter, turns, start.operands, fixed)


def _count(body: Body, tested: Body, start: Sequence[Instruction]) -> tuple[int, int] | None:
    """The counter's element, and the number of turns; `tested` is the condition."""
    test = tested.root[()].behind
    if test.i.opcode != "compare" or test.i.direction != "LT":
        return None
    left, right = (tested.index(o) for o in test.operands)
    if left.range is None or left.affine is None or left.affine.element is None:
        return None
    if right.range is None or right.range[0] != right.range[1]:
        return None
    (counter,), turns = left.affine.element, right.range[0]
    begins_at_zero = _constant(start[counter]) == 0
    is_counter = left.affine == Affine((counter,), 1, 0)
    steps = body.affine(body.root[(counter,)]) == Affine((counter,), 1, 1)
    if turns < 1 or not is_counter or not begins_at_zero or not steps:
        return None
    return counter, turns


def _constant(i: Instruction) -> int | None:
    while i.opcode in ("copy", "bitcast"):
        i = i.operands[0]
    return i.integer


def _says(i: Instruction, counter: int, turns: int) -> bool:
    """Whether XLA's notes on a loop agree, and stay true when other elements come and go.

    XLA:GPU takes offsets of slices from them (WhileLoopBackendConfig, `dynamic_slice_analysis.cc`):
    `known_init_step` says what the counter goes through, and `dynamic_variables` which elements do
    likewise, from where. Of such there may be the counter only, whose number does not change.
    """
    if not i.backend_config:
        return True
    try:
        notes = json.loads(i.backend_config)
        known = int(notes.get("known_trip_count", {}).get("n", turns))
        index = int(notes.get("known_induction_variable", {}).get("tuple_index", counter))
        steps = notes.get("known_init_step", {"step": 1})
        first, step = int(steps.get("init", 0)), int(steps.get("step", 0))
        others = {
            (int(v.get("tuple_index", 0)), int(v.get("init", first)), int(v.get("step", step)))
            for v in notes.get("dynamic_variables", ())
        }
    except (ValueError, AttributeError, TypeError):
        return False
    is_right = (known, index, first, step) == (turns, counter, 0, 1)
    return is_right and others <= {(counter, 0, 1)}


def _pair(writer: Loop, reader: Loop) -> Pair | None:
    """Two loops as a pair, if the later one reads stacks of the earlier one."""
    if writer.turns != reader.turns or writer.counter or reader.counter:
        return None
    if writer.start[0].shape.element_type != reader.start[0].shape.element_type:
        return None  # the turn of one is no number that the other's instructions take
    written: dict[int, list[int]] = {}
    for k in sorted(reader.fixed):
        start, _ = _before(reader.start[k])
        if start.opcode == "get-tuple-element" and start.operands[0] is writer.site:
            written.setdefault(start.tuple_index, []).append(k)
    found: list[tuple[Stack, Affine, Affine | None]] = []
    refused: list[tuple[int, str]] = []
    for w, readers in written.items():
        if w not in writer.fixed:
            try:
                found.append(_stack(writer, reader, w, readers))
            except _NotAStack as reason:
                refused.append((w, str(reason)))
    weights: dict[tuple[Affine, Affine], int] = {}
    for stack, at, place in found:
        if place is not None:
            weights[at, place] = weights.get((at, place), 0) + stack.bytes
    if not weights:
        return None
    # All are read at one turn, in what JAX writes; should they not be, the most bytes count.
    written_at, place = max(weights, key=lambda key: weights[key])
    stacks = [s for s, at, here in found if at == written_at and here in (place, None)]
    refused += [
        (s.written, "it is read at another turn than most") for s, _, _ in found if s not in stacks
    ]
    sign = written_at.factor
    turn = Affine(place.element, sign * place.factor, sign * (place.offset - written_at.offset))
    return Pair(writer, reader, tuple(stacks), tuple(sorted(refused)), written_at, turn, place)


class _NotAStack(Exception):
    """Why an element of a state is no stack that could be done without."""


def _stack(
    writer: Loop, reader: Loop, w: int, readers: list[int]
) -> tuple[Stack, Affine, Affine | None]:
    """A stack, the slice of it that a turn writes, and the one that is read, if any is.

    Raises _NotAStack.
    """
    if len(readers) > 1:
        raise _NotAStack("it stands in the reading loop's state twice")
    (r,) = readers
    _only_between(writer, reader, w, r)
    update, at, axis = _written(writer, w)
    value, whole = update.operands[1].behind, update.shape
    reads, place = _read(reader, r, axis, whole)
    first, moves = _before(reader.start[r])
    if first.shape.key != reader.start[r].shape.key and not moves:
        shapes = first.shape, reader.start[r].shape
        if not all(_leading(shape, reader.turns) for shape in shapes):
            raise _NotAStack("between the loops it is seen as another shape")
    if axis and (moves or first.shape.key != reader.start[r].shape.key):
        raise _NotAStack("its slices lie inside it, and it is moved between the loops")
    if moves:
        whole = reader.start[r].shape
        if not _leading(whole, reader.turns):
            raise _NotAStack("between the loops it is moved across its slices")
        if not all(_moves_within_slices(i, reader.turns) for i in moves):
            raise _NotAStack("between the loops it is moved across its slices")
    return Stack(w, r, update, value, reads, whole, axis, moves), at, place


def _only_between(writer: Loop, reader: Loop, w: int, r: int) -> None:
    """Raises _NotAStack unless only the two loops' bodies see an element."""
    outside = [u for u in writer.site.users if u.tuple_index == w]
    last, begin = reader.start[r], reader.site.operands[0]
    while len(outside) == 1 and outside[0] is not last and outside[0].users != [begin]:
        outside = outside[0].users
    if len(outside) != 1 or outside[0] is not last or last.users != [begin]:
        raise _NotAStack("it is read outside the reading loop")
    if any(u.tuple_index == r and u.users for u in reader.site.users):
        raise _NotAStack("it is read after the reading loop")
    for loop, k in ((writer, w), (reader, r)):
        (parameter,) = loop.i.called[1].parameters
        if any(u.tuple_index == k and u.users for u in parameter.users):
            raise _NotAStack("a loop's condition reads it")


def _written(writer: Loop, w: int) -> tuple[Node, Affine, int]:
    """The update of a stack in each turn, the slice that it writes, and along which dimension.

    Raises _NotAStack.
    """
    body = writer.body
    element = body.leaves(body.computation.parameters[0])[(w,)]
    update = body.root[(w,)].behind
    if update.i.opcode != "dynamic-update-slice" or update.operands[0].behind is not element:
        raise _NotAStack("no turn writes just a slice of it")
    if any(n is not update for n in _readers(body, element)):
        raise _NotAStack("the writing loop reads it too")
    states = sum(n.behind is update for n in body.root.values())
    if states + len(_readers(body, update)) > 1:
        raise _NotAStack("its update is read as well")
    whole = update.shape
    axis = _axis(element.shape, whole, update.operands[1].shape, writer.turns)
    if axis is None:
        raise _NotAStack("not one slice along one dimension is written")
    at = body.affine(update.operands[2 + axis], whole=True)
    if at is None or at not in _own_turn(writer):
        raise _NotAStack("the slice that is written is not the turn's own")
    return update, at, axis


def _read(
    reader: Loop, r: int, axis: int, written: Shape
) -> tuple[tuple[Read, ...], Affine | None]:
    """The slices that are read of a stack, and which that is of each turn.

    Args:
      reader: the loop. r: number of the element. axis: along which slices are written.
      written: the shape of the stack there.

    Raises:
      _NotAStack: other slices are read.
    """
    body = reader.body
    element = body.leaves(body.computation.parameters[0])[(r,)]
    reads, places = [], set()
    for node in _readers(body, element):
        if node.i.opcode != "dynamic-slice":
            raise _NotAStack(f"{node.i.opcode} reads it in the reading loop")
        whole = node.operands[0].shape
        if _axis(element.shape, whole, node.shape, reader.turns) != axis:
            raise _NotAStack("not slices along the dimension that is written are read")
        if whole.key != written.key and not (axis == 0 and _leading(written, reader.turns)):
            raise _NotAStack("its slices lie apart, and it is read as another shape")
        if not _is_replaceable(body, node):
            raise _NotAStack("an asynchronous or nested fusion computes with it")
        places.add(body.affine(node.operands[1 + axis], whole=True))
        reads.append(Read(node))
    if len(places) > 1 or not places <= set(_own_turn(reader)):
        raise _NotAStack("the slices that are read are not the turn's own")
    return tuple(reads), next(iter(places), None)


def _own_turn(loop: Loop) -> tuple[Affine, Affine]:
    """Slices that are each read or written in one turn: counted up, and down."""
    up = Affine((loop.counter,), 1, 0)
    return up, Affine((loop.counter,), -1, loop.turns - 1)


def _is_replaceable(body: Body, node: Node) -> bool:
    """Whether what takes a slice can be given another operand, or be done without."""
    owner = node.owner
    if only_hands_on(node, body.root_of(owner)):
        return True
    if owner.opcode != "fusion" or any(o.shape.is_tuple for o in owner.operands):
        return False
    return node.i.computation is owner.called[0]


def only_hands_on(node: Node, result: Node | None) -> bool:
    """Whether what an instruction gives is a node, but for bitcasts."""
    while result is not None and result is not node and result.i.opcode == "bitcast":
        result = result.operands[0]
    return result is node


def _readers(body: Body, node: Node) -> list[Node]:
    """What reads a node, through bitcasts."""
    found, waiting = [], [node]
    while waiting:
        for user in body.used.get(waiting.pop(), ()):
            if user.behind is not user:
                waiting.append(user)
            else:
                found.append(user)
    return found


def _axis(element: Shape, whole: Shape, part: Shape, turns: int) -> int | None:
    """Along which dimension a part is a slice of an element, which a bitcast may give a shape.

    Slices may lie apart in memory; they are then slices of that shape, and of no other.
    """
    if not _is_slice(part, whole):
        return None
    if _is_stack(whole, turns) and part.dimensions == (1, *whole.dimensions[1:]):
        return 0 if _leading(element, turns) or not _leading(whole, turns) else None
    pairs = zip(part.dimensions, whole.dimensions, strict=True)
    axes = [k for k, (one, all_of_it) in enumerate(pairs) if one != all_of_it]
    if whole.element_bits < 8 or len(axes) != 1:
        return None
    (axis,) = axes
    is_one = (part.dimensions[axis], whole.dimensions[axis]) == (1, turns)
    return axis if is_one else None


def _is_stack(shape: Shape, turns: int) -> bool:
    return shape.dimensions[:1] == (turns,) and shape.element_bits >= 8


def _leading(shape: Shape, turns: int) -> bool:
    return _is_stack(shape, turns) and shape.minor_to_major[-1] == 0


def _is_slice(part: Shape, whole: Shape) -> bool:
    return (
        len(part.dimensions) == len(whole.dimensions)
        and part.minor_to_major == whole.minor_to_major
        and part.element_type == whole.element_type
    )
