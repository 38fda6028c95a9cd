"""XLA's real buffer assignment against the plan, tensor by tensor.
The executable is compared with the plan's prediction: its order must be the plan's, every tensor
must be there with its size, no two live ones may share a byte, and the total must be the one
reported. A tensor's offset may differ from the prediction without harm; such tensors are counted.
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hlo.backend import platform
from hlo.buffer_assignment import (
    Allocation,
    Assigned,
    BufferAssignment,
    assignment_from_bytes,
    read_dump,
)
from hlo.gpu_executable import GpuExecutable
from hlo.module import HloError, Module, module_from_bytes, module_from_proto, parse_module_proto
from olla_xla.check.executable import check_executable
from olla_xla.check.graph import check_placement, check_schedule
from olla_xla.compile.accounting import assigned_bytes, assignment_proto
from olla_xla.compile.gpu_code import read_or_say, serialized_executable
from olla_xla.compile.order import AGAIN, compare_orders
from olla_xla.errors import CheckError
from olla_xla.memory.module_state import PlannedModule, scheduled_module
from olla_xla.problem.graph import Tensor, TensorGraph
from olla_xla.problem.plan import Plan

Places = Mapping[str, tuple[Allocation, Assigned]]


@dataclasses.dataclass(frozen=True)
class AssignmentReport:
    """Result of a successful comparison of XLA's buffer assignment with a plan; sizes in bytes.

    Attributes:
      tensors: number of the plan's tensors that XLA assigned, each with the size the plan has.
      as_predicted: number of these at the predicted offsets relative to their allocation.
      elsewhere_bytes: bytes of the tensors at other offsets.
      assigned_bytes: XLA's total. predicted_bytes: the plan's prediction of it.
      peak_bytes: most bytes live at once in the executable's order, recomputed by this comparison.
      added: instructions that XLA's last passes added and that are not idle (`order.IDLE`).
      dropped: instructions that these passes removed: they define no tensor, or XLA's
        rematerialization computes it elsewhere.
      unread: tensors of fusions from which these passes removed unread results.
      thunks: number of a GPU executable's thunks, each compared with the module byte by byte; 0 on
        other platforms, or where the executable cannot be read.
    """

    tensors: int
    as_predicted: int
    elsewhere_bytes: int
    assigned_bytes: int
    predicted_bytes: int
    peak_bytes: int
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    thunks: int = 0

    @property
    def elsewhere(self) -> int:
        """Number of tensors that XLA placed at other offsets than the plan predicted."""
        return self.tensors - self.as_predicted

    @property
    def error(self) -> float:
        """Prediction error of the total bytes, (predicted - assigned) / assigned."""
        return (self.predicted_bytes - self.assigned_bytes) / max(self.assigned_bytes, 1)


def dump_options(directory: Path) -> dict[str, Any]:
    """Returns compiler options that make XLA write its buffer assignment into a folder."""
    return {"xla_dump_to": str(directory), "xla_dump_hlo_as_proto": True}


def check_compiled(compiled: Any, plan: Plan, dump: Path | None = None) -> AssignmentReport:
    """Compares XLA's buffer assignment of `compiled`, a `jax.stages.Compiled` or `PlannedCompiled`,
    with the plan it was compiled with. Raises CheckError if they differ (`check_assignment`), if
    XLA's is not to be had, or if a GPU's thunks do not do what the module says
    (`check.executable.check_executable`). `dump`: directory given to `dump_options` when it was
    compiled; needed on a GPU whose executables cannot be read.
    """
    executable = _gpu_executable(compiled, plan.target)
    module, assignment = _read(compiled, plan.target, executable, dump)
    report = check_assignment(module, assignment, plan)
    if executable is None:
        return report
    check_executable(module, plan.target, executable=executable)
    return dataclasses.replace(report, thunks=sum(1 for _ in executable.all_thunks))


def _gpu_executable(compiled: Any, target: str) -> GpuExecutable | None:
    """Returns a GPU's executable, parsed; None on other platforms, or where it cannot be read."""
    if not platform(target).lists_thunks:
        return None
    return read_or_say(serialized_executable(compiled))


def read_assignment(compiled: Any, target: str) -> tuple[bytes, BufferAssignment]:
    """Returns (serialized module of an executable, the buffer assignment that XLA made of it).
    Raises CheckError: the backend does not give them, or XLA's total is not the assignment's.
    `target`: name of the platform that the executable is for.
    """
    return _read(compiled, target, _gpu_executable(compiled, target))


def _read(
    compiled: Any, target: str, gpu: GpuExecutable | None, dump: Path | None = None
) -> tuple[bytes, BufferAssignment]:
    """Returns (serialized module, buffer assignment) of an executable, as `read_assignment`.
    `gpu` is a GPU's executable, parsed; `dump` as for `check_compiled`. Raises CheckError.
    """
    executable = compiled.runtime_executable()
    if executable is None:
        raise CheckError("JAX returns no executable on this backend, so the plan cannot be checked")
    module = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    try:
        data = assignment_proto(compiled, target) if gpu is None else gpu.assignment
        if data:
            assignment = assignment_from_bytes(data, parse_module_proto(module), target)
        else:
            assignment = _dumped(module, target, dump)
    except HloError as error:
        raise CheckError(str(error)) from error
    if compiled.memory_analysis() is not None:
        total = assigned_bytes(compiled)
        if total != assignment.total_bytes:
            raise CheckError(
                f"XLA reports {total} bytes, but its buffer assignment has {assignment.total_bytes}"
            )
    return module, assignment


def _dumped(module: bytes, target: str, dump: Path | None) -> BufferAssignment:
    """Reads the buffer assignment from the latest dump in a folder whose module has the same
    content and order as `module`. Raises CheckError if there is no folder or no such dump.
    """
    if dump is None:
        raise CheckError(
            "JAX does not return the buffer assignment on this backend; compile with "
            "compiler_options=dump_options(DIR) and pass dump=DIR"
        )
    wanted = _identity(module_from_bytes(module))
    # The latest first: a directory may hold several compiles of one module.
    for path in sorted(dump.glob("*after_optimizations.hlo.pb"), reverse=True):
        proto, assignment = read_dump(path, target)
        if _identity(module_from_proto(proto)) == wanted:
            return assignment
    raise CheckError(f"no dump in {dump} is of this executable; compile it with dump_options(DIR)")


def _identity(module: Module) -> tuple[str, list[tuple[str, ...]]]:
    orders = [c.schedule or () for c in module.control_computations]
    return module.fingerprint, [tuple(i.name for i in order) for order in orders]


def check_assignment(module: bytes, assignment: BufferAssignment, plan: Plan) -> AssignmentReport:
    """Checks XLA's buffer assignment of an executable against the plan it was compiled with.
    `module`: the executable's serialized HloModuleProto. Raises CheckError, which names what
    differs: the executable runs another order; a tensor is missing, has another size or leaves its
    allocation; two live tensors overlap; the plan has a total, and it is another; or the plan has a
    peak, XLA changed no instruction, and the peak is another.
    """
    planned = PlannedModule(scheduled_module(module), plan.target)
    added, dropped = compare_orders(plan, planned.module)
    places = {
        a.name: (allocation, a)
        for allocation in assignment.allocations
        for a in allocation.assigned
    }
    gone, trimmed = _gone(plan, planned.module, added, dropped), _trimmed(plan, planned)
    tensors = _compare_tensors(plan, places, gone | trimmed)
    peak = check_overlaps(planned, assignment)
    if plan.peak_bytes and not (added or gone or dropped or trimmed) and peak != plan.peak_bytes:
        raise CheckError(f"the plan claims a peak of {plan.peak_bytes} bytes; its peak is {peak}")
    total = assignment.total_bytes
    if plan.assigned_bytes is not None and total != plan.assigned_bytes:
        raise CheckError(
            f"XLA's buffer assignment totals {total} bytes, the plan says {plan.assigned_bytes}"
        )
    as_predicted = _as_predicted(plan, places, tensors)
    return AssignmentReport(
        tensors=len(tensors),
        as_predicted=len(as_predicted),
        elsewhere_bytes=sum(plan.offsets[n][1] for n in tensors if n not in as_predicted),
        assigned_bytes=total,
        predicted_bytes=plan.predicted_bytes,
        peak_bytes=peak,
        added=added,
        dropped=dropped,
        unread=tuple(sorted(n for n in plan.offsets if _owner(n) in trimmed)),
    )


def _gone(plan: Plan, module: Module, added: Collection[str], dropped: Collection[str]) -> set[str]:
    """Names the plan's instructions whose tensors need not be in the executable: those of
    computations that it lacks, and of `dropped` all where XLA renames instructions, else those that
    it has as clones. XLA:GPU makes a start and its done one instruction where nothing is between
    them, and renames others. XLA's rematerialization puts clones in place of some (`AGAIN`).
    `added`, `dropped`: names of instructions in the executable alone, in the plan alone.
    """
    here = {c.name for c in module.control_computations}
    gone = {n for name, order in plan.order.items() if name not in here for n in order}
    cloned = {match[1] for name in added if (match := AGAIN.match(name))}
    return gone.union(dropped if platform(plan.target).renames else cloned.intersection(dropped))


def _trimmed(plan: Plan, planned: PlannedModule) -> set[str]:
    """Returns the names of fusions that have fewer results in the executable than in the plan.
    On a GPU XLA removes unread results from fusions after scheduling. The remaining results are
    renumbered, so no result of such a fusion can be compared by its name.
    """
    computations = planned.module.control_computations
    fusions = {i.name for c in computations for i in c.instructions if i.opcode == "fusion"}
    made = {v.name for v in planned.dataflow.values}
    return {_owner(name) for name in plan.offsets if name not in made} & fusions


def _owner(tensor: str) -> str:
    """Returns the name of the instruction that makes a tensor, such as fusion.1 for fusion.1{0}."""
    return tensor.partition("{")[0]


def _compare_tensors(plan: Plan, places: Places, left_out: Collection[str]) -> list[str]:
    """Checks that XLA assigned the plan's tensors, in their sizes and inside their allocations;
    returns their names. Left out are tensors of 0 bytes and of the instructions `left_out`. Raises
    CheckError. `places`: tensor's name -> XLA's allocation and the tensor's place in it.
    """
    names = []
    for name, (_, size) in plan.offsets.items():
        if not size or _owner(name) in left_out:
            continue
        if name not in places:
            raise CheckError(f"XLA assigned no memory to tensor {name} of the plan")
        allocation, place = places[name]
        if place.size != size:
            raise CheckError(f"tensor {name} has {size} bytes in the plan, but {place.size} in XLA")
        if not 0 <= place.offset <= allocation.size - place.size:
            raise CheckError(
                f"tensor {name} at [{place.offset}, {place.offset + size}) reaches beyond its "
                f"allocation {allocation.index} of {allocation.size} bytes"
            )
        names.append(name)
    return names


def check_overlaps(planned: PlannedModule, assignment: BufferAssignment) -> int:
    """Checks that no two live tensors overlap in XLA's buffer assignment of a module.
    On a platform whose in-place rules for fusions are not known, the values that are read are
    followed byte by byte instead. Returns the most bytes live at once in the entry computation,
    recomputed from its order; the peak of each computation is set in `planned.peaks`. Raises
    CheckError if two overlap, or one has no place or another size; the message names them.
    """
    shares_as_known = platform(planned.target).knows_sharing
    if not shares_as_known:
        check_executable(planned.module.data, planned.target, assignment=assignment.data)
    offsets: dict[str, tuple[int, int]] = {}
    base = 0
    for allocation in assignment.allocations:
        offsets |= {a.name: (base + a.offset, a.size) for a in allocation.assigned}
        base += allocation.size
    inner: dict[str, list[Tensor]] = {}
    peak = 0
    for computation in planned.module.control_computations:
        lowered = planned.lowered(computation)
        graph = lowered.graph
        called = {
            k: [t for c in i.called_control for t in inner[c.name]]
            for k, i in enumerate(lowered.instructions)
            if i.called_control
        }
        order = range(len(graph.operators))
        peak = check_schedule(graph, order)
        planned.peaks[computation] = peak
        whole = _with_callees(graph, called)
        if shares_as_known:
            check_placement(graph, order, offsets)
            check_placement(whole, order, offsets, one_offset=False)
        inner[computation.name] = list(whole.tensors)
    return peak


def _with_callees(graph: TensorGraph, called: Mapping[int, Sequence[Tensor]]) -> TensorGraph:
    """Returns the graph with the tensors of called computations added, live while a caller runs.
    `called` has these tensors by the number of the calling operator. All callees' tensors of one
    caller get one buffer, since their overlaps among themselves were checked in the callee. A
    tensor that the caller reads or writes is also the callee's, and is checked there; if it dies at
    the caller, the callee may reuse its memory after the last use.
    """
    tensors = list(graph.tensors)
    pairs = list(graph.inplace)
    seen = {t.name for t in tensors}
    fresh = max((t.buffer for t in tensors), default=0) + 1
    for k, members in called.items():
        touched = [j for j, t in enumerate(graph.tensors) if k == t.source or k in t.sinks]
        for tensor in members:
            if tensor.name in seen:
                continue
            seen.add(tensor.name)
            pairs += [(len(tensors), j) for j in touched] + [(j, len(tensors)) for j in touched]
            tensors.append(Tensor(tensor.name, tensor.bytes, k, (), fresh + k))
    return dataclasses.replace(graph, tensors=tuple(tensors), inplace=tuple(pairs))


def _as_predicted(plan: Plan, places: Places, names: Sequence[str]) -> set[str]:
    """Returns those of `names` whose tensors XLA placed at the offsets that the plan predicted.
    The plan puts the allocations end to end in one arena. So a tensor's predicted offset minus its
    offset in XLA's allocation is the allocation's base, equal for all tensors placed as predicted.
    The base with most of an allocation's bytes counts; allocations that overlap others are not
    used.
    """
    by_allocation: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name in names:
        allocation = places[name][0]
        by_allocation.setdefault(allocation.index, []).append(name)
        sizes[allocation.index] = allocation.size
    result: set[str] = set()
    taken: list[tuple[int, int]] = []
    for index in sorted(by_allocation, key=lambda k: (-sizes[k], k)):
        votes: collections.Counter[int] = collections.Counter()
        for name in by_allocation[index]:
            votes[plan.offsets[name][0] - places[name][1].offset] += plan.offsets[name][1]
        base = max(votes, key=lambda b: (votes[b], -b))
        if any(base < end and start < base + sizes[index] for start, end in taken):
            continue
        taken.append((base, base + sizes[index]))
        result.update(
            n for n in by_allocation[index] if plan.offsets[n][0] - places[n][1].offset == base
        )
    return result
