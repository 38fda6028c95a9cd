"""Makes fusions write results over operands (output_to_operand_aliasing), and others not do so.

XLA lets a fusion's result take a dying operand's memory, but its heap does so for some values only
(not for one that shares its buffer with others already). Stated on the instruction, the result and
the operand are one buffer for certain. XLA wants both to have the same dimensions; where they
differ, the operand goes through a bitcast, and a second one inside the fusion undoes it.

The other way round, XLA lets a result take over the memory of an operand that dies where the result
is made. A bitcast of the operand that runs next keeps it alive for one step more; nothing reads the
bitcast, and XLA makes no code of it.

XLA lets a fusion's result take over a dying operand's memory if the parameter at the operand's
first place is read element by element. It does not ask about the other places of a value that is
read as several operands (HloDataflowAnalysis::CanShareOperandBufferWithUser;
docs/xla-repeated-operands.md). So the two parameters change their numbers.
"""

from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.inplace import is_elementwise_on
from hlo.instructions import instruction
from hlo.module import HloError, Instruction, Module
from hlo.shapes import ShapeIndex

Alias = tuple[ShapeIndex, int]
"""(index of the result, operand number): that result of a fusion overwrites that operand."""


def add_aliases(proto: xla_pb2.HloModuleProto, aliases: Mapping[str, Sequence[Alias]]) -> set[int]:
    """Binds results of fusions to operands, which they overwrite (output_to_operand_aliasing).

    Args:
      proto: a scheduled module, changed in place.
      aliases: fusion name -> which results overwrite which operands. The caller ensures that each
        operand dies at the fusion, under every order that is to run, and may be overwritten.

    Returns:
      Ids of fused computations in which a parameter was reshaped.

    Raises:
      HloError: an instruction is unknown, not a fusion, or has no such result or operand.
    """
    reshaped: set[int] = set()
    if aliases:
        module = MutableModule(proto)
        for home, fusion in module.find(aliases):
            for index, operand in aliases[fusion.name]:
                if _alias(module, home, fusion, index, operand):
                    reshaped.add(fusion.called_computation_ids[0])
        module.finish()
    return reshaped


def _alias(
    module: MutableModule,
    home: MutableComputation,
    fusion: xla_pb2.HloInstructionProto,
    index: ShapeIndex,
    operand: int,
) -> bool:
    """Makes a fusion's result at `index` overwrite an operand; returns whether that is reshaped."""
    name = fusion.name
    if fusion.opcode != "fusion" or not 0 <= operand < len(fusion.operand_ids):
        raise HloError(f"{name} is not a fusion with an operand {operand}; plan it again")
    result = fusion.shape
    for k in index:
        if k >= len(result.tuple_shapes):
            raise HloError(f"{name} has no result {index}; plan it again")
        result = result.tuple_shapes[k]
    fusion.output_operand_aliasing.add(output_shape_index=index, operand_index=operand)
    given = home.operands(fusion)[operand]
    if list(given.shape.dimensions) == list(result.dimensions):
        return False
    outer = instruction("bitcast", f"{name}.operand_{operand}", result, [given])
    fusion.operand_ids[operand] = home.add(outer, before=fusion).id
    body = module.called(fusion)
    parameter = body.parameter(operand)
    inner = instruction("bitcast", f"{parameter.name}.as_given", given.shape, [parameter])
    body.replace(parameter, body.add(inner, after=parameter), but=inner)
    parameter.shape.CopyFrom(result)
    return True


def hold_name(name: str, operand: int) -> str:
    """Names the bitcast by which `add_holds` keeps operand number `operand` of `name` live."""
    return f"{name}.holds_{operand}"


def add_holds(proto: xla_pb2.HloModuleProto, holds: Mapping[str, Sequence[int]]) -> None:
    """Keeps operands live past an instruction, by a bitcast of each scheduled right after it.
    Raises HloError if an instruction or operand is unknown, or there is no schedule.

    Args:
      proto: a scheduled module, changed in place.
      holds: instruction name -> numbers of its operands that stay live; they must be arrays.
    """
    if not holds:
        return
    module = MutableModule(proto)
    for home, i in module.find(holds):
        for operand in holds[i.name]:
            if not 0 <= operand < len(i.operand_ids):
                raise HloError(f"{i.name} has no operand {operand}; plan it again")
            held = home.operands(i)[operand]
            added = instruction("bitcast", hold_name(i.name, operand), held.shape, [held])
            added.control_predecessor_ids.append(i.id)
            home.add(added, after=i)
    module.finish()


def unasked(module: Module) -> list[tuple[int, int, int]]:
    """Finds fusions that read one value as two operands, only the first of them elementwise.

    XLA's rule for which operand a result may overwrite checks the first alone. Returns (fused
    computation's id, number of the first operand, of the other one).
    """
    fusions = (i for c in module.control_computations for i in c.instructions)
    repeated = []
    for i in fusions:
        if i.opcode == "fusion" and len(set(i.operands)) < len(i.operands):
            repeated += [(i.called[0].id, *places) for places in _places(i)]
    return repeated


def _places(fusion: Instruction) -> list[tuple[int, int]]:
    first = {o: k for k, o in reversed(list(enumerate(fusion.operands)))}
    moved = {
        first[o]: k
        for k, o in enumerate(fusion.operands)
        if first[o] != k and not is_elementwise_on(fusion, k)
    }
    return [(a, b) for a, b in moved.items() if is_elementwise_on(fusion, a)]


def ask_about_others(proto: xla_pb2.HloModuleProto, places: list[tuple[int, int, int]]) -> None:
    """Swaps two parameters of a fused computation that get the same value, in place.

    XLA's rule for which operand a result may overwrite checks the first alone: now the other one.

    Args:
      places: (id of the fused computation, parameter, other parameter), as `unasked` gives them.
    """
    module = MutableModule(proto)
    for body, a, b in places:
        one, other = (module.body(body).parameter(k) for k in (a, b))
        one.parameter_number, other.parameter_number = b, a
