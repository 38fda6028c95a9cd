"""Sorts values of a module into categories."""

from collections.abc import Callable, Sequence

from hlo.inplace import in_place_pairs
from hlo.module import Computation, Instruction
from hlo.values import Dataflow, Value
from olla_xla.analysis.arguments import Argument
from olla_xla.analysis.category import Category
from olla_xla.analysis.op_names import Phase, phase_of
from olla_xla.analysis.origins import Origins
from olla_xla.analysis.reading import MOVING, is_handed_on

_SCRATCH = frozenset(("s8", "u8"))
"""Element types of what libraries use as scratch memory."""


def categories(
    dataflow: Dataflow, origins: Origins, given: Sequence[Argument], target: str
) -> Callable[[Value], Category]:
    """A function that finds the `Category` of a value of a module.

    An output that replaces an argument has the argument's category. So have, mostly, copies and
    slices of an argument, in any layout or type, and what loops carry from it to that output.
    Constants, other outputs and arrays filled by loops have categories of their own. The rest goes
    by op names: what `jax.checkpoint` computes again; a value of the forward pass that the backward
    pass reads, an activation; a number made by the backward pass, a gradient; else workspace.
    `dataflow` has the module's values, `origins` finds their origins, `given` are its arguments,
    and `target` is "cpu", "cuda" or "tpu".
    """
    kinds = {a.value: a.category for a in given}
    of_buffer = {dataflow.values[a.value.id].buffer: a for a in given}
    stacks = _stacks(dataflow, origins, target)
    replaced = _replacements(dataflow, of_buffer, stacks)
    loops = {
        callee: i
        for computation in dataflow.module.control_computations
        for i in computation.instructions
        if i.opcode == "while"
        for callee in i.called
    }

    def category(value: Value) -> Category:
        if value.instruction.opcode == "constant":
            return Category.CONSTANTS
        if value in kinds:
            return kinds[value]
        if value in replaced:
            return replaced[value]
        if value.live_out:
            return Category.OUTPUTS
        if value.shape.is_tuple or _is_scratch(value):
            return Category.WORKSPACE
        if value.buffer in stacks:
            return stacks[value.buffer]
        moved = _moved(value, dataflow, kinds, stacks, loops)
        return moved or _by_phase(value, dataflow, origins, loops)

    return category


def _replacements(
    dataflow: Dataflow, of_buffer: dict[int, Argument], stacks: dict[int, Category]
) -> dict[Value, Category]:
    """The categories of values in arguments' or outputs' memory, or copied to an output at the end.
    They have that of the argument in whose memory they are; without one they are outputs.
    `of_buffer`, `stacks`: number of a buffer -> the argument in it; its category if loops fill it.
    """
    replaced: dict[Value, Category] = {}
    for value in dataflow.values:
        argument = of_buffer.get(value.buffer)
        if argument is None or value.shape.is_tuple:
            continue
        state = argument.category is not Category.BATCH  # a loop may work in a batch's memory
        if value.live_out or (state and value.shape.bytes == argument.value.shape.bytes):
            replaced[value] = argument.category
    for value, category in list(replaced.items()):
        while value.instruction.opcode in ("copy", "bitcast") and value.live_out:
            value = dataflow.at[value.instruction.operands[0], ()]
            if value in replaced or value.instruction.opcode == "parameter":
                break
            replaced[value] = category
            same = dataflow.buffers[value.buffer] if value.buffer not in of_buffer else []
            replaced |= {v: category for v in same if v.shape.bytes == value.shape.bytes}
    known = of_buffer.keys() | stacks.keys()
    for value in dataflow.values:
        if value.live_out and value.buffer not in known:
            for same in dataflow.buffers[value.buffer]:
                if same.shape == value.shape:
                    replaced.setdefault(same, Category.OUTPUTS)
    return replaced


def _is_scratch(value: Value) -> bool:
    """Whether a value is a byte array that a custom call returns for use as its own workspace."""
    custom = value.instruction.opcode == "custom-call" and bool(value.index)
    return custom and value.shape.dtype in _SCRATCH and len(value.shape.dimensions) == 1


def _moved(
    value: Value,
    dataflow: Dataflow,
    kinds: dict[Value, Category],
    stacks: dict[int, Category],
    loops: dict[Computation, Instruction],
) -> Category | None:
    """The category of the value of which this one is a copy or a part; None if it is computed.

    Copies may differ in layout and type. A slice of an array that a loop fills is an activation.
    What a loop carries has its initial value's category, unless that is the batch; parts of other
    arguments have none. `kinds`: of arguments. `stacks`: of buffers, by number, that loops fill.
    `loops`: body -> while.
    """
    seen: set[Value] = set()
    is_carried, size = False, value.shape.bytes
    while value not in seen:
        seen.add(value)
        if value in kinds:
            kind, whole = kinds[value], value.shape.bytes == size
            data = kind is Category.BATCH and is_carried
            part = kind is Category.ARGUMENTS and not whole
            return None if data or part else kind
        if value.buffer in stacks and len(seen) > 1:
            stacked = stacks[value.buffer]
            return Category.ACTIVATIONS if stacked is Category.STACKS else stacked
        maker = value.instruction
        if maker.opcode == "while" or (maker.opcode == "parameter" and maker.computation in loops):
            loop = loops.get(maker.computation, maker) if maker.opcode == "parameter" else maker
            before = dataflow.at.get((loop.operands[0], value.index))
            is_carried = True
        elif is_handed_on(maker):
            before = _gathered(value, dataflow)
        elif maker.opcode == "fusion":
            before = _only_moved(value, dataflow)
        elif maker.opcode in MOVING and maker.operands and not value.index:
            before = dataflow.at.get((maker.operands[0], ()))
        else:
            before = None
        if before is None:
            return None
        value = before
    return None


def _gathered(value: Value, dataflow: Dataflow) -> Value | None:
    """The operand that a collective or a transfer between devices moves into `value`; or None."""
    maker = value.instruction
    if maker.opcode.endswith("-done"):
        maker = maker.operands[0]
    if len(maker.operands) == 1:
        return dataflow.at.get((maker.operands[0], ()))
    return dataflow.at.get((maker.operands[value.index[-1]], ())) if value.index else None


def _only_moved(value: Value, dataflow: Dataflow) -> Value | None:
    """The fusion operand of which the fusion's result `value` is a mere copy or slice; or None."""
    fusion = value.instruction
    inner = fusion.called[0].root
    if inner is not None and inner.opcode == "tuple" and value.index:
        inner = inner.operands[value.index[0]]
    while inner is not None and inner.opcode in MOVING:
        inner = inner.operands[0]
    if inner is None or inner.opcode != "parameter":
        return None
    return dataflow.at.get((fusion.operands[inner.parameter_number], ()))


def _by_phase(
    value: Value, dataflow: Dataflow, origins: Origins, loops: dict[Computation, Instruction]
) -> Category:
    phase = phase_of(origins.of(value).op_name)
    if phase is Phase.FORWARD:
        readers = {phase_of(origins.at(use.instruction).op_name) for use in value.uses}
        if readers & {Phase.BACKWARD, Phase.AGAIN}:
            return Category.ACTIVATIONS
    if phase is Phase.AGAIN:
        return Category.AGAIN
    if value.shape.dtype[0] in "fbc" and (
        phase is Phase.BACKWARD or (phase is Phase.OTHER and _of_gradient(value, dataflow, loops))
    ):
        return Category.GRADIENTS
    return Category.WORKSPACE


def _of_gradient(value: Value, dataflow: Dataflow, loops: dict[Computation, Instruction]) -> bool:
    """Whether a value, as a sum over iterations, is computed from one of equal size that the
    backward pass makes, or by fused operations of that pass. `loops`: computation -> its while.
    """
    maker = value.instruction
    if maker.opcode in ("parameter", "while"):
        loop = loops.get(maker.computation, maker) if maker.opcode == "parameter" else maker
        root = loop.called[0].root if loop.opcode == "while" else None
        made = None if root is None else dataflow.at.get((root, value.index))
        if made is None or made is value or made.instruction.opcode == "while":
            return False
        maker = made.instruction
    operands = [dataflow.at.get((operand, ())) for operand in maker.operands]
    inside = maker.called[0].instructions if maker.opcode == "fusion" else []
    makers = [o.instruction for o in operands if o and o.shape.bytes == value.shape.bytes]
    return any(phase_of(i.op_name) is Phase.BACKWARD for i in (*makers, *inside))


def _stacks(dataflow: Dataflow, origins: Origins, target: str) -> dict[int, Category]:
    """Number of a buffer that a while loop writes one slice each iteration -> its category.
    Gradients in a loop of the backward pass, and "arrays filled by loops" in others.
    """
    stacks: dict[int, Category] = {}
    for computation in dataflow.module.control_computations:
        for i in computation.instructions:
            if i.opcode != "while":
                continue
            phase = phase_of(origins.at(i).op_name)
            backward = phase in (Phase.BACKWARD, Phase.AGAIN)
            category = Category.GRADIENTS if backward else Category.STACKS
            for value in _written_in_slices(dataflow, i.called[0], target):
                stacks.setdefault(value.buffer, category)
    return stacks


def _written_in_slices(dataflow: Dataflow, body: Computation, target: str) -> list[Value]:
    """The values of a while loop's state of which its body overwrites parts in place."""
    root, state = body.root, body.parameters[0]
    assert root is not None
    written = []
    for index, shape in state.shape.indices():
        if shape.is_tuple or not shape.dimensions:
            continue
        carried = dataflow.at[state, index]
        result = dataflow.at[root, index]
        if result is not carried and _updates(dataflow, result, carried, target):
            written.append(carried)
    return written


def _updates(dataflow: Dataflow, result: Value, carried: Value, target: str) -> bool:
    """Whether `result` is the loop state's element `carried` with parts overwritten in place."""
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
