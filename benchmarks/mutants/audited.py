"""XLA's own executable of a step with faults, judged by the audit, which knows no other module.

Faults of the module are put into XLA's schedule, before XLA assigns memory and emits code. Others
are put into thunks: which bytes they access, and in what order they run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks.mutants.cases import Case
from benchmarks.mutants.kinds import AUDITED, OVERLAP
from benchmarks.mutants.subject import Subject
from benchmarks.thunks import mutants, subject
from hlo.cpu_executable import CpuExecutable, CpuThunk
from hlo.gpu_executable import GpuExecutable
from hlo.gpu_thunks import Flow
from hlo.wire import Message, read_varint, varint
from hlo.xla_pb2 import BufferAssignmentProto, HloModuleProto
from olla_xla.compile.accounting import final_module
from olla_xla.tools.audit.audit import audit_compiled, audit_parts
from olla_xla.tools.audit.report import ExecutableParts
from olla_xla.tools.capture import Compiled


class AuditedSubject(Subject):
    """As `Subject`, with XLA's own schedule for a plan."""

    _kinds = AUDITED

    def _plan(self, captured: Compiled, case: Case) -> tuple[bytes, str]:
        return captured.module, "{}"

    def _handed_back(self, module: bytes) -> str:
        return ""  # an audit sees executables

    def _judge(self, compiled: jax.stages.Compiled, executable: bytes = b"") -> str:
        module = self._lowered.compiler_ir()
        if executable:
            parts = ExecutableParts("cpu", final_module(compiled), b"", executable)
            found = audit_parts(parts, module)
        else:
            found = audit_compiled(compiled, module)
        return f"{found.findings[0].check}: {found.findings[0].message}" if not found else ""

    def _is_fault(self, kind: str, data: bytes) -> bool:
        if not kind.startswith("layout"):
            return True
        laid, now = (_laid(HloModuleProto.FromString(m)) for m in (self.planned, data))
        return all(laid.get(bitcast) == source for bitcast, source in now.items())

    def _fault(self, kind: str, seed: str) -> tuple[str, bytes] | None:
        if kind == OVERLAP:
            return super()._fault(kind, seed)
        own = CpuExecutable(self._executable)
        places = own.assignment.SerializeToString()
        whole = GpuExecutable(own.thunks, places, own.sizes, {}, {}, 0)
        of = subject.Subject("", final_module(self._compiled), whole)
        made = next(mutants.mutants(of, kind, random.Random(seed)), None)
        return made and (made.what, encoded(own, made.executable))


def _laid(module: HloModuleProto) -> dict[str, bytes]:
    """Bitcast -> the shape of its operand, where no other rule says how that lies.

    Another one makes another program, as sound as the first: a bitcast tells which bytes are read,
    and not which elements they are. XLA's kernels then write and read them alike.
    """
    found = {}
    for computation in module.computations:
        by_id = {i.id: i for i in computation.instructions}
        for i in computation.instructions:
            if i.opcode == "bitcast" and by_id[i.operand_ids[0]].opcode not in _LAID:
                shape = by_id[i.operand_ids[0]].shape
                found[i.name] = shape.SerializeToString(deterministic=True)
    return found


_LAID = frozenset("parameter fusion call while conditional get-tuple-element bitcast".split())
"""Opcodes whose results lie as another instruction says."""


def encoded(own: CpuExecutable, changed: GpuExecutable) -> bytes:
    """A CPU's executable, serialized, with thunks elsewhere, in another order, or left out.

    Args:
      own: as XLA made it. changed: thunks of the same numbers, and the buffer assignment.
    """
    places = [[a.slice for a in thunk.accesses] for thunk in own.flat]
    for thunk in changed.all_thunks:
        assert isinstance(thunk, CpuThunk)
        places[thunk.number] = [a.slice for a in thunk.accesses]
    proto = BufferAssignmentProto.FromString(changed.assignment)
    values = {
        a.logical_buffer_id: (allocation.index, a.offset)
        for allocation in proto.buffer_allocations
        for a in allocation.assigned
    }
    data = own.relocated(places, {}, values)
    length, start = read_varint(data, 0)
    outer = Message(data[start + length :])
    result = Message(outer.blob(1))
    kept: list[bytes] = []
    _thunks(result.blob(6), kept)
    result.set_blob(6, _sequence(changed.thunks, kept))
    outer.set_blob(1, result.encode())
    return data[: start + length] + outer.encode()


_INNER = {3: (1,), 4: (1,), 10: (1, 2)}
"""Field of a ThunkProto, a call, a conditional and a loop -> fields with sequences of thunks."""


def _thunks(sequence: bytes, found: list[bytes]) -> None:
    """Adds the thunks of a sequence, and those inside them, in the order of their numbers."""
    for thunk in Message(sequence).messages(1):
        found.append(thunk.encode())
        for field in thunk.numbers() & _INNER.keys():
            for number in _INNER[field]:
                for inner in thunk.message(field).messages(number):
                    _thunks(inner.encode(), found)


def _sequence(thunks: Sequence[Any], kept: list[bytes]) -> bytes:
    """A sequence of thunks, serialized."""
    parts = (_thunk(thunk, kept) for thunk in thunks)
    return b"".join(varint(1 << 3 | 2) + varint(len(part)) + part for part in parts)


def _thunk(thunk: CpuThunk, kept: list[bytes]) -> bytes:
    whole = Message(kept[thunk.number])
    for field in whole.numbers() & _INNER.keys() if thunk.flow is not Flow.BRANCH else ():
        body = Message(whole.blob(field))
        for number, inner in zip(_INNER[field], thunk.inner, strict=True):
            body.set_blob(number, _sequence(inner, kept))
        whole.set_blob(field, body.encode())
    return whole.encode()
