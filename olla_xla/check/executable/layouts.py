"""Whether each array is read in the layout in which it was written.

Most operations write an array anew: they read the elements of their operands and lay out the result
as they like. Others only pass bytes on, which code behind them reads by a shape of its own, such as
a fused computation's parameter or an element of a loop's state. There both shapes must agree. XLA
checks it up to its scheduler (ShapeVerifier, layout-sensitive), and no more after that.
"""

from collections.abc import Iterator

from hlo import xla_pb2
from hlo.shapes import Shape, shape_from_proto
from hlo.wire import Message
from olla_xla.check.executable.program import Body, Op, Program, leaves
from olla_xla.errors import CheckError

_SAME = frozenset("async-update domain add-dependency dynamic-update-slice all-reduce-done".split())
"""Opcodes that pass on their first operand as it lies."""

_EXCHANGES = frozenset(
    "all-gather all-gather-start all-reduce all-reduce-start all-to-all collective-broadcast "
    "collective-permute collective-permute-start reduce-scatter".split()
)
"""Opcodes by which devices send elements as they lie; each has more or fewer afterwards."""

_HELD = frozenset(
    "fusion call while conditional async-start async-done copy-start copy-done get-tuple-element "
    "all-gather-done collective-permute-done tuple opt-barrier optimization-barrier".split()
).union(_SAME, _EXCHANGES)

_HOST_PROGRAM_SHAPE, _PARAMETERS, _RESULT = 4, 1, 2
"""Fields of HloModuleProto and ProgramShapeProto."""


def check_layouts(program: Program) -> None:
    """Checks that an array's layout changes only at a bitcast or where an array is written anew.

    Raises CheckError if one changes elsewhere, an operation lacks operands or has more, or an
    output takes over the memory of an argument of another size.
    """
    entry = program.entry
    for index, (number, part) in program.aliases.items():
        output, argument = entry.result.shape, entry.parameters[number].shape
        if output.at(index).bytes != argument.at(part).bytes:
            raise CheckError(f"output {list(index)} reuses argument {number}, whose size differs")
    left = [(entry, False)]
    seen: set[Body] = {entry}
    while left:
        body, is_fused = left.pop()
        for op in body.ops:
            if op.opcode in _HELD:
                _check(op, is_fused)
            fresh = [body for body in op.called if body not in seen]
            seen.update(fresh)
            left += ((body, is_fused or op.opcode == "fusion") for body in fresh)


def check_declared(program: Program, module: bytes) -> None:
    """Checks that arguments and results have the layouts that a module declares to its caller.

    `module` is the program, serialized. Raises CheckError, which names the parameter or root.
    """
    declared = Message(Message(module).blob(_HOST_PROGRAM_SHAPE))
    entry = program.entry
    given = zip(declared.messages(_PARAMETERS), entry.parameters, strict=False)
    for message, op in (*given, *((result, entry.result) for result in declared.messages(_RESULT))):
        shape = shape_from_proto(xla_pb2.ShapeProto.FromString(message.encode()))
        for index, part in leaves(shape):
            own = op.shape.at(index).minor_to_major if op.shape.has(index) else None
            if part.minor_to_major and own != part.minor_to_major:
                raise CheckError(f"the layout of {op.name} is not the one that its caller expects")


def _check(op: Op, is_fused: bool) -> None:
    """Raises CheckError if layouts or the number of operands are wrong; fused, tiles may differ."""
    extents = op.opcode not in _EXCHANGES
    try:
        agree = all(_agree(a, b, extents, tiles=not is_fused) for a, b in _pairs(op))
    except (IndexError, ValueError) as error:  # one is missing or left over
        raise CheckError(f"{op.name} has too few or too many operands") from error
    if not agree:
        raise CheckError(f"{op.name} reads or writes an array in a layout that is not the array's")


def _pairs(op: Op) -> Iterator[tuple[Shape, Shape]]:
    """Yields (shape as written, shape as read) of the arrays that `op` passes on or exchanges."""
    given = [operand.shape for operand in op.operands]
    inside = [parameter.shape for body in op.called for parameter in body.parameters]
    roots = [body.result.shape for body in op.called]
    whole, parts = op.shape, op.shape.elements
    written, read = given, parts or (whole,)  # of most collectives
    match op.opcode:
        case "tuple":
            read = parts  # of an empty one none
        case "fusion" | "call":
            written, read = [*given, *roots], [*inside, whole]
        case "while":
            written, read = given * 4, [*inside, roots[0], whole]
        case "conditional":
            written, read = [*given[1:], *roots], [*inside, *[whole] * len(roots)]
        case "async-start":
            written, read = [*given * 2, *roots], [*inside, *parts[0].elements, parts[1]]
        case "copy-start":
            written, read = given * 2, parts[:2]
        case "all-gather-start" | "collective-permute-start":
            read = parts[1].elements or (parts[1],)
        case "get-tuple-element":
            written, read = [given[0].elements[op.proto.tuple_index]], [whole]
        case "copy-done":
            written, read = [given[0].elements[0]], [whole]
        case "async-done" | "all-gather-done" | "collective-permute-done":
            written, read = [given[0].elements[1]], [whole]
        case "opt-barrier" | "optimization-barrier" if len(given) == 1:
            read = [whole]
        case opcode if opcode in _SAME:
            written, read = given[:1], [whole]
    return zip(written, read, strict=True)


def _agree(a: Shape, b: Shape, extents: bool, *, tiles: bool) -> bool:
    """Whether two shapes have equal element types, layouts and, if asked for, extents and tiles."""
    if a is b:
        return True
    if a.elements or b.elements:
        pairs = zip(a.elements, b.elements, strict=True)
        return all(_agree(*pair, extents, tiles=tiles) for pair in pairs)
    lie = [(s.minor_to_major, s.element_type, s.element_bits) for s in (a, b)]
    if lie[0] != lie[1] or (tiles and a.tiles != b.tiles):
        return False
    return not extents or a.dimensions == b.dimensions
