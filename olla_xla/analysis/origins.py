"""Where a value comes from: its op name, and the line of the step's own code that made it.

`memory.sources` says which line of an operation's call stack that is. What XLA made without
metadata (copies, layout changes) gets the origin of what it was made from, or else of what reads
it; `via` says which.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hlo.module import Computation, Instruction
from hlo.shapes import ShapeIndex
from hlo.values import Dataflow, Value
from olla_xla.memory.sources import Source, source_of

_FAR = 4
"""Most instructions to go through from one without metadata."""

_MOVES = ("bitcast", "reshape", "copy")
"""Opcodes of what only moves a value, or makes another shape of it."""


class Origin(NamedTuple):
    """The JAX operation and the source line that a value comes from.

    Attributes:
      op_name: JAX's name of the operation, or "".
      line: "file:line" of the step's own code, or of a library if only that is known; or "".
      function: the function that the line is in, or "".
      via: how the line was found, such as "read by NAME"; "" if it is the value's own.
      why: why there is no line, or "".
      caller, chain, layer: as in `memory.sources.Source`; "" and () without a line.
    """

    op_name: str
    line: str
    function: str
    via: str
    why: str
    caller: str = ""
    chain: tuple[str, ...] = ()
    layer: str = ""


class Origins:
    """Finds the op names and source lines of a module's values; results are cached."""

    def __init__(self, dataflow: Dataflow) -> None:
        self._callers: dict[Computation, Instruction] = {
            callee: i
            for computation in dataflow.module.control_computations
            for i in computation.instructions
            for callee in i.called_control
        }
        self._found: dict[tuple[Instruction, ShapeIndex], Origin] = {}
        every = (i for c in dataflow.module.computations for i in c.instructions)
        self._has_metadata = any(i.op_name or i.location for i in every)

    def of(self, value: Value) -> Origin:
        """Returns the JAX op name and the source line that a value comes from."""
        return self.at(value.instruction, value.index)

    def at(self, i: Instruction, index: ShapeIndex = ()) -> Origin:
        """Returns the origin of an instruction's result, or of its part at tuple index `index`."""
        if (i, index) not in self._found:
            self._found[i, index] = self._find(i, index)
        return self._found[i, index]

    def _find(self, i: Instruction, index: ShapeIndex) -> Origin:
        op_name, library = "", Source("", "", False, "", (), "")
        for candidate, via in self._candidates(i, index):
            if candidate.opcode != "parameter":  # whose name is its path
                op_name = op_name or candidate.op_name.split(";")[0]
            source = source_of(candidate.stack, candidate.op_name)
            if source is None:
                continue
            if source.is_own:
                rest = source.caller, source.chain, source.layer
                return Origin(op_name, source.line, source.function, via, "", *rest)
            library = library if library.line else source
        if library.line:
            return Origin(
                op_name,
                library.line,
                library.function,
                "traced by library code, without a line of your own",
                "",
                layer=library.layer,
            )
        why = "the module has no source line for the tensor, its operands or its readers"
        return Origin(op_name, "", "", "", why)

    def _candidates(self, i: Instruction, index: ShapeIndex) -> Iterator[tuple[Instruction, str]]:
        """Yields (instruction whose metadata may tell where result `index` of `i` is from, how).
        The latter is "" if it makes the result, else such as "read by NAME". The best come first.
        """
        own = list(_within(i, index, self._callers))
        yield from ((candidate, "") for candidate in own)
        for ahead in (False, True) if self._has_metadata else ():
            edge, seen = own, {*own}
            for _ in range(_FAR):
                near = [n for c in edge for n in (self._users(c) if ahead else c.operands)]
                edge = [n for n in dict.fromkeys(near) if n not in seen]
                seen.update(edge)
                for n in edge:
                    via = f"read by {n.name}" if ahead else f"made from {n.name}"
                    yield from ((inner, via) for inner in _within(n, (), self._callers))

    def _users(self, i: Instruction) -> Sequence[Instruction]:
        """The instructions that read `i`; for the root of an async computation, its async-start."""
        caller = self._callers.get(i.computation)
        wrapped = i.is_root and caller is not None and caller.opcode == "async-start"
        return [caller] if wrapped and caller is not None else i.users


def _within(
    i: Instruction, index: ShapeIndex, callers: dict[Computation, Instruction]
) -> Iterator[Instruction]:
    """Yields instructions, in what `i` calls or reads, that compute its result `index`, the best
    first; last is `i` itself. `callers`: computation -> the instruction that calls it.
    """
    caller = callers.get(i.computation)
    if i.opcode == "get-tuple-element":
        yield from _within(i.operands[0], (i.tuple_index, *index), callers)
    elif i.opcode == "parameter" and caller is not None and caller.opcode == "while":
        yield from _element(caller.called[0].root, index, callers)
        yield caller
    elif i.opcode == "while":
        yield from _element(i.called[0].root, index, callers)
    elif i.opcode in ("call", "async-start", "conditional"):
        yield from _element(i.called[0].root, index, callers)
    elif i.opcode == "fusion":
        body = i.called[0]
        made = _made(body.root, index)
        if made is not None:
            yield made
        yield i
        yield from reversed(body.instructions)
    yield i


def _element(
    root: Instruction | None, index: ShapeIndex, callers: dict[Computation, Instruction]
) -> Iterator[Instruction]:
    """Yields instructions that compute element `index` of the result `root` of a computation, none
    if it is handed through as it came. `callers`: computation -> the instruction that calls it.
    """
    if root is None or root.opcode == "parameter":
        return
    if root.opcode == "tuple" and index:
        root, index = root.operands[index[0]], index[1:]
    if not _is_carried(root) and root.opcode != "parameter":
        yield from _slice_written(root, index, callers)
        yield from _within(root, index, callers)


def _slice_written(
    writer: Instruction, index: ShapeIndex, callers: dict[Computation, Instruction]
) -> Iterator[Instruction]:
    """If `writer` updates a slice of a loop's array, yields the instructions that compute that.
    `callers`: computation -> the instruction that calls it.
    """
    body, writer, start = writer.computation, writer.behind(*_MOVES), None
    if writer.opcode == "async-done":
        start = writer.operands[0]
        inner = start.called[0].root if start.called else None
        if inner is None:
            return
        writer = inner
    made = _made(writer.called[0].root, index) if writer.opcode == "fusion" else writer
    if made is None or made.opcode != "dynamic-update-slice":
        return
    update = made.operands[1].behind(*_MOVES)
    if update.opcode == "parameter" and made is not writer:
        update = writer.operands[update.parameter_number].behind(*_MOVES)
    if update.opcode == "parameter" and start is not None:
        update = start.operands[update.parameter_number].behind(*_MOVES)
    if _is_carried(update):  # made by the iteration before
        root, k = body.root, update.tuple_index
        update = root.operands[k] if root is not None and root.opcode == "tuple" else update
        update = update.behind(*_MOVES)
    if update.opcode != "parameter" and not _is_carried(update):
        yield from _within(update, (), callers)


def _is_carried(i: Instruction) -> bool:
    return i.opcode == "get-tuple-element" and i.operands[0].opcode == "parameter"


def _made(root: Instruction | None, index: ShapeIndex) -> Instruction | None:
    """Element `index` of a fusion's root, behind bitcasts, copies and converts without op_name."""
    if root is not None and root.opcode == "tuple" and index:
        root = root.operands[index[0]]
    while root is not None and not root.op_name and root.opcode in ("bitcast", "copy", "convert"):
        root = root.operands[0]
    return root
