"""Whether two modules differ in the order of their instructions only.

Most plans do. Their results are XLA's own, which is shown without numbering any value.
"""

from __future__ import annotations

from hlo import xla_pb2
from hlo.module import HloError, parse_module_proto
from olla_xla.check.executable.program import is_effect, may_be_effect

_Edges = dict[tuple[int, int], frozenset[int]]
"""(computation, instruction) -> control predecessors, by id."""


def is_reordered(before: bytes, after: bytes) -> bool:
    """Whether two serialized modules are equal but for order, memory and frontend attributes.

    The second one may have more control edges (`read_program` checks that its order keeps them),
    other aliasing of fusions' results (`memory` checks it), and more bitcasts that nothing reads.
    Effects must keep their order, so False where a module has any (`is_effect`).
    """
    try:
        modules = [parse_module_proto(module) for module in (before, after)]
    except HloError:
        return False
    _drop_holds(*modules)
    bare, edges = [], []
    for module in modules:
        edges.append(_bared(module))
        bare.append(module.SerializeToString(deterministic=True))
    if bare[0] != bare[1] or any(not kept <= edges[1][i] for i, kept in edges[0].items()):
        return False
    instructions = (i for c in modules[0].computations for i in c.instructions)
    return not any(may_be_effect(i.opcode) and is_effect(i) for i in instructions)


def _drop_holds(before: xla_pb2.HloModuleProto, after: xla_pb2.HloModuleProto) -> None:
    """Removes from `after` the bitcasts that nothing reads and that `before` does not have."""
    known = {c.id: {i.id for i in c.instructions} for c in before.computations}
    for computation in after.computations:
        ids = known.get(computation.id)
        if ids is None or len(computation.instructions) <= len(ids):
            continue
        read = {k for i in computation.instructions for k in i.operand_ids} | {computation.root_id}
        kept = [
            i
            for i in computation.instructions
            if i.opcode != "bitcast" or i.id in ids or i.id in read
        ]
        whole = xla_pb2.HloComputationProto(instructions=kept)
        del computation.instructions[:]
        computation.instructions.extend(whole.instructions)


def _bared(module: xla_pb2.HloModuleProto) -> _Edges:
    """Clears what may differ in a module, its order included; returns its control edges."""
    edges: _Edges = {}
    for computation in module.computations:
        if computation.id in module.schedule.sequences:
            for i in computation.instructions:
                i.ClearField("frontend_attributes")
                edges[computation.id, i.id] = frozenset(i.control_predecessor_ids)
                i.ClearField("control_predecessor_ids")
                if i.opcode == "fusion":
                    i.ClearField("output_operand_aliasing")
            computation.instructions.sort(key=lambda i: i.id)
    module.ClearField("schedule")
    return edges
