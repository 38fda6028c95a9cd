"""The referee's checks of a rewritten module, and of the executable made from it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hlo import xla_pb2
from hlo.gc_pause import without_collection
from hlo.late import late
from hlo.module import HloError, parse_module_proto
from hlo.shapes import ShapeIndex
from olla_xla.check.executable.expressions import program_digest
from olla_xla.check.executable.kernels import KernelMemory, kernel_memory
from olla_xla.check.executable.layouts import check_layouts
from olla_xla.check.executable.memory import Place, assigned_places, run, shared_buffers
from olla_xla.check.executable.numbering import is_one_function, run_by
from olla_xla.check.executable.program import Program, is_effect, may_be_effect, read_program
from olla_xla.check.executable.values import MemoryValue, Values, follow
from olla_xla.errors import CheckError, ResultsError

if TYPE_CHECKING:
    import olla_xla.check.executable.element_expressions as element_expressions
    import olla_xla.check.executable.moving_slices as moving_slices
    import olla_xla.check.executable.thunks as thunks
    from hlo.gpu_executable import GpuExecutable
else:
    # The larger half of the referee, which only modules with changed loops need.
    element_expressions = late("olla_xla.check.executable.element_expressions")
    moving_slices = late("olla_xla.check.executable.moving_slices")
    thunks = late("olla_xla.check.executable.thunks")


@dataclasses.dataclass(frozen=True, eq=False)
class Accepted:
    """A planned module that the referee has accepted, as the referee read it.

    Attributes:
      program, values: the module. is_reordered: whether it is XLA's own in another order, so that
        its results are XLA's own.
    """

    program: Program
    values: Values
    is_reordered: bool


@without_collection()
def check_planned(scheduled: bytes, planned: bytes, target: str) -> Accepted:
    """Checks that a planned module keeps XLA's control edges, has consistent layouts, and reads no
    value after its memory, as XLA must share it, was overwritten; if not, raises CheckError.

    It compares no results. `scheduled`: the module as XLA scheduled it. `planned`: as it is handed
    back. `target`: "cpu", "cuda" or "tpu".
    """
    reordered = is_reordered(scheduled, planned)
    if not reordered:
        check_control(scheduled, planned)
    program = read_program(planned)
    if not reordered:
        check_layouts(program)
    values = follow(program)
    run(program, values, shared_buffers(program, values, target), target)
    return Accepted(program, values, reordered)


@without_collection()
def check_places(
    accepted: Accepted,
    module: bytes,
    target: str,
    *,
    assignment: bytes = b"",
    donated: frozenset[tuple[int, ShapeIndex]] = frozenset(),
    executable: GpuExecutable | None = None,
) -> Mapping[str, KernelMemory]:
    """The memory checks of `check_executable`, if an executable runs an accepted module unchanged.

    Raises CheckError if on the assigned bytes a read finds another value, a donation is lost, or a
    GPU's thunks do something else.

    Args:
      accepted: the module. module: the executable's, which has other ids, serialized.
      target, assignment, donated, executable: see `check_executable`.

    Returns:
      Kernel name -> which operands and results share memory, as `check_executable`.
    """
    _check_donation(accepted.program, donated)
    if executable is None and not assignment:
        return {}
    proto = parse_module_proto(module)
    placed = (c for c in proto.computations if c.id in proto.schedule.sequences)
    names = {i.id: i.name for c in placed for i in c.instructions}
    program, values = accepted.program, accepted.values
    places = _run_on_bytes(program, values, target, names, assignment, executable)
    return kernel_memory(values, shared_buffers(program, values, target), places, target)


@without_collection()
def check_executable(
    module: bytes,
    target: str,
    *,
    results: str | None = None,
    assignment: bytes = b"",
    donated: frozenset[tuple[int, ShapeIndex]] = frozenset(),
    executable: GpuExecutable | None = None,
) -> Mapping[str, KernelMemory]:
    """Checks that an executable computes what it should, and reads nothing that was overwritten.

    Args:
      module: its final HloModuleProto, serialized.
      target: "cpu", "cuda" or "tpu".
      results: `results_digest` of XLA's own module; None leaves this part out.
      assignment: its serialized BufferAssignmentProto where the backend gives it, else b"".
      donated: (parameter number, index) of the arguments whose memory an output is to take over.
      executable: a GPU's executable, where it could be read; it has the assignment of its own.

    Returns:
      Name of each kernel whose rounding may depend on it -> which of its operands and results
      share memory; empty where the assignment is not known.

    Raises:
      ResultsError: the results differ. XLA's own passes after its scheduler may cause it, by other
        code for a fusion; then the executable that XLA makes of its own module has these results.
      CheckError: it reads overwritten memory, or a layout, donation or thunk is not as it must be.
    """
    program = read_program(module)
    check_layouts(program)
    _check_donation(program, donated)
    values, kernels = follow(program), {}
    shared = shared_buffers(program, values, target)
    run(program, values, shared, target)
    if executable is not None or assignment:
        places = _run_on_bytes(program, values, target, program.names, assignment, executable)
        kernels = kernel_memory(values, shared, places, target)
    if results is not None and _digest(program, target, results.startswith(_LOOPS)) != results:
        raise ResultsError("the executable's results differ from those of XLA's own executable")
    return kernels


def _run_on_bytes(
    program: Program,
    values: Values,
    target: str,
    names: Mapping[int, str],
    assignment: bytes,
    executable: GpuExecutable | None,
) -> Mapping[MemoryValue, Place]:
    """Checks a schedule on the bytes that XLA assigned, and a GPU's thunks; returns the places."""
    if executable is not None:
        assignment = executable.assignment
    assigned = places_of(assignment, names)
    places = assigned_places(values, assigned)
    run(program, values, places, target, _tables(program, assigned))
    if executable is not None:
        thunks.check_thunks(program, values, places, executable)
        if wrong := moving_slices.check_moving_slices(program, executable).wrong:
            raise CheckError(wrong[0])
    return places


def _tables(program: Program, found: Mapping[tuple[str, ShapeIndex], Place]) -> dict[str, Place]:
    """Tuple instruction -> where its table of element addresses lies; for tuples inside some calls.

    XLA:CPU compiles these calls to one function each, which writes them; elsewhere no thunk does.
    """
    calls = [op for op in program.run_ops() if op.opcode == "call" and is_one_function(op)]
    inside = (op for call in calls for body in run_by(call) for op in body.ops)
    tuples = (op.name for op in inside if op.opcode == "tuple")
    return {name: found[name, ()] for name in tuples if (name, ()) in found}


def _check_donation(program: Program, donated: frozenset[tuple[int, ShapeIndex]]) -> None:
    """Raises CheckError unless outputs take over the memory of all arguments in `donated`."""
    if lost := sorted(donated - frozenset(program.aliases.values())):
        number, index = lost[0]
        part = f", part {list(index)}" if index else ""
        raise CheckError(
            f"no output takes over the memory of {len(lost)} of {len(donated)} donated arguments, "
            f"the first of them argument {number}{part}"
        )


def places_of(assignment: bytes, names: Mapping[int, str]) -> dict[tuple[str, ShapeIndex], Place]:
    """(instruction name, shape index) -> place in XLA's buffer assignment; `names`: by id.

    Raises CheckError if `assignment` is no BufferAssignmentProto.
    """
    proto = xla_pb2.BufferAssignmentProto()
    try:
        proto.ParseFromString(assignment)
    except Exception as error:
        raise CheckError("the data is not a buffer assignment proto") from error
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


@without_collection()
def results_digest(module: bytes, target: str, *, loops: bool = False) -> str:
    """The digest of a serialized module's results as expressions of its arguments.

    Raises CheckError if the module cannot be read, or contradicts itself.

    Args:
      module: HloModuleProto. target: "cpu", "cuda" or "tpu".
      loops: number loops element by element, so that recomputing a scan residual does not change
        the digest; such a digest begins with `_LOOPS`.
    """
    key = hashlib.blake2b(module).digest(), target, loops
    digest = _DIGESTS.get(key)
    if digest is None:
        if len(_DIGESTS) >= _MOST_DIGESTS:
            _DIGESTS.clear()
        digest = _DIGESTS[key] = _digest(read_program(module), target, loops)
    return digest


_DIGESTS: dict[tuple[bytes, str, bool], str] = {}
"""Of modules met before: XLA's own is asked for with each choice."""

_MOST_DIGESTS = 64

_LOOPS = "loops:"


def _digest(program: Program, target: str, loops: bool) -> str:
    number = element_expressions.program_digest if loops else program_digest
    try:
        return _LOOPS * loops + number(program, target)
    except (IndexError, KeyError) as error:  # such as a dimension that there is not
        raise CheckError("an instruction's attributes contradict its shape") from error


@without_collection()
def check_rewrite(before: bytes, after: bytes, target: str, *, loops: bool = False) -> None:
    """Checks that a rewritten module computes what it did, with every control edge kept.

    Raises CheckError if an order breaks a dependence, a control edge is lost, more instructions
    share a channel, or a result differs.

    Args:
      before: the module as XLA scheduled it. after: as it is handed back.
      target: "cpu", "cuda" or "tpu".
      loops: whether loops may recompute scan residuals, as in `results_digest`.
    """
    check_control(before, after)
    if _own_digest(before, target, loops) != results_digest(after, target, loops=loops):
        raise CheckError("the planned module's results are not those of XLA's own module")


@functools.lru_cache(maxsize=1)
def _own_digest(module: bytes, target: str, loops: bool) -> str:
    """`results_digest`, remembered for the last module, with which rewritten ones are compared."""
    return results_digest(module, target, loops=loops)


def check_control(before: bytes, after: bytes) -> None:
    """Checks that control edges between instructions that are still there are kept, and that no
    more instructions share a channel than did.

    It is the part of `check_rewrite` that an executable cannot show. Raises CheckError, which names
    the instructions of an edge that is lost, or of one channel.
    """
    old = xla_pb2.HloModuleProto.FromString(before)
    instructions = (i for c in old.computations for i in c.instructions)
    if not any(i.control_predecessor_ids or i.channel_id for i in instructions):
        return
    new = xla_pb2.HloModuleProto.FromString(after)
    _check_channels(old, new)
    lost = _control(old) - _control(new)
    kept = {i.name for c in new.computations for i in c.instructions}
    for name, needed in sorted(lost):
        if name in kept and needed in kept:
            raise CheckError(f"{name} must run after {needed}, but the plan lost that control edge")


def _check_channels(old: xla_pb2.HloModuleProto, new: xla_pb2.HloModuleProto) -> None:
    """Raises CheckError if instructions of one opcode share a channel, and fewer did before."""
    before, after = _channels(old), _channels(new)
    for channel, names in after.items():
        if len(names) > max(len(before.get(channel, ())), 1):
            raise CheckError(f"{names[-1]} shares a channel with {names[0]}, but must have its own")


def _channels(module: xla_pb2.HloModuleProto) -> dict[tuple[str, int], list[str]]:
    """Opcode and channel -> names of the instructions on it."""
    by_channel: dict[tuple[str, int], list[str]] = {}
    for c in module.computations:
        for i in c.instructions:
            if i.channel_id:
                by_channel.setdefault((i.opcode, i.channel_id), []).append(i.name)
    return by_channel


def _control(module: xla_pb2.HloModuleProto) -> set[tuple[str, str]]:
    """A module's control edges, as (name of an instruction, name of its predecessor)."""
    names = {i.id: i.name for c in module.computations for i in c.instructions}
    return {
        (i.name, names[k])
        for c in module.computations
        for i in c.instructions
        for k in i.control_predecessor_ids
    }


# Whether two modules differ in the order of their instructions only.
#
# Most plans do. Their results are XLA's own, which is shown without numbering any value.

_Edges = dict[tuple[int, int], frozenset[int]]
"""(computation, instruction) -> control predecessors, by id."""


def is_reordered(before: bytes, after: bytes) -> bool:
    """Whether two serialized modules are equal but for order, memory and frontend attributes.

    The second one may have more control edges (`read_program` checks that its order keeps them),
    other aliasing of fusions' results (`memory` checks it), and more bitcasts that nothing reads.
    Effects must keep their order, so False where a module has any, or if one cannot be read.
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
    """Clears the order, control edges, frontend attributes and fusions' aliasing of scheduled
    computations; returns their control edges.
    """
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
