"""Keeps XLA from rematerialising instructions whose operands have been overwritten meanwhile.

XLA:GPU's rematerialization runs after a module was scheduled, where that takes more memory than the
device has. It clones instructions and does not know which values share memory: an argument and the
result that replaces it, the states of a loop, a bound result and the operand that it overwrites. A
clone that reads one of them after the next was written reads the wrong one. But XLA leaves an
instruction alone once a control successor of it is placed (MemoryUsageTracker::GetCostOfRecompute).
So here each reader gets one: the next writer of that memory. Control edges have no other effect
after XLA's scheduler, except that an instruction with one is not removed as dead.
"""

import bisect
import collections
from collections.abc import Iterable, Mapping, Sequence

from hlo import xla_pb2
from hlo.graph import MutableComputation, MutableModule
from hlo.instructions import instruction
from hlo.module import Computation, Instruction
from hlo.values import Value

_HANDING = ("bitcast", "get-tuple-element")

Orders = Mapping[Computation, Sequence[Instruction]]


def add_guards(
    proto: xla_pb2.HloModuleProto, buffers: Iterable[list[Value]], orders: Orders
) -> None:
    """Adds control edges that keep the planned order of reads and writes of each shared buffer.

    A fusion that is bound to overwrite an operand needs a control successor, too: an instruction
    that forwards its result, which is scheduled, or added, right behind it.

    Args:
      proto: a scheduled module, changed in place. buffers: sets of values that share a buffer.
      orders: execution orders of the computations that these values are in, as scheduled.
    """
    edges, alone = _needed(buffers, orders)
    module = MutableModule(proto)
    holders = module.find(edges.keys() | alone, {c.id for c in orders})
    for home, i in holders:
        known = set(i.control_predecessor_ids)
        added = sorted(home.named(name).id for name in edges.get(i.name, ()))
        i.control_predecessor_ids.extend(k for k in added if k not in known)
    handing: dict[int, dict[int, list[xla_pb2.HloInstructionProto]]] = {}
    for home, i in holders:
        if i.name in alone:
            where = home.computation.id
            if where not in handing:
                handing[where] = _handing(home)
            _put_behind(i, home, handing[where].get(i.id, []))
    for home in module.bodies():
        home.reorder()
    module.finish()


def _needed(buffers: Iterable[list[Value]], orders: Orders) -> tuple[dict[str, set[str]], set[str]]:
    """Finds edges (writer of a shared buffer -> earlier readers) and fusions that XLA may clone.
    All are names. The fusions are those that are bound to overwrite an operand (`_may_be_cloned`).
    """
    steps: dict[Computation, dict[Instruction, int]] = {}
    edges: dict[str, set[str]] = collections.defaultdict(set)
    alone: set[str] = set()
    for values in buffers:
        if len(values) < 2:
            continue
        for computation in dict.fromkeys(v.instruction.computation for v in values):
            if computation not in orders:
                continue
            if computation not in steps:
                steps[computation] = {i: k for k, i in enumerate(orders[computation])}
            step = steps[computation]
            writers = {step[v.instruction]: v for v in values if v.instruction in step}
            _add(values, writers, step, edges)
            alone |= {
                v.instruction.name
                for v in writers.values()
                if v.instruction.opcode == "fusion" and _may_be_cloned(v, values)
            }
    return edges, alone


def _add(
    values: Iterable[Value],
    writers: Mapping[int, Value],
    step: Mapping[Instruction, int],
    edges: dict[str, set[str]],
) -> None:
    """Adds the name of each reader of a shared buffer to `edges`, under that of the next writer.

    Args:
      values: of the buffer. writers: step -> the value of the buffer that is defined then.
      step: by instruction, its place in the execution order.
    """
    times = sorted(writers)
    for reader in {use.instruction for value in values for use in value.uses}:
        if reader in step and not _is_idle(reader):
            k = bisect.bisect_right(times, step[reader])
            if k < len(times):
                edges[writers[times[k]].instruction.name].add(reader.name)


def _is_idle(reader: Instruction) -> bool:
    """Whether XLA's rematerialization never clones a reader, or only to no effect."""
    return reader.opcode in (*_HANDING, "tuple", "parameter", "while", "conditional", "custom-call")


def _may_be_cloned(value: Value, values: Iterable[Value]) -> bool:
    """Whether XLA may clone a fusion that is bound to write `value` over another of `values`.
    It does not if the value is part of the computation's result. What overwrites an operand by
    XLA's own rules does so in any order, and is left as it is.
    """
    writer = value.instruction
    if not writer.aliasing:
        return False
    reads = any(use.instruction is writer for other in values for use in other.uses)
    return reads and not any(i is writer.computation.root for i, _ in value.positions)


def _handing(home: MutableComputation) -> dict[int, list[xla_pb2.HloInstructionProto]]:
    """Maps an instruction's id to the bitcasts and get-tuple-elements that read it."""
    readers: dict[int, list[xla_pb2.HloInstructionProto]] = collections.defaultdict(list)
    for i in home.instructions():
        if i.opcode in _HANDING:
            readers[i.operand_ids[0]].append(i)
    return readers


def _put_behind(
    fusion: xla_pb2.HloInstructionProto,
    home: MutableComputation,
    handing: Sequence[xla_pb2.HloInstructionProto],
) -> None:
    """Schedules an instruction that forwards a fusion's result right behind it, by control edge.
    It is one of `handing`, which forward it, or a new bitcast where they have control predecessors.
    Nothing is done then if the result is a tuple.
    """
    handed = next((i for i in handing if not i.control_predecessor_ids), None)
    if handed is not None:
        home.order.remove(handed.id)
    elif fusion.shape.tuple_shapes:
        return  # no part of it is taken out, so XLA does not clone it
    else:
        name = f"{fusion.name}.is_placed"
        handed = home.add(instruction("bitcast", name, fusion.shape, [fusion]))
    handed.control_predecessor_ids.append(fusion.id)
    home.order.insert(home.order.index(fusion.id) + 1, handed.id)
