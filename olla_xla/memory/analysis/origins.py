"""Where a value comes from: its op name, and the line of the user's own code that made it.

A line is the user's own where its file is in no library: neither installed, nor part of Python or
of olla_xla (whose zoo of models counts as the user's). Of an operation's call stack the innermost
such line is taken. What XLA made without metadata (copies, layout changes) is led back to what it
was made from, or else to what reads it; `via` says so.
"""

from __future__ import annotations

import functools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hlo.module import Computation, Instruction
from hlo.shapes import ShapeIndex
from hlo.stack_frames import Frame
from hlo.values import Dataflow, Value

__all__ = ["Origin", "Origins", "is_users_file"]

_PACKAGE = str(Path(__file__).parents[2])
_INSTALLED = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d|^<|/jax/(_src|experimental|interpreters)/"
)
_NO_FILE = ("", "-")
"""What XLA calls the file of text without locations."""
_FAR = 4
"""Instructions to go through from one without metadata."""


class Origin(NamedTuple):
    """Where a value comes from.

    Attributes:
      op_name: JAX's name of the operation, or "".
      line: "file:line" of the user's own code, or "". function: that the line is in, or "".
      via: whose line it is, where it is not the value's own.
      why: why there is no line, or "".
    """

    op_name: str
    line: str
    function: str
    via: str
    why: str


@functools.lru_cache(maxsize=4096)
def is_users_file(file: str) -> bool:
    """Whether a source file is the user's own: part of no library."""
    if file in _NO_FILE:
        return False
    standard = sysconfig.get_paths()["stdlib"]
    return not (file.startswith((_PACKAGE + "/", standard)) or _INSTALLED.search(file))


class Origins:
    """Finds the origins of a module's values."""

    def __init__(self, dataflow: Dataflow) -> None:
        self._module = dataflow.module
        self._callers: dict[Computation, Instruction] = {
            callee: i
            for computation in dataflow.module.control_computations
            for i in computation.instructions
            for callee in i.called_control
        }
        self._found: dict[tuple[Instruction, ShapeIndex], Origin] = {}

    def of(self, value: Value) -> Origin:
        """The origin of a value."""
        return self.at(value.instruction, value.index)

    def at(self, i: Instruction, index: ShapeIndex = ()) -> Origin:
        """The origin of what an instruction makes at an index."""
        if (i, index) not in self._found:
            self._found[i, index] = self._find(i, index)
        return self._found[i, index]

    def _find(self, i: Instruction, index: ShapeIndex) -> Origin:
        op_name, innermost = "", ""
        for candidate, via in self._candidates(i, index):
            if candidate.opcode != "parameter":  # whose name is its path
                op_name = op_name or candidate.op_name.split(";")[0]
            stack = self._module.stack(candidate)
            if frame := _users(stack):
                return Origin(op_name, frame.location, frame.function, via, "")
            known = [frame.location for frame in stack if frame.file not in _NO_FILE]
            innermost = innermost or "".join(known[:1])
        if innermost:
            why = f"traced in library code alone ({innermost})"
        else:
            why = "neither it, nor what it is made from, nor what reads it has a line in the module"
        return Origin(op_name, "", "", "", why)

    def _candidates(self, i: Instruction, index: ShapeIndex) -> Iterator[tuple[Instruction, str]]:
        """Instructions that tell where a value comes from, the most telling first."""
        own = list(_within(i, index, self._callers))
        yield from ((candidate, "") for candidate in own)
        for ahead in (False, True):
            edge, seen = own, {*own}
            for _ in range(_FAR):
                near = [n for c in edge for n in (c.users if ahead else c.operands)]
                edge = [n for n in dict.fromkeys(near) if n not in seen]
                seen.update(edge)
                for n in edge:
                    via = f"read by {n.name}" if ahead else f"made from {n.name}"
                    yield from ((inner, via) for inner in _within(n, (), self._callers))


def _users(stack: tuple[Frame, ...]) -> Frame | None:
    """The innermost call in the user's own code."""
    return next((frame for frame in stack if is_users_file(frame.file)), None)


def _within(
    i: Instruction, index: ShapeIndex, callers: dict[Computation, Instruction]
) -> Iterator[Instruction]:
    """What makes a value inside its instruction, the most telling first; then the instruction."""
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
    """What makes an element of a computation's result."""
    if root is None or root.opcode == "parameter":
        return
    if root.opcode == "tuple" and index:
        root, index = root.operands[index[0]], index[1:]
    passed_on = root.opcode == "get-tuple-element" and root.operands[0].opcode == "parameter"
    if not passed_on and root.opcode != "parameter":
        yield from _slice_written(root, index, callers)
        yield from _within(root, index, callers)


def _slice_written(
    writer: Instruction, index: ShapeIndex, callers: dict[Computation, Instruction]
) -> Iterator[Instruction]:
    """What makes the slice that a loop writes to a stack: it tells more than the writing."""
    made = _made(writer.called[0].root, index) if writer.opcode == "fusion" else writer
    if made is None or made.opcode != "dynamic-update-slice":
        return
    update = _moved(made.operands[1])
    if update.opcode == "parameter" and made is not writer:
        update = _moved(writer.operands[update.parameter_number])
    if update.opcode != "parameter":
        yield from _within(update, (), callers)


def _moved(i: Instruction) -> Instruction:
    """What an instruction only moves, or makes another shape of."""
    while i.opcode in ("bitcast", "reshape", "copy"):
        i = i.operands[0]
    return i


def _made(root: Instruction | None, index: ShapeIndex) -> Instruction | None:
    """The instruction of a fused computation that makes an element of its result."""
    if root is not None and root.opcode == "tuple" and index:
        root = root.operands[index[0]]
    while root is not None and not root.op_name and root.opcode in ("bitcast", "copy", "convert"):
        root = root.operands[0]
    return root
