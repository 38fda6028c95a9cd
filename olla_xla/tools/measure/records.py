"""What was measured of a step run planned and unplanned: outputs, memory, time.

The cost of recomputation is measured apart: a plan that recomputes and XLA's own executable run in
alternating turns, so that the machine's noise affects both alike.
"""

import dataclasses
import math
import statistics

from olla_xla.problem.options import PlanOptions

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class RunRequest:
    """A request to run a model's step in a process of its own, for measuring.

    Attributes:
      model, batch_size, optimizer: which step; see `olla_xla.tools.models`.
      steps: how many, at least 2; 0 only compiles.
      planned: through `olla_xla.plan`, else through `jax.jit`.
      turns: if not 0, runs that many steps of the plan and of XLA's own executable, in turns.
      platform: "cpu" or "gpu".
      options: of the plan; their seed is that of the arguments too.
      xla_flags: flags to add to XLA_FLAGS.
    """

    model: str
    batch_size: int
    optimizer: str
    steps: int
    planned: bool
    platform: str = "cpu"
    options: PlanOptions = PlanOptions(time_limit=20.0)
    turns: int = 0
    xla_flags: str = ""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one process measured; sizes in bytes, times in seconds.

    Attributes:
      planned: True when the executable ran another order than XLA's own. reason: why not, or "".
      leaves: names of the output's leaves. digests: of each leaf after each step.
      step_seconds: of each step but the first.
      assigned_bytes: XLA's total for the executable.
      xla_bytes: its total for its own order, where a plan knows it.
      process_peak_bytes: the most that was resident in the whole life of the process.
      steps_peak_bytes: the most that was resident while the steps ran, less what was resident
        before them besides the arguments; None where the system does not say.
      device_peak_bytes: the most that the device's allocator held, less what it held before the
        arguments were made; None on CPU, or where something before the steps took more.
      cached: True when nothing was compiled in the process. device: its kind.
      clones: instructions that are computed again. stacks: recomputed scan residuals. overhead: the
        time that both were predicted to add, as a part of the step's.
      predicted_seconds: of a step, by the cost model; None where nothing ran.
      predicted_bytes, xla_predicted_bytes: totals by our model, of the plan and of XLA's order;
        None where nothing was planned.
      arguments_bytes: the arguments' own part of what was in use.
      profiled_bytes: the peak in another step by JAX's profiler; None without XProf and on CPU.
    """

    planned: bool
    reason: str
    leaves: tuple[str, ...]
    digests: tuple[tuple[str, ...], ...]
    step_seconds: tuple[float, ...]
    assigned_bytes: int
    xla_bytes: int | None
    process_peak_bytes: int
    steps_peak_bytes: int | None
    device_peak_bytes: int | None
    cached: bool
    device: str
    clones: int = 0
    stacks: int = 0
    overhead: float = 0.0
    predicted_seconds: float | None = None
    predicted_bytes: int | None = None
    xla_predicted_bytes: int | None = None
    arguments_bytes: int | None = None
    profiled_bytes: int | None = None

    @property
    def seconds(self) -> float:
        """Median step time in seconds."""
        return statistics.median(self.step_seconds)

    @property
    def measured_bytes(self) -> int | None:
        """Peak bytes in use: by the device's allocator, else resident in the steps; or None."""
        return self.steps_peak_bytes if self.device_peak_bytes is None else self.device_peak_bytes


@dataclasses.dataclass(frozen=True)
class Variant:
    """Measurements of one of two executables whose steps were run alternately.

    Attributes:
      assigned_bytes: XLA's total. predicted_seconds: of a step, by the cost model.
      step_seconds: of each step. digests: of each leaf after one step from the same arguments.
    """

    assigned_bytes: int
    predicted_seconds: float
    step_seconds: tuple[float, ...]
    digests: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Median step time in seconds."""
        return statistics.median(self.step_seconds)


@dataclasses.dataclass(frozen=True)
class Recomputation:
    """What was measured of a plan that recomputes, run alternately with XLA's own executable.

    Attributes:
      kept: XLA's own. again: the plan's.
      planned: time that is added as the plan predicts it, as a part of the step's: that of the
        operators that run again, less what they save.
    """

    kept: Variant
    again: Variant
    planned: float

    @property
    def _overheads(self) -> list[float]:
        """Measured time that the plan adds, as a part of XLA's step, by pair of steps; sorted."""
        pairs = zip(self.again.step_seconds, self.kept.step_seconds, strict=True)
        return sorted(again / kept - 1 for again, kept in pairs)

    @property
    def overhead(self) -> float:
        """Measured time that the plan adds, as a part of XLA's step: the median over step pairs."""
        return statistics.median(self._overheads)

    @property
    def interval(self) -> tuple[float, float]:
        """A confidence interval (low, high) of `overhead`: of 95 %, or less with very few steps.
        Of n independent pairs, the k-th least and the k-th greatest enclose the median unless fewer
        than k are on one side of it, which is binomial, however times are distributed.
        """
        overheads = self._overheads
        turns = len(overheads)
        k, outside = 0, math.comb(turns, 0) / 2**turns
        while k < (turns - 1) // 2 and 2 * outside <= 1 - _CONFIDENCE:
            k += 1
            outside += math.comb(turns, k) / 2**turns
        k = max(k - 1, 0)
        return overheads[k], overheads[-1 - k]

    @property
    def predicted(self) -> float:
        """Time that the plan adds, as a part of a step, by the cost model of both final modules.
        Unlike `planned` it counts that a smaller temporary is allocated in less time, and that
        operators do not run that XLA removes, since their results are recomputed.
        """
        return self.again.predicted_seconds / self.kept.predicted_seconds - 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The measurements of one step, run with a plan and without.

    Attributes:
      planned, unplanned: what was measured.
      difference: the first output that is not identical bit for bit after some step; "" for none.
      recomputation: what computing again costs, measured; None if the plan computes nothing again.
    """

    planned: Measured
    unplanned: Measured
    difference: str
    recomputation: Recomputation | None = None

    @property
    def time_ratio(self) -> float:
        """Median step time with the plan, divided by that without."""
        return self.planned.seconds / self.unplanned.seconds


def compare(planned: Measured, unplanned: Measured) -> str:
    """Says which output first differs between the runs, and after which step; "" if none does."""
    if planned.leaves != unplanned.leaves:
        return "the planned and unplanned outputs have different structures"
    if len(planned.digests) != len(unplanned.digests):
        return f"{len(planned.digests)} steps planned, {len(unplanned.digests)} unplanned"
    for step, (ours, theirs) in enumerate(zip(planned.digests, unplanned.digests, strict=True)):
        for leaf, a, b in zip(planned.leaves, ours, theirs, strict=True):
            if a != b:
                return f"output {leaf} differs after step {step + 1}"
    return ""
