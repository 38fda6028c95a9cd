"""Sorts every value of a module into a category."""

from __future__ import annotations

from collections.abc import Sequence

from hlo.inplace import in_place_pairs
from hlo.module import Computation, Instruction
from hlo.values import Dataflow, Value
from olla_xla.memory.analysis.arguments import Argument
from olla_xla.memory.analysis.category import Category
from olla_xla.memory.analysis.op_names import Phase, phase_of
from olla_xla.memory.analysis.origins import Origins

__all__ = ["categories"]

_SCRATCH = frozenset(("s8", "u8"))
"""Element types of what libraries use as scratch memory."""


def categories(
    dataflow: Dataflow, origins: Origins, given: Sequence[Argument], target: str
) -> list[Category]:
    """The category of each value, by id.

    Values are what their operations' names say: a value of the forward pass that the backward pass
    reads is an activation kept for it, a number made by the backward pass is a gradient, and what
    an output replaces an argument with is what the argument was, as is a copy of an argument, in
    whatever layout or type. Whatever is left is workspace.

    Args:
      dataflow: the module's values. origins: of them. given: the module's arguments.
      target: "cpu" or "cuda".
    """
    of_buffer = _of_arguments(dataflow, given)
    stacks = _stacks(dataflow, origins, target)
    result = []
    for value in dataflow.values:
        fixed = of_buffer.get(value.buffer)
        if value.instruction.opcode == "constant":
            result.append(Category.CONSTANTS)
        elif fixed is not None and (value.live_out or _is_entry_parameter(value, dataflow)):
            result.append(fixed)
        elif value.live_out:
            result.append(Category.OUTPUTS)
        elif value.shape.is_tuple or _is_scratch(value):
            result.append(Category.WORKSPACE)
        elif value.buffer in stacks:
            result.append(stacks[value.buffer])
        elif (copied := _copied(value, dataflow)) is not None and copied.buffer in of_buffer:
            result.append(of_buffer[copied.buffer])
        else:
            result.append(_by_phase(value, origins))
    return result


def _of_arguments(dataflow: Dataflow, given: Sequence[Argument]) -> dict[int, Category]:
    """By alias set, the category of the argument in it."""
    return {dataflow.values[a.value.id].buffer: a.category for a in given}


def _is_entry_parameter(value: Value, dataflow: Dataflow) -> bool:
    i = value.instruction
    return i.opcode == "parameter" and i.computation is dataflow.module.entry


def _is_scratch(value: Value) -> bool:
    """Whether a library's call uses it beside its result, as XLA's GPU libraries do."""
    custom = value.instruction.opcode == "custom-call" and bool(value.index)
    return custom and value.shape.dtype in _SCRATCH and len(value.shape.dimensions) == 1


_MOVING = frozenset("parameter bitcast convert copy reshape transpose".split())


def _copied(value: Value, dataflow: Dataflow) -> Value | None:
    """The entry argument that a value is a copy of, in whatever layout or type; or None."""
    for _ in range(3):  # a conversion, a change of layout, a copy for a loop
        maker = value.instruction
        inside = [i.opcode for i in maker.called[0].instructions] if maker.called else []
        only_moves = maker.opcode == "fusion" and _MOVING.issuperset(inside)
        if value.index or len(maker.operands) != 1:
            return None
        if not only_moves and (maker.opcode == "parameter" or maker.opcode not in _MOVING):
            return None
        value = dataflow.at[maker.operands[0], ()]
        if _is_entry_parameter(value, dataflow):
            return value
    return None


def _by_phase(value: Value, origins: Origins) -> Category:
    phase = phase_of(origins.of(value).op_name)
    if phase is Phase.FORWARD:
        readers = {phase_of(origins.at(use.instruction).op_name) for use in value.uses}
        if readers & {Phase.BACKWARD, Phase.AGAIN}:
            return Category.ACTIVATIONS
    if phase is Phase.BACKWARD and value.shape.dtype[0] in "fbc":
        return Category.GRADIENTS
    return Category.WORKSPACE


def _stacks(dataflow: Dataflow, origins: Origins, target: str) -> dict[int, Category]:
    """By alias set, the category of what loops write slice by slice.

    A loop of the backward pass stacks gradients; any other stacks what the backward pass reads, or
    results.
    """
    found: dict[int, Category] = {}
    for computation in dataflow.module.control_computations:
        for i in computation.instructions:
            if i.opcode != "while":
                continue
            phase = phase_of(origins.at(i).op_name)
            backward = phase in (Phase.BACKWARD, Phase.AGAIN)
            category = Category.GRADIENTS if backward else Category.STACKS
            for value in _written_in_slices(dataflow, i.called[0], target):
                found.setdefault(value.buffer, category)
    return found


def _written_in_slices(dataflow: Dataflow, body: Computation, target: str) -> list[Value]:
    """The elements of a loop's state that its body updates in place."""
    root, state = body.root, body.parameters[0]
    assert root is not None
    found = []
    for index, shape in state.shape.indices():
        if shape.is_tuple or not shape.dimensions:
            continue
        carried = dataflow.at[state, index]
        result = dataflow.at[root, index]
        if result is not carried and _updates(dataflow, result, carried, target):
            found.append(carried)
    return found


def _updates(dataflow: Dataflow, result: Value, carried: Value, target: str) -> bool:
    """Whether a value is made by writing parts of what the loop carries."""
    seen: set[Instruction] = set()
    while result is not carried and result.instruction not in seen:
        maker = result.instruction
        seen.add(maker)
        over = [p for p in in_place_pairs(maker, target) if p[2] == result.index]
        if maker.opcode == "while":
            operand, inner = 0, result.index
        elif over:
            operand, inner, _ = over[0]
        else:
            return False
        result = dataflow.at[maker.operands[operand], inner]
    return result is carried
