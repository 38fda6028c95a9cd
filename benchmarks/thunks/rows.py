"""The referee on the executables of real steps for an absent GPU, planned and XLA's own."""

from __future__ import annotations

import collections
import dataclasses
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import olla_xla
from benchmarks.dumped_assignment import dumped_assignment, same_places
from benchmarks.thunks.critical_path import durations
from benchmarks.thunks.steps import Step
from benchmarks.thunks.subject import Subject
from hlo.gc_pause import without_collection
from hlo.gpu_executable import read_gpu_executable
from hlo.invariant_loads import invariant_loads
from hlo.module import module_from_bytes
from olla_xla import targets
from olla_xla.check.executable import check_executable
from olla_xla.check.executable.program import read_program
from olla_xla.compile.accounting import assigned_bytes, final_module
from olla_xla.compile.assignment import dump_options
from olla_xla.compile.gpu_code import serialized_executable
from olla_xla.errors import CheckError, OllaError
from olla_xla.memory.snappy import unsnapped
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan_parts import LONGEST_PATH
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel


@dataclasses.dataclass(frozen=True)
class Row:
    """One executable.

    Attributes:
      case: the step. way: "XLA" or "planned". planned: whether it runs a plan.
      kinds: kind of thunk -> how many. unknown: kinds that are not known.
      bytes: XLA's total. serialized_bytes: of the executable. instructions: of the module.
      compile_seconds: of XLA alone, of all its threads; other work on the machine is in neither.
      seconds: of what the referee does for bytes, in its thread: serialize, read, and check, less
        what it does without them.
      objection: of the referee, or "".
      issued_seconds: predicted, of the thunks as the host issues them. chain_seconds: of the
        longest chain of thunks that share bytes.
      marked: fusions that must not read an operand as invariant. wrong: those whose kernel does.
      placed: tensors whose places were held to those that XLA dumped; 0 if it dumped none.
    """

    case: str
    way: str
    planned: bool
    kinds: Mapping[str, int]
    unknown: tuple[str, ...]
    bytes: int
    serialized_bytes: int
    instructions: int
    compile_seconds: float
    seconds: float
    objection: str
    issued_seconds: float
    chain_seconds: float
    marked: int
    wrong: int
    placed: int = 0

    @property
    def share(self) -> float:
        """The referee's part of XLA's compile."""
        return self.seconds / self.compile_seconds


def is_worse(own: Row, planned: Row) -> bool:
    """Whether a plan makes a step slower than allowed, or gives more kernels wrong loads."""
    longer = planned.issued_seconds > LONGEST_PATH * own.issued_seconds
    return longer or planned.wrong > own.wrong


class NotCompiledError(OllaError):
    """XLA does not compile a step as it is."""


def measured(
    step: Step,
    target: str,
    options: PlanOptions,
    subjects: list[Subject] | None = None,
    *,
    dumps: bool = False,
) -> tuple[Row, Row]:
    """Compiles a step with XLA's order and with a plan, and asks the referee.

    Args:
      step: which. target: a GPU. options: of the plan.
      subjects: gets the executables, to make mutants of.
      dumps: whether XLA dumps its buffer assignments, which takes a part of the compiles' time, and
        the places of the executables are held to them.

    Returns:
      XLA's own and the planned one.

    Raises:
      InputError: the step or the target is unknown.
      NotCompiledError: XLA does not compile it, whatever the order.
      OllaError: planning failed.
    """
    cost = CostModel(device("cuda", targets.card(target).kind), "cuda")
    with tempfile.TemporaryDirectory() as folder, step.context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        warnings.simplefilter("ignore", olla_xla.PlanWarning)  # the row says if it is planned
        dump = Path(folder) if dumps else None
        compiler = dump_options(dump) if dump else None
        lower = step.make()
        lowered = lower(None)
        began = time.process_time()
        try:
            own = lowered.compile(compiler)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise NotCompiledError(f"{step.name}: XLA does not compile it: {reason}") from error
        reader = _Reader(step.name, time.process_time() - began, cost, subjects, dump)
        first = reader.row("XLA", own)
        del lowered, own  # with its code
        planned = lower(options).compile(compiler)
        second = reader.row("planned", planned.stage)
        return first, dataclasses.replace(second, planned=planned.planned)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Makes the rows of a step. The fields are those of rows and arguments of `measured`."""

    case: str
    compile_seconds: float
    cost: CostModel
    subjects: list[Subject] | None
    dump: Path | None

    @without_collection()
    def row(self, way: str, compiled: Any) -> Row:
        """The row of an executable."""
        module = final_module(compiled)
        unsnapped(b"\0")  # its machine code is loaded once in a process
        began = time.thread_time()
        data = serialized_executable(compiled)
        executable = read_gpu_executable(data, unsnapped)
        objection = ""
        try:
            check_executable(module, "cuda", executable=executable)
        except CheckError as error:
            objection = str(error)
        took = time.thread_time() - began
        began = time.thread_time()
        check_executable(module, "cuda")
        took -= time.thread_time() - began
        if self.subjects is not None:
            self.subjects.append(Subject(f"{self.case}, {way}", module, executable))
        predicted = durations(executable, module_from_bytes(module), self.cost)
        invariant = invariant_loads(module, executable)
        placed = 0
        if self.dump is not None:
            dumped = dumped_assignment(self.dump, module)
            placed, difference = same_places(module, executable, *dumped)
            objection = objection or difference
        return Row(
            case=self.case,
            way=way,
            planned=False,
            kinds=dict(collections.Counter(t.kind for t in executable.all_thunks)),
            unknown=tuple(sorted(executable.unknown_kinds)),
            bytes=assigned_bytes(compiled),
            serialized_bytes=len(data),
            instructions=len(read_program(module).names),
            compile_seconds=self.compile_seconds,
            seconds=took,
            objection=objection,
            issued_seconds=predicted.issued,
            chain_seconds=predicted.chain,
            marked=invariant.marked,
            wrong=len(invariant.wrong),
            placed=placed,
        )
