"""All that the referee has to say of an executable that XLA made by itself.

`verdict.check_executable` stops at the first objection, and knows what the results should be. Here
there is no other module to compare with: each check runs by itself, and what it went by is counted.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping

from hlo.cpu_executable import CpuExecutable
from hlo.gc_pause import without_collection
from hlo.gpu_executable import GpuExecutable, GpuThunk
from hlo.gpu_thunks import Flow
from hlo.module import HloError, parse_module_proto
from hlo.shapes import ShapeIndex
from olla_xla.check.executable.element_expressions import changed_results
from olla_xla.check.executable.layouts import check_declared, check_layouts
from olla_xla.check.executable.memory import PASSED_ON, Place, assigned_places, run, shared_buffers
from olla_xla.check.executable.moving_slices import check_moving_slices
from olla_xla.check.executable.program import CONTROL_FLOW, Op, Program, leaves, read_program
from olla_xla.check.executable.thunks import check_thunks
from olla_xla.check.executable.values import MemoryValue, Values, follow
from olla_xla.check.executable.verdict import places_of
from olla_xla.errors import CheckError

_MOVES = frozenset("memzero memset32bit_value dynamic_slice_fusion".split())
"""Kinds of thunks that compute nothing, besides copies."""


@dataclasses.dataclass(frozen=True)
class Survey:
    """The results of all checks of one executable: what was followed, trusted, and objected to.

    Attributes:
      objections: (which check, what it says), one for each cause. Of the checks that follow memory
        it is the first: what comes after it may be its consequence.
      followed: what -> how many.
      trusted: kind of kernel, whose code was not looked at -> how many of them.
      left: what could not be followed, a line each.
    """

    objections: tuple[tuple[str, str], ...]
    followed: Mapping[str, int]
    trusted: Mapping[str, int]
    left: tuple[str, ...]


@without_collection()
def survey(
    module: bytes,
    target: str,
    *,
    assignment: bytes = b"",
    executable: GpuExecutable | CpuExecutable | None = None,
    donated: Collection[int] | None = None,
    promised: Mapping[ShapeIndex, int] | None = None,
    before: bytes = b"",
) -> Survey:
    """Makes all checks of an executable, and goes on where one of them fails.

    Args:
      module: its final HloModuleProto, serialized. target: "cpu", "cuda" or "tpu".
      assignment: its serialized BufferAssignmentProto, or b"" where it is not given.
      executable: a GPU's or CPU's, where it could be read; it has the assignment of its own.
      donated: numbers of the arguments that the caller gives away; None where that is not known.
      promised: index of a result -> number of the argument that it was to take over.
      before: the module before some of XLA's passes, serialized, or b"": its results are compared.
    """
    checks = _Checks(module, target, assignment, executable, donated, promised or {})
    return checks.made(before)


class _Checks:
    def __init__(
        self,
        module: bytes,
        target: str,
        assignment: bytes,
        executable: GpuExecutable | CpuExecutable | None,
        donated: Collection[int] | None,
        promised: Mapping[ShapeIndex, int],
    ) -> None:
        self._module, self._target = module, target
        self._assignment = assignment
        if executable is not None:
            own = executable.assignment
            self._assignment = own if isinstance(own, bytes) else own.SerializeToString()
        self._executable, self._donated, self._promised = executable, donated, promised
        self._thunks = [b for t in (executable.thunks if executable else ()) for b in t.below()]
        self._whole_calls: list[GpuThunk] = []
        self._objections: list[tuple[str, str]] = []
        self._followed: dict[str, int] = {}
        self._left: list[str] = []

    def made(self, before: bytes) -> Survey:
        """Runs all checks and returns their Survey; `before`: an earlier module, or b""."""
        ordered = self._of("order", lambda: read_program(self._module))
        program = self._unordered() if ordered is None else ordered
        if program is None:
            return Survey(tuple(self._objections), {}, {}, ())
        self._check_each(program)
        if ordered is not None:
            self._check_memory(ordered)
        trusted = self._trusted(program)
        if before:
            self._of("results", lambda: self._check_results(before))
        return Survey(tuple(self._objections), self._followed, trusted, tuple(self._left))

    def _unordered(self) -> Program | None:
        """The program without its schedule, where that is wrong; None if it cannot be read."""
        try:
            proto = parse_module_proto(self._module)
            proto.ClearField("schedule")
            return read_program(proto.SerializeToString())
        except (CheckError, HloError):
            return None

    def _of[T](self, check: str, work: Callable[[], T]) -> T | None:
        """Returns what `work` returns; if it raises CheckError, notes an objection of `check`."""
        try:
            return work()
        except CheckError as error:
            self._objections.append((check, str(error)))
            return None

    def _check_each(self, program: Program) -> None:
        """Checks and counts what does not depend on the order: layouts, donations, slices."""
        ops = list(program.run_ops())
        self._followed["instructions"] = len(ops)
        self._of("layouts", lambda: check_layouts(program))
        self._of("layouts", lambda: check_declared(program, self._module))
        self._objections += (("donation", said) for said in self._lost_donations(program))
        self._followed["aliases"] = len(program.aliases)
        self._followed["asynchronous operations"] = sum(o.opcode.endswith("-start") for o in ops)
        executable = self._executable
        if isinstance(executable, GpuExecutable):
            moving = check_moving_slices(program, executable)
            self._objections += (("slices", said) for said in moving.wrong)
            self._followed["slices in loops"] = moving.slices
            self._followed["addresses of slices"] = moving.addresses
            self._left += moving.left
            if unknown := sorted(executable.unknown_kinds):
                self._left.append(f"thunks of unknown kinds: {', '.join(unknown)}")
        elif executable is not None:
            calls = {op.name for op in ops if op.opcode == "call"}
            self._whole_calls = [t for t in self._thunks if t.name in calls and not t.inner]
            if n := len(self._whole_calls):
                self._left.append(
                    f"which of the equal buffers is which in {n} kernels that run computations"
                )

    def _check_results(self, before: bytes) -> None:
        """Raises CheckError if results or effects are not those of the module `before`; notes only
        that they are not compared where arguments' layouts differ.
        """
        old, new = read_program(before), read_program(self._module)
        given = [[p.shape for p in program.entry.parameters] for program in (old, new)]
        if given[0] != given[1]:
            self._left.append("results, as the dump's arguments have layouts of their own")
            return
        self._followed["results compared"] = len(leaves(new.entry.result.shape))
        try:
            changed, acts_otherwise = changed_results(old, new, self._target)
        except (IndexError, KeyError) as error:  # such as a dimension that there is not
            raise CheckError("an instruction's attributes contradict its shape") from error
        if changed:
            made = new.entry.result
            if made.opcode == "tuple":
                made = made.operands[changed[0][0]]
            also = f", and so do {len(changed) - 1} others" if changed[1:] else ""
            where = f"{made.name}, result {list(changed[0])},"
            raise CheckError(f"{where} differs from that of the dump{also}")
        if acts_otherwise:
            raise CheckError("callbacks or collectives differ from those in the dump")

    def _check_memory(self, program: Program) -> None:
        values = self._of("values", lambda: follow(program))
        if values is None:
            return
        self._followed["arrays"] = len(values.defined)
        placed, before = None, len(self._objections)
        if self._assignment:
            placed = self._of("memory", lambda: self._placed(program, values))
        else:
            self._left.append("addresses (aliases' are checked), as no buffer assignment is known")
        if placed is not None:
            self._of("memory", lambda: run(program, values, placed[0], self._target, placed[1]))
            self._followed["arrays with an address"] = len(placed[0])
        if len(self._objections) == before:  # else it would be the same once more
            shared = shared_buffers(program, values, self._target)
            self._of("values", lambda: run(program, values, shared, self._target))
        executable = self._executable
        if executable is None:
            self._left.append("the code, which is assumed to use the addresses that XLA assigned")
            return
        self._followed["thunks"] = len(self._thunks)
        if placed is not None:
            self._of("thunks", lambda: check_thunks(program, values, placed[0], executable))

    def _placed(
        self, program: Program, values: Values
    ) -> tuple[dict[MemoryValue, Place], dict[str, Place]]:
        """(value -> its place, tuple instruction -> place of its table if a kernel accesses it)."""
        places = places_of(self._assignment, program.names)
        touched = {
            Place(a.slice.allocation, a.slice.offset, a.slice.end)
            for t in self._whole_calls
            for a in t.accesses
        }
        tuples = (op.name for op in program.run_ops() if op.opcode == "tuple")
        tables = {name: places[name, ()] for name in tuples if places.get((name, ())) in touched}
        return assigned_places(values, places), tables

    def _lost_donations(self, program: Program) -> Iterator[str]:
        """Yields a line for each argument overwritten without leave, or not reused as promised."""
        given = {number for number, _ in (*program.aliases.values(), *program.donors)}
        if self._donated is not None:
            for number in sorted(given - set(self._donated)):
                yield f"argument {number} is overwritten, but was not donated"
        for index, number in self._promised.items():
            if program.aliases.get(index, (None,))[0] != number:
                yield (
                    f"result {list(index)} should reuse the memory of argument {number}, but "
                    "does not"
                )

    def _trusted(self, program: Program) -> Mapping[str, int]:
        counts: collections.Counter[str] = collections.Counter()
        if self._executable is not None:
            for thunk in (one for t in self._thunks for one in (t, *t.embedded)):
                if thunk.flow is Flow.NONE and thunk.kind not in _MOVES:
                    counts[thunk.kind] += not thunk.kind.endswith("copy")
        else:
            for op in program.run_ops():
                if _computes(op):
                    target = op.proto.custom_call_target
                    counts[f"custom-call {target}" if target else op.opcode] += 1
        return dict((+counts).most_common())


def _computes(op: Op) -> bool:
    if op.opcode in PASSED_ON or op.opcode in CONTROL_FLOW or op.opcode == "copy":
        return False
    return not op.opcode.startswith("copy-") and not op.opcode.endswith(("-done", "-update"))
