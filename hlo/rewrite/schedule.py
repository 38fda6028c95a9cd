"""Writes a new schedule and annotations into an HLO module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo import xla_pb2
from hlo.module import HloError


def set_schedule(
    proto: xla_pb2.HloModuleProto,
    order: Mapping[str, Sequence[str]],
    attributes: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Sets execution orders of a module, in place, and adds frontend attributes.

    Args:
      proto: a scheduled module.
      order: computation name -> all its instruction names in execution order. Computations that
        are not named keep their schedule.
      attributes: instruction name -> attributes to add, in the computations that `order` names.

    Raises:
      HloError: a name is unknown, or an order is not a permutation of the computation.
    """
    known = {c.name: c for c in proto.computations}
    for name, names in order.items():
        computation = known.get(name)
        if computation is None or computation.id not in proto.schedule.sequences:
            raise HloError(f"the module has no scheduled computation {name}; plan it again")
        sequence = proto.schedule.sequences[computation.id]
        by_id = {i.id: i.name for i in computation.instructions}
        present = set(sequence.instruction_ids)
        scheduled = {
            by_id.get(k) or by_id[(computation.id << 32) | k]: k for k in sequence.instruction_ids
        }
        ids = [scheduled.get(n) for n in names]
        if set(ids) != present or len(ids) != len(present):
            raise HloError(f"the order of {name} is not a permutation of it; plan it again")
        del sequence.instruction_ids[:]
        sequence.instruction_ids.extend(k for k in ids if k is not None)
        for instruction in computation.instructions:
            for key, value in (attributes or {}).get(instruction.name, {}).items():
                instruction.frontend_attributes.map[key] = value


def add_notes(proto: xla_pb2.HloModuleProto, attributes: Mapping[str, Mapping[str, str]]) -> None:
    """Adds frontend attributes in place; `attributes`: instruction name -> key -> value."""
    for computation in proto.computations:
        for instruction in computation.instructions:
            for key, value in attributes.get(instruction.name, {}).items():
                instruction.frontend_attributes.map[key] = value
