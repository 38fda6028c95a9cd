"""What the referee says of a rewritten module, and of the executable made of it."""

from __future__ import annotations

from hlo import xla_pb2
from hlo.shapes import ShapeIndex
from olla_xla.errors import CheckError
from olla_xla.referee.expressions import results_digest
from olla_xla.referee.memory import Place, assigned_places, run, shared_buffers
from olla_xla.referee.program import Body, Program, read_program
from olla_xla.referee.values import follow

__all__ = ["check_executable", "check_rewrite"]


def check_executable(
    module: bytes, target: str, *, results: str | None = None, assignment: bytes = b""
) -> None:
    """Shows that an executable computes what it should, and reads nothing that was overwritten.

    Args:
      module: its final HloModuleProto, serialized.
      target: "cpu" or "cuda".
      results: `results_digest` of XLA's own module; None leaves this part out.
      assignment: its serialized BufferAssignmentProto where the backend gives it, else b"".

    Raises:
      CheckError: it does not; the message names the instructions.
    """
    program = read_program(module)
    values = follow(program)
    run(program, values, shared_buffers(program, values, target), target)
    if assignment:
        places = assigned_places(values, _places(assignment, module))
        run(program, values, places, target)
    if results is not None and results_digest(module) != results:
        raise CheckError("the executable's results are not the expressions that XLA's own has")


def _places(assignment: bytes, module: bytes) -> dict[tuple[str, ShapeIndex], Place]:
    """Where XLA put the value that each instruction defines at each index."""
    proto = xla_pb2.BufferAssignmentProto()
    try:
        proto.ParseFromString(assignment)
    except Exception as error:
        raise CheckError("not a buffer assignment proto") from error
    names: dict[int, str] = {}
    if any(not b.defined_at.instruction_name for b in proto.logical_buffers):
        whole = xla_pb2.HloModuleProto.FromString(module)
        names = {i.id: i.name for c in whole.computations for i in c.instructions}
    where = {
        b.id: (
            b.defined_at.instruction_name or names.get(b.defined_at.instruction_id, ""),
            tuple(b.defined_at.shape_index),
        )
        for b in proto.logical_buffers
    }
    return {
        where[s.logical_buffer_id]: Place(a.index, s.offset, s.offset + s.size)
        for a in proto.buffer_allocations
        for s in a.assigned
    }


def check_rewrite(before: bytes, after: bytes) -> None:
    """Shows that a rewritten module computes what it did, with every control edge kept.

    Args:
      before: the module as XLA scheduled it. after: as it is handed back.

    Raises:
      CheckError: an order breaks a dependence, a control edge is lost, or a result is another.
    """
    old, new = read_program(before), read_program(after)
    lost = _control(old) - _control(new)
    kept = {op.name for body in _bodies(new.entry) for op in body.ops}
    for name, needed in sorted(lost):
        if name in kept and needed in kept:
            raise CheckError(f"{name} must run after {needed}, but that control edge is lost")
    if results_digest(before) != results_digest(after):
        raise CheckError("the rewritten module's results are not those of XLA's own module")


def _bodies(entry: Body) -> list[Body]:
    """A computation and all that it calls, each once."""
    found, queue = {entry: None}, [entry]
    while queue:
        for op in queue.pop().ops:
            for body in op.called:
                if body not in found:
                    found[body] = None
                    queue.append(body)
    return list(found)


def _control(program: Program) -> set[tuple[str, str]]:
    return {
        (op.name, before.name)
        for body in _bodies(program.entry)
        for op in body.ops
        for before in op.after[len(op.operands) :]
    }
