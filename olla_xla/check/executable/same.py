"""Whether an executable has XLA's own instructions: the same one by one, in whatever order.

Then its results are XLA's own too, and nothing needs to be numbered to see it.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo import xla_pb2
from hlo.module import HloError, parse_module_proto
from olla_xla.check.executable.program import is_effect

__all__ = ["same_instructions"]

_OWN = (
    "id operand_ids control_predecessor_ids called_computation_ids metadata frontend_attributes"
).split()
"""Fields that are compared otherwise, or decide neither results nor code."""


def same_instructions(before: bytes, after: bytes) -> bool:
    """Whether two serialized modules differ in nothing but order, ids and notes.

    What others can see (`is_effect`) would have to keep its order, so a module with any of it is
    not the same as another here; neither are modules that list their instructions differently.
    """
    try:
        a, b = parse_module_proto(before), parse_module_proto(after)
    except HloError:
        return False
    if len(a.computations) != len(b.computations):
        return False
    names = [{c.id: c.name for c in module.computations} for module in (a, b)]
    if names[0].get(a.entry_computation_id) != names[1].get(b.entry_computation_id):
        return False
    bodies = {c.name: c for c in b.computations}
    if len(bodies) != len(b.computations):
        return False
    return all(
        c.name in bodies and _same_body(c, bodies[c.name], names[0], names[1])
        for c in a.computations
    )


def _same_body(
    a: xla_pb2.HloComputationProto,
    b: xla_pb2.HloComputationProto,
    called_a: Mapping[int, str],
    called_b: Mapping[int, str],
) -> bool:
    """Whether two computations are the same; takes what is compared out of them."""
    if len(a.instructions) != len(b.instructions):
        return False
    at_a = {i.id: k for k, i in enumerate(a.instructions)}
    at_b = {i.id: k for k, i in enumerate(b.instructions)}
    if at_a.get(a.root_id) != at_b.get(b.root_id):
        return False
    for p, q in zip(a.instructions, b.instructions, strict=True):
        if is_effect(p):
            return False
        if [at_a.get(k) for k in p.operand_ids] != [at_b.get(k) for k in q.operand_ids]:
            return False
        if p.called_computation_ids or q.called_computation_ids:
            inner_a = [called_a.get(k) for k in p.called_computation_ids]
            if inner_a != [called_b.get(k) for k in q.called_computation_ids]:
                return False
        for field in _OWN:
            p.ClearField(field)
            q.ClearField(field)
        if p.SerializeToString(deterministic=True) != q.SerializeToString(deterministic=True):
            return False
    return True
