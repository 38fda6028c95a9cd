"""Removes optimization barriers from a scheduled module, as XLA does right after its hook.

They have done their work by then (OptimizationBarrierExpander). What goes through one is read from
its source; tuples made for them, and what took values out again, go too, and then what nothing else
reads (RemoveInstructionAndUnusedOperands). A plan is for the module that is left, whose lifetimes
and in-place reuse are those that XLA assigns buffers by.
"""

import collections

from hlo.graph import MutableComputation, MutableModule
from hlo.module import Module, module_from_bytes, module_from_proto, parse_module_proto

_REMOVABLE = frozenset("tuple get-tuple-element bitcast copy constant fusion".split())
"""Opcodes without side effects, of what barriers alone may read."""


def without_barriers(data: bytes) -> Module:
    """Reads a serialized module, and removes its optimization barriers as XLA does later.

    Those in fusions, with control edges or with several operands stay. Raises HloError if `data` is
    no module.
    """
    if b"opt-barrier" not in data and b"optimization-barrier" not in data:
        return module_from_bytes(data)
    proto = parse_module_proto(data)
    module = MutableModule(proto)
    scheduled = [module.body(c.id) for c in proto.computations if c.id in proto.schedule.sequences]
    if not any([_expand(body) for body in scheduled]):
        return module_from_bytes(data)
    module.finish()
    return module_from_proto(proto)


def _expand(body: MutableComputation) -> bool:
    """Removes a computation's barriers, and what only they read; returns whether it removed any."""
    instructions = body.instructions()
    by_id = {i.id: i for i in instructions}
    tied = {k for i in instructions for k in i.control_predecessor_ids}
    tied |= {i.id for i in instructions if i.control_predecessor_ids}
    instead: dict[int, int] = {}
    touched: set[int] = set()
    for i in instructions:  # operands come before who reads them
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
    root = instead.get(body.root.id, body.root.id)
    body.computation.root_id = root
    gone = set(instead)
    uses = collections.Counter(k for i in instructions if i.id not in gone for k in i.operand_ids)
    done = gone | tied | {root}
    for i in reversed(instructions):  # who reads a value comes before it
        unread = i.id not in done and not uses[i.id]
        if i.id in touched and i.opcode in _REMOVABLE and unread:
            gone.add(i.id)
            touched.update(i.operand_ids)
            uses.subtract(i.operand_ids)
    body.remove(gone)
    body.reorder()
    return True
