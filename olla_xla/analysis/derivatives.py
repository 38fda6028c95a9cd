"""Which results of a module are derivatives: they replace no argument, though of its type."""

from __future__ import annotations

from hlo.module import Instruction, Module
from olla_xla.analysis.op_names import Phase, phase_of
from olla_xla.analysis.reading import MOVING


def derivatives(module: Module) -> set[int]:
    """Numbers of the module's results that are gradients; updated parameters are not."""
    root = module.entry.root
    assert root is not None
    results = root.operands if root.opcode == "tuple" else [root]
    return {number for number, result in enumerate(results) if _is_derivative(result)}


def _is_derivative(result: Instruction) -> bool:
    index: int | None = None
    while result.opcode in (*MOVING, "get-tuple-element") and result.operands:
        if result.opcode == "get-tuple-element":
            index = result.tuple_index
        if phase_of(result.op_name) is Phase.BACKWARD:
            return True
        result = result.operands[0]
    if result.opcode != "fusion":
        return phase_of(result.op_name) is Phase.BACKWARD
    made = result.called[0].root
    if made is not None and made.opcode == "tuple" and index is not None:
        made = made.operands[index]
    phases = {phase_of(name) for name in _names(made) if name}
    return Phase.BACKWARD in phases and Phase.OTHER not in phases


def _names(made: Instruction | None) -> set[str]:
    """The names of what an instruction of a fused computation is made from, and its own."""
    edge = [] if made is None else [made]
    seen = set(edge)
    while edge:
        for operand in edge.pop().operands:
            if operand not in seen:
                seen.add(operand)
                edge.append(operand)
    return {i.op_name for i in seen if i.opcode not in ("parameter", *MOVING)}
