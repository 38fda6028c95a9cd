"""Whether a module is another in a different order, and nothing else.

Most plans are that. Then the results are XLA's own, and no value need be numbered to see it.
"""

from __future__ import annotations

from hlo import xla_pb2
from hlo.module import HloError, parse_module_proto
from olla_xla.check.executable.program import is_effect, may_be_effect

__all__ = ["is_reordered"]

_Edges = dict[tuple[int, int], frozenset[int]]
"""(computation, instruction) -> control predecessors, by id."""


def is_reordered(before: bytes, after: bytes) -> bool:
    """Whether two serialized modules differ in order and frontend attributes alone.

    The second one may have more control edges, which its order keeps or it cannot be read.
    What others can see has to keep its order, so False where there is any of it (`is_effect`).
    """
    try:
        modules = [parse_module_proto(module) for module in (before, after)]
    except HloError:
        return False
    bare, edges = [], []
    for module in modules:
        edges.append(_bared(module))
        bare.append(module.SerializeToString(deterministic=True))
    if bare[0] != bare[1] or any(not kept <= edges[1][i] for i, kept in edges[0].items()):
        return False
    instructions = (i for c in modules[0].computations for i in c.instructions)
    return not any(may_be_effect(i.opcode) and is_effect(i) for i in instructions)


def _bared(module: xla_pb2.HloModuleProto) -> _Edges:
    """Takes out of a module what its order decides, and gives its control edges."""
    edges: _Edges = {}
    for computation in module.computations:
        if computation.id in module.schedule.sequences:
            for i in computation.instructions:
                i.ClearField("frontend_attributes")
                edges[computation.id, i.id] = frozenset(i.control_predecessor_ids)
                i.ClearField("control_predecessor_ids")
            computation.instructions.sort(key=lambda i: i.id)
    module.ClearField("schedule")
    return edges
