"""The parts of a plan: the order of a module's instructions, its changes, figures, the search.

`Plan` has the fields of all four, flat, and so has a plan file.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

HINTED_OVERHEAD = 0.2
"""The `max_overhead` for which `PlanFigures.recomputed_bytes` is estimated."""

LONGEST_PATH = 1.01
"""Times the predicted time of a run in XLA's own order that a plan may take by default."""

CloneRecord = tuple[str, str, tuple[str, ...], tuple[tuple[str, int], ...]]
"""One instruction computed again; see `PlanEdits.clones`."""

JoinRecord = tuple[str, int, int]
"""Two elements of a loop's state that become one array; see `PlanEdits.joined`."""


class LoopRecord(NamedTuple):
    """For a pair of loops: the scan residuals that a plan recomputes, and those it stores instead.

    A scan residual is an array that one loop writes and a later one reads slice by slice.

    Attributes:
      writer, reader: names of the while instructions that write scan residuals and read them.
      dropped: elements of the writer's state that are removed; their slices are recomputed.
      every: checkpointed loops: the state is kept at the start of every so many iterations, and the
        iterations between run again; 0: the loops are not checkpointed.
      kept: scan residuals stored instead: name of the instruction in the writer's body, index of
        the leaf of its result.
    """

    writer: str
    reader: str
    dropped: tuple[int, ...]
    every: int = 0
    kept: tuple[tuple[str, tuple[int, ...]], ...] = ()


class StopReason(enum.StrEnum):
    """Why a search for an order or for offsets ended; text in plan files and benchmarks."""

    PROOF = "proof"
    """A bound shows that no more than the tolerance is left to gain, or that there is no answer."""

    STALL = "stall"
    """Everything was tried, and nothing improved any more."""

    NO_GAIN = "no_gain"
    """Next to nothing could be gained over XLA's own order: no other was searched for."""

    CAPACITY = "capacity"
    """A packing within the given capacity was found; none smaller is required."""

    HEURISTIC = "heuristic"
    """The method is one heuristic alone, and it has run."""

    TIME_LIMIT = "time_limit"
    """The wall-clock seconds are used up."""

    STEP_LIMIT = "step_limit"
    """The steps of the search for an order are used up."""

    NODE_LIMIT = "node_limit"
    """The nodes of the search for offsets are used up."""

    SIZE_LIMIT = "size_limit"
    """The problem is too large for the exact search."""


class PlanStatus(enum.StrEnum):
    """How good a plan is known to be: optimal, feasible (better than XLA's), or XLA's order."""

    OPTIMAL = "optimal"
    """Its predicted total is within the tolerance of the bound."""

    FEASIBLE = "feasible"
    """It changes XLA's order, and is not proven to be the best."""

    XLA = "xla"
    """XLA's own order is kept, and is not proven to be the best."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanSchedule:
    """The execution order of a module, and where its results lie in memory.

    Attributes:
      module: HLO module name.
      fingerprint: `Module.fingerprint`, a digest of the module; a plan fits only that module.
      results: a digest that identifies the results of its executable: of the executable's text
        (`hlo.text`) if the plan is an order alone, else of its results as expressions of its
        arguments (`check.executable`); "" until it has been compiled.
      target: "cpu", "cuda" or "tpu".
      order: computation name -> instruction names in execution order.
      aliases: fusion name -> results that are bound to write over a dying operand, as (index of the
        result, operand number).
      holds: instruction name -> numbers of operands that stay in memory for one step more, so that
        its results lie elsewhere.
      kernels: for kernels whose rounding may depend on which of their operands and results share
        memory: which do so (memory.kernels.Pattern), in XLA's own order and in this one.
      offsets: tensor name -> (offset, size) in one arena, by XLA's rule.
      placement: "own" where buffers lie where we placed them (`PlanOptions.placement`), or "xla".
      placement_note: why XLA's places are kept although others were asked for; or "".
      without_rematerialization: whether XLA's own rematerialization, which would act, is off when
        it is compiled, since it fits.
    """

    module: str
    fingerprint: str
    results: str = ""
    target: str
    order: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]] = dataclasses.field(
        default_factory=dict
    )
    holds: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    kernels: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    offsets: Mapping[str, tuple[int, int]]
    placement: str = "xla"
    placement_note: str = ""
    without_rematerialization: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanEdits:
    """How a plan changes the module that it orders, and the predicted time of a run.

    Attributes:
      clones: what is computed again, in execution order, as (name of the clone, name of its
        original, names of its operands, (reader, operand number) of those of the module's own
        instructions that read it instead). `order` and all figures but XLA's are of the module
        with the clones in it; the fingerprint is of the module without.
      loops: scan residuals that are rematerialised, one LoopRecord for each pair of a forward and a
        backward loop. `order`, `clones` and all figures but XLA's are of the module without these
        residuals; the fingerprint is of the module with them.
      sunk: names of instructions that move an array before a loop for that loop alone. They are
        removed: the loop slices the array where it was. `order`, `loops`, `clones` and all figures
        but XLA's are of the module without them; the fingerprint is of the module with them.
      joined: pairs of arrays that become one: (name of a loop, element of its state that it reads
        slice by slice, element that it writes so), in the module without `sunk`; before these, for
        each array that is updated and no longer sliced and stacked: (what stacked it, 0, 0).
      step_seconds: predicted time of one run without clones; 0 if it was not computed.
      added_seconds: predicted time added by clones, and by transfers that overlap with less.
      least_added_seconds: no choice of clones that the integer program knows adds less at the
        same peak; 0 where that is not known.
      exposed_seconds: part of `added_seconds`: predicted time of computation that no longer
        overlaps with a transfer, at most the time by which that lengthens the step.
      path_seconds, xla_path_seconds: predicted time of one run as a GPU's streams run it
        (remat.cost.path), of the plan and of XLA's own order; 0 on a CPU, where nothing runs
        concurrently.
      least_stack_bytes: within the same time no choice of `loops` that the integer program knows
        keeps fewer bytes of scan residuals; 0 where that is not known.
      moved_bytes, added_moved_bytes: bytes moved to and from memory, without clones and by them.
    """

    clones: tuple[CloneRecord, ...] = ()
    loops: tuple[LoopRecord, ...] = ()
    sunk: tuple[str, ...] = ()
    joined: tuple[JoinRecord, ...] = ()
    step_seconds: float = 0.0
    added_seconds: float = 0.0
    least_added_seconds: float = 0.0
    exposed_seconds: float = 0.0
    path_seconds: float = 0.0
    xla_path_seconds: float = 0.0
    least_stack_bytes: int = 0
    moved_bytes: int = 0
    added_moved_bytes: int = 0

    @property
    def recomputed_residuals(self) -> int:
        """The number of scan residuals (arrays that one loop writes and a later one reads slice by
        slice) that the plan recomputes instead of storing them.
        """
        return sum(len(record.dropped) for record in self.loops)

    @property
    def added_residuals(self) -> int:
        """The number of scan residuals that the plan adds, to recompute others from them."""
        return sum(len(record.kept) for record in self.loops)


class HostArray(NamedTuple):
    """A scan residual, which one loop writes and a later one reads, that is kept in host memory.

    Attributes:
      array: XLA's shape, such as "bf16[16,8,2048,7168]". bytes: of it, on one device.
      line: "file:line" that makes its slices, or "".
      writer, reader: the loops, of which each iteration sends one slice, and fetches one.
    """

    array: str
    bytes: int
    line: str
    writer: str
    reader: str


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanFigures:
    """The memory that a plan takes, in bytes. Totals are arguments + outputs - aliases + temp.

    "predicted" figures come from our simulation of XLA's assignment rule, "assigned" ones from
    XLA's buffer assignment. A lifetime peak is the most bytes that are live at one step.

    Attributes:
      xla_bytes: total of XLA's own order: assigned where that was compiled, else predicted.
      xla_predicted_bytes: predicted total of XLA's own order.
      predicted_bytes: predicted total of this order.
      peak_bytes: lifetime peak of this order (in-place reuse counted); 0 where the module makes so
        little that no plan was looked for.
      least_peak_bytes: the least lifetime peak of any order that was found; this order trades some
        of it where XLA's assignment rule makes that pay.
      lower_bound_bytes: no order of this module has a smaller lifetime peak or total.
      assigned_bytes: XLA's total for this order, once compiled; None before.
      recomputed_bytes: about what the step would take with `max_overhead=0.2`; 0 where that was
        not estimated: the plan saves much, or recomputes already, or hardly anything could go.
      recovered_bytes: of `assigned_bytes`, what XLA's places for this order would take more; 0 with
        XLA's places.
      host_bytes: XLA's total in host memory, which no other total counts; 0 before it is compiled.
      host_arrays: the scan residuals in it, largest first.
    """

    xla_bytes: int
    xla_predicted_bytes: int
    predicted_bytes: int
    peak_bytes: int
    least_peak_bytes: int
    lower_bound_bytes: int
    assigned_bytes: int | None = None
    recomputed_bytes: int = 0
    recovered_bytes: int = 0
    host_bytes: int = 0
    host_arrays: tuple[HostArray, ...] = ()


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of one integer program, for an order (`method="ilp"`) or for places of buffers.

    Attributes:
      computation: its name. backend: the solver.
      status: "optimal" (no order has a smaller peak), "feasible" (a limit was reached first),
        "unknown" (the program was too large to build) or "error" (the solver failed).
      start_bytes: peak of the search's order, with which the solver began. The peak is the lifetime
        peak; for places, the height of the temporaries in their allocations, XLA's at the start.
      peak_bytes: of what came out; for orders never more.
      cut_bytes: the bound with which it began, by minimum cuts and the like.
      bound_bytes: no order has a smaller one: the solver's, where that is more.
      variables, rows: of the program; 0 where it was not built.
      seconds: building it, solving it and checking the order.
      message: what the solver said, or what kept it from an answer.
      what: "order", or "places" (`placement="own"`).
    """

    computation: str
    backend: str
    status: str
    start_bytes: int
    peak_bytes: int
    cut_bytes: int
    bound_bytes: int
    variables: int
    rows: int
    seconds: float
    message: str
    what: str = "order"

    @property
    def gap(self) -> float:
        """(peak - bound) / bound: 0 where the peak is proven to be the least."""
        return (self.peak_bytes - self.bound_bytes) / max(self.bound_bytes, 1)

    @property
    def proven_by(self) -> str:
        """What proved the peak the least: "cut" (no program was built), "solver"; "" if nothing."""
        if self.peak_bytes > self.bound_bytes:
            return ""
        return "solver" if self.rows else "cut"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanSearch:
    """How a plan was found, and how good it is known to be.

    Attributes:
      status: how good it is known to be.
      stopped_by: why the search ended.
      source: name of the candidate that won, e.g. "xla", "list", "search".
      candidates: candidate name -> (predicted bytes, lifetime peak bytes).
      proposed, refused: changes of the module and solvers' orders that were tried, and those of
        them that could not be written or that the referee refused. A refusal is a bug of ours; the
        plan goes on without it, and may take more memory.
      front: of the plans with recomputation that were met, those that none was better than, as
        (predicted seconds added, predicted bytes) by rising time, at most four.
      proofs: what a solver proved, for each computation that was planned by the integer program.
      seconds: planning time.
      steps: search steps taken.
      seed: seed of the search.
      time_limit: seconds allowed. step_limit: steps allowed, or None.
      tolerance: relative gap to the bound at which the search ends.
    """

    status: PlanStatus = PlanStatus.FEASIBLE
    stopped_by: StopReason = StopReason.NO_GAIN
    source: str = "xla"
    candidates: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    proposed: int = 0
    refused: int = 0
    front: tuple[tuple[float, int], ...] = ()
    proofs: tuple[Proof, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    seed: int = 0
    time_limit: float = 0.0
    step_limit: int | None = None
    tolerance: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanFields(PlanSearch, PlanFigures, PlanEdits, PlanSchedule):
    """All fields of a plan, of its four parts, and figures that are computed from them."""

    @property
    def gap(self) -> float:
        """Lifetime gap, (least peak - bound) / bound: by how much orders might still improve."""
        return (self.least_peak_bytes - self.lower_bound_bytes) / max(self.lower_bound_bytes, 1)

    @property
    def total_bytes(self) -> int:
        """The plan's memory by XLA's accounting: assigned where that is known, else predicted."""
        return self.predicted_bytes if self.assigned_bytes is None else self.assigned_bytes

    @property
    def loss(self) -> float:
        """Assignment loss, (total - least peak) / least peak: the cost of XLA's placement rule."""
        return (self.total_bytes - self.least_peak_bytes) / max(self.least_peak_bytes, 1)

    @property
    def overhead(self) -> float:
        """Added predicted time as a fraction of the step's; 0 if that was not computed."""
        return self.added_seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def slowdown(self) -> float:
        """Added predicted time on a GPU's streams, as a fraction of XLA's own; 0 if not known."""
        return self.path_seconds / self.xla_path_seconds - 1 if self.xla_path_seconds else 0.0

    def is_longer(self, seconds: float) -> bool:
        """Whether a predicted run time of `seconds` is more than the plan may take.

        The limit is 1 % more than `xla_path_seconds`, which must be known. It does not apply to
        plans with `added_seconds`, since the options allow these.
        """
        return self.added_seconds <= 0 and seconds > LONGEST_PATH * self.xla_path_seconds

    @property
    def is_rewritten(self) -> bool:
        """Whether the plan changes instructions of the module, not only their order and memory."""
        return bool(self.clones or self.loops or self.sunk or self.joined)

    @property
    def keeps_xla(self) -> bool:
        """Whether the plan's predicted total is not below XLA's own, so that XLA's is kept."""
        return self.predicted_bytes >= self.xla_predicted_bytes
