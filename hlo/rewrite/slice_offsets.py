"""Addresses of slices that XLA:GPU noted before its scheduler, which a changed loop makes wrong.

For a dynamic-slice or dynamic-update-slice that moves with the iteration of a loop, XLA notes where
it begins, as bytes by iteration ("dynamic_slice_config", `dynamic_slice_annotator.cc`). A fusion
that only copies such a slice then runs as a copy from there, whatever its index says. Without the
note it runs as a kernel that computes the index.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator

from hlo import xla_pb2

_NOTE = "dynamic_slice_config"


def drop_slice_offsets(proto: xla_pb2.HloModuleProto, before: xla_pb2.HloModuleProto) -> None:
    """Drops such notes from a changed module, in place, but for those of slices that run in the
    same fusion, loops and iterations, from the same index, as in `before`, the module without
    changes.
    """
    known = {key for key, _ in _noted(before)}
    for key, i in _noted(proto):
        if key not in known:
            config = json.loads(i.backend_config)
            del config[_NOTE]
            i.backend_config = json.dumps(config, separators=(",", ":")).encode()


def _noted(
    proto: xla_pb2.HloModuleProto,
) -> Iterator[tuple[Hashable, xla_pb2.HloInstructionProto]]:
    """Yields instructions with a note, each after all that decides where its slice begins: equal in
    two modules where that is the same.
    """
    note = _NOTE.encode()
    callers: dict[int, list[tuple[int, xla_pb2.HloInstructionProto]]] = {}
    for c in proto.computations:
        for i in c.instructions:
            for called in i.called_computation_ids:
                callers.setdefault(called, []).append((c.id, i))
    names = {i.id: i.name for c in proto.computations for i in c.instructions}
    scalars = {i.id for c in proto.computations for i in c.instructions if not i.shape.dimensions}

    def place(computation: int) -> Hashable:
        calls = []
        for outer, i in callers.get(computation, ()):
            numbers = tuple(names[k] for k in i.operand_ids if k in scalars)
            count = i.backend_config if i.opcode == "while" else b""
            calls.append((i.name, numbers, count, place(outer)))
        return tuple(calls)

    for c in proto.computations:
        if noted := [i for i in c.instructions if note in i.backend_config]:
            written = tuple(
                (i.name, i.opcode, i.shape.SerializeToString(deterministic=True), i.literal,
                 i.parameter_number, tuple(names[k] for k in i.operand_ids))
                for i in c.instructions
            )  # fmt: skip
            where = c.name, written, place(c.id)
            yield from (((where, i.name), i) for i in noted)
