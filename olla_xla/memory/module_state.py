"""A module lowered to tensor graphs, with the simulation of its buffer assignment."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from hlo.backend import PLATFORMS
from hlo.module import Computation, HloError, Instruction, Module
from hlo.rewrite.aliases import Alias
from hlo.rewrite.barriers import without_barriers
from hlo.rewrite.edit import Edit
from hlo.sharing import Sharing, sharing
from hlo.values import Dataflow, analyse
from olla_xla.errors import InputError, ModuleFormatError
from olla_xla.memory.assignment.model import Assignment, AssignmentModel
from olla_xla.memory.kernels import Pattern, find_kernels, pattern
from olla_xla.memory.lifetimes import peak_bytes
from olla_xla.memory.lower import LoweredComputation, lower


def scheduled_module(data: bytes) -> Module:
    """Reads a serialized, scheduled HloModuleProto and removes its optimization barriers
    (hlo.rewrite). Raises ModuleFormatError if it cannot be read, or has no schedule.
    """
    try:
        module = without_barriers(data)
    except HloError as error:
        raise ModuleFormatError(str(error)) from error
    if not module.is_scheduled:
        raise ModuleFormatError(
            f"HLO module {module.name} has no schedule; give the file *after_optimizations* that "
            "XLA dumps with --xla_dump_hlo_as_proto"
        )
    return module


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleFacts:
    """What is derived from a module once and kept with it: values, sharing, memory model, totals.

    Attributes:
      module, target: the module, as it is scheduled. dataflow: its values. pairs: those that may
        share memory. model: of its memory, in any order.
    """

    module: Module
    target: str
    dataflow: Dataflow
    pairs: Sharing
    model: AssignmentModel

    @functools.cached_property
    def assignment(self) -> Assignment:
        """XLA's buffer assignment of the module in its own schedule, simulated."""
        return self.model.simulate({c: c.schedule or () for c in self.module.control_computations})

    @property
    def total(self) -> int:
        """Predicted bytes of all of the module's buffers in its own schedule."""
        return self.assignment.total_bytes

    @functools.cached_property
    def kernels(self) -> dict[str, Pattern]:
        """Kernel name -> which of its arrays share memory under the module's own schedule; only
        kernels whose rounding may depend on that, and that may share otherwise in another order.
        """
        return self._patterns(every=False)

    @functools.cached_property
    def all_kernels(self) -> dict[str, Pattern]:
        """Kernel name -> which of its arrays share memory under the module's own schedule; also
        kernels of which the same do in any order, as in their copies others may.
        """
        return self._patterns(every=True)

    def _patterns(self, *, every: bool) -> dict[str, Pattern]:
        kernels = find_kernels(self.dataflow, self.pairs, self.target, every=every)
        return {i.name: pattern(i, self.dataflow, self.assignment) for i in kernels}


def facts_of(module: Module, target: str) -> ModuleFacts:
    """The `ModuleFacts` of a scheduled module: dataflow, memory that may be shared, memory model.
    They are computed at the first call for a target and kept in `module.facts`. Raises InputError
    if the target is unknown.
    """
    if target not in module.facts:
        if target not in PLATFORMS:
            known = " or ".join(map(repr, PLATFORMS))
            raise InputError(f"target={target!r} is unknown; use one of {known}")
        dataflow = analyse(module, target)
        pairs = sharing(dataflow, target)
        model = AssignmentModel(dataflow, target, pairs)
        module.facts[target] = ModuleFacts(module, target, dataflow, pairs, model)
    return module.facts[target]


class PlannedModule:
    """A module with the orders chosen so far, its tensor graphs, and a model of its memory.

    Args:
      module: a scheduled one (`scheduled_module`). target: "cpu", "cuda" or "tpu".
      released: names of asynchronous starts that may overlap with less work than in XLA's order.
      kept: kernel name -> which of its arrays must share memory, its pattern (memory.kernels);
        graphs then have edges such that it can.

    Attributes:
      facts: of the module. dataflow, pairs, model: theirs.
      orders: computation -> the order chosen so far (at first XLA's).
      peaks: computation -> its lifetime peak in bytes, which its callers' graphs add.
      leasts: computation -> the least lifetime peak of its orders found so far, in bytes, which may
        not be that of the chosen one.
      bounds: computation -> a lower bound on the lifetime peak of any order, in bytes.
      kept: as given; {} for None.
    """

    def __init__(
        self,
        module: Module,
        target: str,
        released: frozenset[str] = frozenset(),
        kept: Mapping[str, Pattern] | None = None,
    ) -> None:
        self.facts = facts_of(module, target)
        self.module = module
        self.target = target
        self.released = released
        self.dataflow, self.pairs = self.facts.dataflow, self.facts.pairs
        self.model = self.facts.model
        self.computations = {c.name: c for c in self.module.control_computations}
        self.orders = {c: tuple(c.schedule or ()) for c in self.computations.values()}
        self.kept = kept or {}
        self.peaks: dict[Computation, int] = {}
        self.leasts: dict[Computation, int] = {}
        self.bounds: dict[Computation, int] = {}

    def lowered(
        self, computation: Computation, peaks: Mapping[Computation, int] | None = None
    ) -> LoweredComputation:
        """Returns one computation with its tensor graph; GraphError if edges form a cycle. Those
        that it calls count with the bytes in `peaks`: by default their lifetime peaks so far; or
        `bounds`, to bound all orders, or `leasts`.
        """
        peaks = self.peaks if peaks is None else peaks
        result = lower(self.dataflow, computation, self.pairs, peaks, self.released, self.kept)
        result.graph.validate()
        return result

    def charge(self, computation: Computation) -> LoweredComputation:
        """Returns a computation's graph, and sets its entry of `peaks` to its lifetime peak in the
        module's own schedule. `peaks` must have those of the computations that it calls.
        """
        lowered = self.lowered(computation)
        order = np.arange(len(lowered.graph.operators))
        self.peaks[computation] = peak_bytes(lowered.graph, order)
        return lowered

    def charge_all(self) -> LoweredComputation:
        """Sets all computations' `peaks` by `charge`, callees first; returns the entry's graph."""
        for computation in self.computations.values():
            lowered = self.charge(computation)
        return lowered

    def simulate(self) -> Assignment:
        """Returns XLA's buffer assignment of the module in `orders`, simulated."""
        return self.model.simulate(self.orders)

    def rewritten(
        self,
        aliases: Mapping[str, Sequence[Alias]],
        orders: Mapping[Computation, Sequence[Instruction]],
        holds: Mapping[str, Sequence[int]] | None = None,
    ) -> PlannedModule:
        """Makes a new module in which results are written over operands, and operands kept longer.

        Args:
          aliases: fusion name -> results to be written over operands (hlo.rewrite.aliases).
          orders: of every computation, those under which that is safe. They become the module's
            schedule: it says which of two values in one buffer is the earlier.
          holds: instruction name -> numbers of operands that must stay in memory until it has run.
        """
        edit = self._scheduled(orders).hold(holds or {})
        return self._edited(edit.alias(aliases))

    def guarded(self) -> PlannedModule:
        """Makes a module with the control edges (guards) that XLA will get to keep planned orders.
        XLA visits a guarded module in another order, and breaks ties among buffers otherwise. Where
        nothing is rematerialised after XLA's scheduler, no guards are needed: it returns itself.
        """
        if not PLATFORMS[self.target].computes_again:
            return self
        edit = self._scheduled(self.orders)
        return self._edited(edit.guard(self.dataflow.buffers, self.orders))

    def _scheduled(self, orders: Mapping[Computation, Sequence[Instruction]]) -> Edit:
        schedule = {c.name: [i.name for i in order] for c, order in orders.items()}
        return Edit(self.module).schedule(schedule)

    def _edited(self, edit: Edit) -> PlannedModule:
        """A new PlannedModule of the edited module, with the same lifetime peaks and bounds."""
        other = PlannedModule(edit.module(), self.target, self.released, self.kept)
        for name, computation in self.computations.items():
            twin = other.computations[name]
            for what in ("peaks", "leasts", "bounds"):
                mine, theirs = getattr(self, what), getattr(other, what)
                if computation in mine:
                    theirs[twin] = mine[computation]
        return other

    @staticmethod
    def translated(
        order: Sequence[Instruction], computation: Computation
    ) -> tuple[Instruction, ...]:
        """Converts an order to the instructions, by name, of the rewritten `computation`; an
        operand that was added runs before its user.
        """
        names = {i.name for i in order}
        own = {i.name: i for i in computation.instructions}
        result: list[Instruction] = []
        for old in order:
            new = own[old.name]
            result += [o for o in dict.fromkeys(new.operands) if o.name not in names]
            result.append(new)
        return tuple(result)
