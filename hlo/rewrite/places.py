"""Fusions that read one value as several operands: which of them XLA asks about.

XLA lets a fusion's result take over a dying operand's memory if the parameter at the operand's
first place is read element by element. It does not ask about the other places
(HloDataflowAnalysis::CanShareOperandBufferWithUser; docs/xla-repeated-operands.md).
"""

from __future__ import annotations

from hlo import xla_pb2
from hlo.inplace import is_elementwise_on
from hlo.module import Instruction, Module


def unasked(module: Module) -> list[tuple[int, int, int]]:
    """Fusions with a value as two operands, of which only the first is read elementwise.

    XLA's sharing rule looks at the first alone. Returns (body's id, first operand, other operand).
    """
    fusions = (i for c in module.control_computations for i in c.instructions)
    found = []
    for i in fusions:
        if i.opcode == "fusion" and len(set(i.operands)) < len(i.operands):
            found += [(i.called[0].id, *places) for places in _places(i)]
    return found


def _places(fusion: Instruction) -> list[tuple[int, int]]:
    first = {o: k for k, o in reversed(list(enumerate(fusion.operands)))}
    moved = {
        first[o]: k
        for k, o in enumerate(fusion.operands)
        if first[o] != k and not is_elementwise_on(fusion, k)
    }
    return [(a, b) for a, b in moved.items() if is_elementwise_on(fusion, a)]


def ask_about_others(proto: xla_pb2.HloModuleProto, places: list[tuple[int, int, int]]) -> None:
    """Swaps, in place, the numbers of the two parameters in each of `places`, from `unasked`."""
    bodies = {c.id: c for c in proto.computations}
    for body, a, b in places:
        for i in bodies[body].instructions:
            if i.opcode == "parameter" and i.parameter_number in (a, b):
                i.parameter_number = a + b - i.parameter_number
