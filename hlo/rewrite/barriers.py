"""Takes optimization barriers out of a scheduled module, as XLA does right after its hook.

They have done their work by then (OptimizationBarrierExpander). What goes through one is read from
its source; tuples made for them, and what took values out again, go too. A plan is for the module
that is left, whose lifetimes and in-place reuse are those that XLA assigns buffers by.
"""

from __future__ import annotations

from hlo import xla_pb2
from hlo.module import Module, module_from_bytes, module_from_proto, parse_module_proto
from hlo.rewrite.walk import put_in_post_order

_LOCAL = (1 << 32) - 1


def without_barriers(data: bytes) -> Module:
    """Reads a serialized module, and removes its optimization barriers as XLA does later.

    Barriers in fusions or with control edges stay. Raises HloError if `data` is no module.
    """
    if b"opt-barrier" not in data and b"optimization-barrier" not in data:
        return module_from_bytes(data)
    proto = parse_module_proto(data)
    changed = False
    for computation in proto.computations:
        if computation.id in proto.schedule.sequences:
            changed |= _expand(proto, computation)
    return module_from_proto(proto) if changed else module_from_bytes(data)


def _expand(proto: xla_pb2.HloModuleProto, computation: xla_pb2.HloComputationProto) -> bool:
    """Takes the barriers out of one computation; whether there were any."""
    by_id = {i.id: i for i in computation.instructions}
    tied = {k for i in computation.instructions for k in i.control_predecessor_ids}
    tied |= {i.id for i in computation.instructions if i.control_predecessor_ids}
    instead: dict[int, int] = {}
    touched: set[int] = set()
    for i in computation.instructions:  # operands come before who reads them
        for k, operand in enumerate(i.operand_ids):
            i.operand_ids[k] = instead.get(operand, operand)
        if i.id in tied:
            continue
        source = by_id[i.operand_ids[0]] if i.operand_ids else i
        if i.opcode in ("opt-barrier", "optimization-barrier") and len(i.operand_ids) == 1:
            instead[i.id] = source.id
            touched |= {i.id, source.id}
        elif i.opcode == "get-tuple-element" and source.opcode == "tuple" and source.id in touched:
            instead[i.id] = source.operand_ids[i.tuple_index]
            touched.add(i.id)
    if not instead:
        return False
    computation.root_id = instead.get(computation.root_id, computation.root_id)
    gone = set(instead)
    read = {k for i in computation.instructions if i.id not in gone for k in i.operand_ids}
    for number in touched - gone:
        if by_id[number].opcode == "tuple" and number not in read | tied | {computation.root_id}:
            gone.add(number)
    kept = [i for i in computation.instructions if i.id not in gone]
    whole = xla_pb2.HloComputationProto(instructions=kept)
    del computation.instructions[:]
    computation.instructions.extend(whole.instructions)
    put_in_post_order(computation)
    ids = proto.schedule.sequences[computation.id].instruction_ids
    lost = {k & _LOCAL for k in gone}
    left = [k for k in ids if k & _LOCAL not in lost]
    del ids[:]
    ids.extend(left)
    return True
