"""What reads a value, by the phases of a train step: inside fusions and loops, however it is moved.

A weight is read by the derivative and by its update, state of the optimizer by the update alone, a
batch by the derivative alone. Results that are derivatives replace no argument.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hlo import exchange
from hlo.module import Instruction, Module
from hlo.values import Dataflow, Use, Value
from hlo.walk import after_needs
from olla_xla.analysis.op_names import Phase, phase_of

DERIVATIVE = frozenset((Phase.FORWARD, Phase.BACKWARD, Phase.AGAIN))
"""Phases of what is differentiated, or a derivative."""

MOVING = frozenset(
    "bitcast broadcast convert copy copy-done copy-start dynamic-slice pad reshape slice "
    "transpose".split()
)
"""Opcodes of what hands a value, or a part of it, on in another place, layout or type."""

_FAR = 200
"""Values to go through at most, from one on."""


class Reading(NamedTuple):
    """In which phases of a train step (forward, backward, update) a value is read.

    Attributes:
      direct: those of what reads the value itself, or a moved copy of it.
      reached: those too of what reads the results of these, up to the derivative.
    """

    direct: frozenset[Phase]
    reached: frozenset[Phase]


def reading(dataflow: Dataflow, value: Value) -> Reading:
    """The train-step phases in which a value is read, by the op names of what reads it.
    Readers are followed into fusions and loops, up to about 200 values; those without an op name
    tell no phase.
    """
    direct: set[Phase] = set()
    reached: set[Phase] = set()
    edge, seen = [(value, True)], {value}
    while edge and len(seen) < _FAR:
        edge, before = [], edge
        for start, is_direct in before:
            for op_names, results, moves in _steps(dataflow, start):
                phases = {phase_of(name) for name in op_names if name}
                reached |= phases
                if is_direct:
                    direct |= phases
                if phases & DERIVATIVE and not moves:
                    continue  # the derivative leads to every update
                for result in results:
                    if result not in seen:
                        seen.add(result)
                        edge.append((result, is_direct and moves))
    return Reading(frozenset(direct), frozenset(reached))


def _steps(dataflow: Dataflow, value: Value) -> Iterator[tuple[list[str], list[Value], bool]]:
    """For each reader: (JAX op names of what uses `value` or []; values made; if it only moves)."""
    for use in value.uses:
        i = use.instruction
        results = [dataflow.at[i, k] for k, _ in i.shape.indices() if (i, k) in dataflow.at]
        if i.opcode == "while":
            carried = dataflow.at.get((i.called[0].parameters[0], use.index))
            yield [], [carried] if carried is not None else [], True
        elif i.opcode in MOVING:
            yield [], results, True
        elif is_handed_on(i):
            yield [], _of_operand(dataflow, use), True
        elif i.opcode == "fusion":
            names, moved = _fused(use)
            yield names, results, moved
        else:
            yield [i.op_name], results, False


def is_handed_on(i: Instruction) -> bool:
    """Whether an instruction only moves arrays between devices, such as an all-gather."""
    if i.opcode.endswith("-done") and i.operands:
        i = i.operands[0]
    if i.opcode == "async-start" and i.called and i.called[0].root is not None:
        i = i.called[0].root
    return i.opcode in exchange.MOVING or i.opcode in exchange.STARTS


def _of_operand(dataflow: Dataflow, use: Use) -> list[Value]:
    """The results of a collective or transfer that hold this operand, as moved between devices."""
    i = use.instruction
    number = use.index[-1] if use.index else use.operand
    several = len(i.operands) > 1 or len(use.index) > 1
    results = [(k, dataflow.at[i, k]) for k, _ in i.shape.indices() if (i, k) in dataflow.at]
    return [v for k, v in results if k and k[-1] == number] if several else [v for _, v in results]


def _fused(use: Use) -> tuple[list[str], bool]:
    """(op names of a fusion's readers of an operand, whether the fusion only moves the operand)."""
    given = use.instruction.called[0].parameters[use.operand]
    moved = after_needs([given], lambda i: (u for u in i.users if u.opcode in MOVING))
    names = [u.op_name for i in moved for u in i.users if u.opcode not in ("tuple", *MOVING)]
    return names, not names


def trains(module: Module) -> bool:
    """Whether an instruction of the module, in any computation, is of the backward pass."""
    names = (i.op_name for c in module.computations for i in c.instructions)
    return any(phase_of(name) is Phase.BACKWARD for name in names)


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
    """Op names of a fused instruction and of all that it is computed from within the fusion."""
    seen = after_needs([] if made is None else [made], lambda i: i.operands)
    return {i.op_name for i in seen if i.opcode not in ("parameter", *MOVING)}
