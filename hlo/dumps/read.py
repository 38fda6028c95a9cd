"""Reads HLO from files: protos, HLO text and StableHLO, all to one serialized form.

Files may be compressed by gzip.
"""

from __future__ import annotations

from pathlib import Path

from hlo import xla_pb2
from hlo.dumps.calls import flatten, is_shared
from hlo.dumps.copies import insert_copies
from hlo.files import read_regular, unpacked
from hlo.gc_pause import without_collection
from hlo.module import HloError, module_from_proto, parse_module_proto
from hlo.parse import from_hlo_text, from_stablehlo


def read_module(path: str | Path, target: str = "cpu") -> bytes:
    """A serialized, scheduled HloModuleProto from a file of HLO text, StableHLO or an HLO proto.

    A module without a schedule (StableHLO, HLO before scheduling) is made `runnable`, and runs in
    program order.

    Args:
      path: of the file. target: "cpu" or "cuda", what the module is for.

    Raises:
      HloError: the file cannot be read or is none of these.
    """
    data = read_file(path)
    try:
        return with_program_order(runnable(to_hlo(data), target))
    except HloError as error:
        raise HloError(f"{path}: {error}") from error
    except RecursionError as error:
        raise HloError(f"{path}: computations call each other too deeply") from error


def read_file(path: str | Path) -> str | bytes:
    """A file's content, decompressed: str if it is text, else bytes. Raises HloError."""
    try:
        data = unpacked(read_regular(path))
    except OSError as error:
        raise HloError(f"cannot read {path}: {error.strerror or error}") from error
    if not data:
        raise HloError(f"{path} is empty; dump the module again")
    text = _text(data)
    return data if text is None else text


def to_hlo(data: str | bytes) -> bytes:
    """A file's content as a serialized HloModuleProto, from HLO text, StableHLO or an HLO proto.

    Raises:
      HloError: it is none of these.
    """
    if isinstance(data, bytes):
        return parse_module_proto(data).SerializeToString(deterministic=True)
    if data.lstrip().startswith("HloModule"):
        return from_hlo_text(data)
    if "module" in data and ("stablehlo" in data or "func.func" in data):
        return from_stablehlo(data)
    raise HloError("not HLO text, StableHLO or an HLO proto; pass a dump of XLA's")


def _text(data: bytes) -> str | None:
    """The file as text, or None if it is binary."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if any(c < " " and c not in "\t\n\r\f" for c in text) else text


def runnable(module: bytes, target: str = "cpu") -> bytes:
    """The module in the form that XLA's own pipeline gives it before it schedules.

    Each control computation is called from one place (`hlo.dumps.calls`). If the module has no
    schedule, values that must have one buffer are copied where they are alive together
    (`hlo.dumps.copies`). A schedule is kept; a scheduled module without shared calls is returned
    as it came.

    Args:
      module: serialized. target: "cpu" or "cuda", whose in-place rules say which values these are.

    Raises:
      HloError: the module cannot be read.
    """
    proto = parse_module_proto(module)
    module_from_proto(proto)  # refuses what refers to nothing
    scheduled = proto.entry_computation_id in proto.schedule.sequences
    if scheduled and not is_shared(proto):
        return module
    with without_collection():
        flatten(proto)
        if not scheduled:
            insert_copies(proto, target)
    return proto.SerializeToString(deterministic=True)


def with_program_order(module: bytes) -> bytes:
    """The serialized module with a schedule, by instruction id, wherever one is missing."""
    proto = parse_module_proto(module)
    view = module_from_proto(proto)
    missing = [c for c in view.control_computations if c.schedule is None]
    if not missing:
        return module
    for computation in missing:
        # Ids are given in program order, so operands precede their users.
        ids = sorted(i.id for i in computation.instructions)
        proto.schedule.sequences[computation.id].CopyFrom(
            xla_pb2.HloScheduleProto.InstructionSequence(instruction_ids=ids)
        )
    return proto.SerializeToString(deterministic=True)
