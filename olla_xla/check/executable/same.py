"""Whether a module is another in a different order, and nothing else.

Most plans are that. Then the results are XLA's own, and no value need be numbered to see it.
"""

from __future__ import annotations

from hlo.module import HloError, parse_module_proto
from olla_xla.check.executable.program import is_effect, may_be_effect

__all__ = ["is_reordered"]


def is_reordered(before: bytes, after: bytes) -> bool:
    """Whether two serialized modules differ in their schedules and frontend attributes alone.

    What others can see has to keep its order, so False where there is any of it (`is_effect`).
    """
    try:
        modules = [parse_module_proto(module) for module in (before, after)]
    except HloError:
        return False
    bare = []
    for module in modules:
        for computation in module.computations:
            if computation.id in module.schedule.sequences:
                for i in computation.instructions:
                    i.ClearField("frontend_attributes")
        module.ClearField("schedule")
        bare.append(module.SerializeToString(deterministic=True))
    if bare[0] != bare[1]:
        return False
    instructions = (i for c in modules[0].computations for i in c.instructions)
    return not any(may_be_effect(i.opcode) and is_effect(i) for i in instructions)
