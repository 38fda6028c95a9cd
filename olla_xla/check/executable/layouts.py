"""Whether each array is read in the layout in which it was written.

Most operations write an array anew: they read the elements of their operands and may lay out their
result as they like. Some write nothing: the code behind them reads the same bytes by a shape of its
own, such as a fused computation's parameter or an element of a loop's state. There both shapes must
agree. XLA checks it up to its scheduler (ShapeVerifier, layout-sensitive), and no more after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hlo.shapes import Shape
from olla_xla.check.executable.program import Body, Op, Program, leaves
from olla_xla.errors import CheckError

__all__ = ["check_layouts", "entry_layouts"]

_Pairs = Iterator[tuple[Shape, Shape]]
"""Shapes by which the same bytes are written and read."""


def check_layouts(program: Program) -> None:
    """Shows that nothing but a bitcast or what writes an array anew gives it another layout.

    Raises:
      CheckError: something does; the message names the instruction. Or an output takes over the
        memory of an argument of another size.
    """
    entry = program.entry
    for index, (number, part) in program.aliases.items():
        output, argument = entry.result.shape, entry.parameters[number].shape
        if output.at(index).bytes != argument.at(part).bytes:
            raise CheckError(f"output {list(index)} lies in argument {number}, of another size")
    seen: set[Body] = {entry}
    left = [entry]
    while left:
        for op in left.pop().ops:
            rule = _RULES.get(op.opcode)
            try:
                agree = rule is None or all(_agree(a, b) for a, b in rule(op))
            except (IndexError, ValueError) as error:  # no such element, or a wrong number of them
                raise CheckError(f"{op.name} has other operands than its shape tells") from error
            if not agree:
                raise CheckError(
                    f"{op.name} reads or writes an array in another layout than it has"
                )
            fresh = [body for body in op.called if body not in seen]
            seen.update(fresh)
            left += fresh


def entry_layouts(program: Program) -> list[list[tuple[int, ...]]]:
    """How each argument of a module lies, and at last its results: arrays' `minor_to_major`.

    XLA makes an executable's own layouts of it, and JAX passes arguments as they lie by default.
    """
    ends = (*program.entry.parameters, program.entry.result)
    return [[part.minor_to_major for _, part in leaves(op.shape)] for op in ends]


def _agree(a: Shape, b: Shape) -> bool:
    """Whether two shapes put the same elements at the same places."""
    if a is b:
        return True
    if a.elements or b.elements:
        return len(a.elements) == len(b.elements) and all(map(_agree, a.elements, b.elements))
    kinds = [(s.element_type, s.dimensions, s.element_bits, s.tiles) for s in (a, b)]
    return kinds[0] == kinds[1] and a.minor_to_major == b.minor_to_major


def _call(op: Op) -> _Pairs:
    (body,) = op.called
    yield from _given(op, body)
    yield body.result.shape, op.shape


def _given(op: Op, body: Body) -> _Pairs:
    for operand, parameter in zip(op.operands, body.parameters, strict=True):
        yield operand.shape, parameter.shape


def _start(op: Op) -> _Pairs:
    (body,) = op.called
    yield from _given(op, body)
    yield body.result.shape, op.shape.elements[1]
    for operand, element in zip(op.operands, op.shape.elements[0].elements, strict=True):
        yield operand.shape, element


def _loop(op: Op) -> _Pairs:
    (start,) = op.operands
    for body in op.called:
        yield start.shape, body.parameters[0].shape
    yield start.shape, op.called[0].result.shape
    yield start.shape, op.shape


def _choice(op: Op) -> _Pairs:
    for operand, body in zip(op.operands[1:], op.called, strict=True):
        yield operand.shape, body.parameters[0].shape
        yield body.result.shape, op.shape


def _pack(op: Op) -> _Pairs:
    for operand, element in zip(op.operands, op.shape.elements, strict=True):
        yield operand.shape, element


def _same(op: Op) -> _Pairs:
    yield op.operands[0].shape, op.shape


def _each(op: Op) -> _Pairs:
    """One result for each operand."""
    return _same(op) if len(op.operands) == 1 else _pack(op)


def _element(number: int) -> Callable[[Op], _Pairs]:
    def rule(op: Op) -> _Pairs:
        yield op.operands[0].shape.elements[number], op.shape

    return rule


def _repeated(op: Op) -> _Pairs:
    """copy-start: the copy, and the operand again."""
    for element in op.shape.elements[:2]:
        yield op.operands[0].shape, element


def _taken(op: Op) -> _Pairs:
    yield op.operands[0].shape.elements[op.proto.tuple_index], op.shape


_RULES: dict[str, Callable[[Op], _Pairs]] = {
    "tuple": _pack,
    "get-tuple-element": _taken,
    "fusion": _call,
    "call": _call,
    "while": _loop,
    "conditional": _choice,
    "async-start": _start,
    "async-update": _same,
    "async-done": _element(1),
    "copy-start": _repeated,
    "copy-done": _element(0),
    "all-gather-done": _element(1),
    "collective-permute-done": _element(1),
    "all-reduce-done": _same,
    "all-reduce-start": _each,
    "opt-barrier": _each,
    "optimization-barrier": _each,
    "domain": _same,
    "add-dependency": _same,
    "dynamic-update-slice": _same,
    "all-reduce": _each,
}
"""Opcode -> the pairs of shapes that must agree; opcodes without a rule write their result anew."""
