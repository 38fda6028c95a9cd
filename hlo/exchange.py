"""Collectives: what devices exchange, and when two of them give the same value."""

from typing import Any

from hlo import xla_pb2
from hlo.device_groups import groups_listed
from hlo.module import Computation, Instruction

MOVING = frozenset({"all-gather", "collective-broadcast", "collective-permute"})
"""Collectives that compute nothing: the result of one operand does not depend on the others."""

REPEATABLE = MOVING | {"all-reduce", "all-to-all", "reduce-scatter"}
"""Collectives that give the same values for the same operands, as XLA's rematerialization assumes.
The library chooses the order of their sums for all operands together."""

STARTS = frozenset({"all-gather-start", "collective-permute-start"})
"""Opcodes that start one of `MOVING`: of their result, element 1 is what it gives, element 0 the
operand; what follows is the transfer's state."""


def is_asynchronous(i: Instruction) -> bool:
    """Whether an instruction is a part of an asynchronous operation (-start, -update or -done)."""
    return i.opcode.endswith(("-start", "-done", "-update"))


def is_transfer(i: Instruction) -> bool:
    """Whether `i` is a collective that may run again (`REPEATABLE`), or a start, update or done."""
    return i.opcode in REPEATABLE or is_asynchronous(i)


def started_by(i: Instruction) -> Instruction | None:
    """Returns `i` if it starts (`STARTS`) a transfer of one array in device memory; else None."""
    if i.opcode not in STARTS or len(i.operands) != 1 or len(i.shape.elements) < 2:
        return None
    parts = (i.operands[0].shape, *i.shape.elements[:2])
    return i if all(p.is_array and p.memory_space == 0 for p in parts) else None


def run_by(i: Instruction) -> Instruction | None:
    """Returns the collective of `REPEATABLE` that `i` is, or that `i` runs if it is an async-start.

    None if there is none, if the async-start wraps more than it, if an operand is a tuple, or if an
    array is not in the default memory space.
    """
    if i.opcode == "async-start":
        inner = i.called[0]
        root = inner.root
        if root is None or list(root.operands) != inner.parameters:
            return None
        i = root
    if i.opcode not in REPEATABLE or any(not o.shape.is_array for o in i.operands):
        return None
    parts = [part for k in (i, *i.operands) for _, part in k.shape.indices()]
    return None if any(part.memory_space for part in parts) else i


def asked(i: Instruction) -> bytes:
    """Returns a key of a collective, equal where device groups and options are.
    The channel's number, the result's shape and the backend config are left out.
    """
    copy = xla_pb2.HloInstructionProto.FromString(i.attributes)
    copy.ClearField("shape")
    copy.ClearField("backend_config")
    copy.channel_id = 1 if copy.channel_id else 0
    return groups_listed(copy.SerializeToString(deterministic=True))


def reduction(i: Instruction) -> tuple[Any, ...]:
    """Returns a key of the computations by which a collective reduces, equal if they are alike."""
    return tuple(_form(c) for c in i.called)


def _form(computation: Computation) -> tuple[Any, ...]:
    at = {i: k for k, i in enumerate(computation.instructions)}
    return tuple(
        (i.attributes, tuple(at[o] for o in i.operands), reduction(i), i.is_root)
        for i in computation.instructions
    )
