"""The answer: a Plan for one module, and plan files, which keep it without loss.

A plan file is one JSON object: `{"format": "olla_xla.plan", "version": 11, "plan": {...}}`, where
"plan" has every field of `Plan` by name. Sizes are bytes, times seconds; a time limit without end
is null.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from olla_xla.errors import PlanFileError
from olla_xla.problem import summary
from olla_xla.problem.proof import Proof
from olla_xla.problem.stop_reason import StopReason

__all__ = ["VERSION", "CloneRecord", "LoopRecord", "Plan", "PlanStatus", "dumps", "loads"]

CloneRecord = tuple[str, str, tuple[str, ...], tuple[tuple[str, int], ...]]
"""One instruction computed again; see `Plan.clones`."""

LoopRecord = tuple[str, str, tuple[int, ...], int]
"""Stacks that a pair of loops does without; see `Plan.loops`."""


class PlanStatus(enum.StrEnum):
    """How good a plan is known to be."""

    OPTIMAL = "optimal"
    """Its predicted total is within the tolerance of the bound."""

    FEASIBLE = "feasible"
    """It changes XLA's order, and is not proven to be the best."""

    XLA = "xla"
    """XLA's own order is kept, and is not proven to be the best."""


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """A schedule for every planned computation of one module, with what is known about it.

    "predicted" figures come from our simulation of XLA's assignment rule, "assigned" ones from
    XLA's buffer assignment. All totals are arguments + outputs - aliases + temp, in bytes.

    Attributes:
      module: HLO module name.
      fingerprint: digest of the module without its schedule; a plan fits only that module.
      results: what tells the results of an executable of it: where the plan is an order alone,
        the digest of the executable's text (`hlo.text`), else that of its results as expressions
        of its arguments (`check.executable`); "" until it has been compiled.
      target: "cpu" or "cuda".
      order: computation name -> instruction names in execution order.
      aliases: fusion name -> results that are bound to write over a dying operand, as (index of the
        result, operand number).
      holds: instruction name -> numbers of operands that stay in memory for one step more, so that
        its results lie elsewhere.
      kernels: of the kernels whose rounding may depend on which of their operands and results are
        the same memory, which are (memory.kernels.Pattern), in XLA's own order and in this one.
      clones: what is computed again, in execution order, as (name of the clone, name of its
        original, names of its operands, (reader, operand number) of those of the module's own
        instructions that read it instead). `order` and all figures but XLA's are of the module
        with the clones in it; the fingerprint is of the module without.
      loops: stacks that loops do without, as (name of the loop that wrote them, name of the one
        that read them, numbers of the elements of the first one's state, turns from one whose
        beginning is kept to the next, 0 where all are that are needed). `order`, `clones` and all
        figures but XLA's are of the module without; the fingerprint is of the module with them.
      sunk: names of what moves arrays before loops for these alone, which take their slices from
        where those were instead. `order`, `loops`, `clones` and all figures but XLA's are of the
        module without; the fingerprint is of the module with them.
      step_seconds: predicted time of one run without clones; 0 where it was not asked for.
      added_seconds: predicted time that the clones add, and transfers that hide less.
      least_added_seconds: no choice of clones that the integer program knows adds less at the
        same peak; 0 where that is not known.
      exposed_seconds: part of `added_seconds`: predicted time of what no longer runs while a
        transfer is under way, at most what that makes the step take longer.
      least_stack_bytes: within the same time no choice of `loops` that the integer program knows
        keeps stacks of fewer bytes; 0 where that is not known.
      moved_bytes, added_moved_bytes: bytes moved to and from memory, likewise.
      offsets: tensor name -> (offset, size) in one arena of `predicted_bytes` or less.
      xla_bytes: total of XLA's own order: assigned where that was compiled, else predicted.
      xla_predicted_bytes: predicted total of XLA's own order.
      predicted_bytes: predicted total of this order.
      peak_bytes: lifetime peak of this order (in-place reuse counted); 0 where the module makes so
        little that no plan was looked for.
      least_peak_bytes: the least lifetime peak of any order that was found; this order trades some
        of it where XLA's assignment rule makes that pay.
      lower_bound_bytes: no order of this module has a smaller lifetime peak or total.
      assigned_bytes: XLA's total for this order, once compiled; None before.
      status: how good it is known to be.
      stopped_by: why the search ended.
      source: name of the candidate that won, e.g. "xla", "list", "search".
      candidates: candidate name -> (predicted bytes, lifetime peak bytes).
      proofs: what a solver proved, for each computation that was planned by the integer program.
      seconds: planning time.
      steps: search steps taken.
      seed: seed of the search.
      time_limit: seconds allowed. step_limit: steps allowed, or None.
      tolerance: relative gap to the bound at which the search was content.
    """

    module: str
    fingerprint: str
    target: str
    order: Mapping[str, tuple[str, ...]]
    offsets: Mapping[str, tuple[int, int]]
    xla_bytes: int
    xla_predicted_bytes: int
    predicted_bytes: int
    peak_bytes: int
    least_peak_bytes: int
    lower_bound_bytes: int
    assigned_bytes: int | None = None
    results: str = ""
    status: PlanStatus = PlanStatus.FEASIBLE
    stopped_by: StopReason = StopReason.NO_GAIN
    source: str = "xla"
    candidates: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, tuple[tuple[tuple[int, ...], int], ...]] = dataclasses.field(
        default_factory=dict
    )
    holds: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    kernels: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    clones: tuple[CloneRecord, ...] = ()
    loops: tuple[LoopRecord, ...] = ()
    sunk: tuple[str, ...] = ()
    step_seconds: float = 0.0
    added_seconds: float = 0.0
    least_added_seconds: float = 0.0
    exposed_seconds: float = 0.0
    least_stack_bytes: int = 0
    moved_bytes: int = 0
    added_moved_bytes: int = 0
    proofs: tuple[Proof, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    seed: int = 0
    time_limit: float = 0.0
    step_limit: int | None = None
    tolerance: float = 0.0

    @property
    def gap(self) -> float:
        """Lifetime gap, (least peak - bound) / bound: how far any order's peak could still fall."""
        return (self.least_peak_bytes - self.lower_bound_bytes) / max(self.lower_bound_bytes, 1)

    @property
    def loss(self) -> float:
        """Assignment loss, (total - least peak) / least peak: what XLA's placing rule costs.

        Of the assigned total where it is known, else of the predicted one.
        """
        total = self.predicted_bytes if self.assigned_bytes is None else self.assigned_bytes
        return (total - self.least_peak_bytes) / max(self.least_peak_bytes, 1)

    @property
    def overhead(self) -> float:
        """Predicted time that is added, as a part of the step's."""
        return self.added_seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def is_rewritten(self) -> bool:
        """Whether instructions come or go under it."""
        return bool(self.clones or self.loops or self.sunk)

    @property
    def keeps_xla(self) -> bool:
        """Whether nothing better than XLA's own order was found, so that this is kept."""
        return self.predicted_bytes >= self.xla_predicted_bytes

    def __repr__(self) -> str:
        return f"<Plan of {self.module}, {self.target}: {summary.in_a_line(self)}>"

    def summary(self) -> str:
        """What is known of it as a table in plain text, to print; sizes in MB of 2^20 bytes."""
        return summary.table(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan file in one step: nobody ever reads half of it.

        Raises:
          PlanFileError: the file cannot be written.
        """
        path = Path(path)
        # Not tempfile's: its files are for their owner only, plan files are there to be shared.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_bytes(dumps(self))
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise PlanFileError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a plan file.

        Raises:
          PlanFileError: it cannot be read, is not a plan file, or is of another version.
        """
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise PlanFileError(f"cannot read {path}: {error.strerror}") from error
        return loads(text, str(path))


VERSION = 11
"""Of the format; raised whenever a field is added, removed or changes its meaning, `loops` too."""

_FORMAT = "olla_xla.plan"


def dumps(plan: Plan) -> bytes:
    """The plan as the text of a plan file; equal plans give equal bytes."""
    document = {"format": _FORMAT, "version": VERSION, "plan": plan}
    # Options may be numpy's numbers, which msgspec takes for no floats.
    return msgspec.json.encode(document, enc_hook=float) + b"\n"


def loads(text: bytes | str, name: str = "plan") -> Plan:
    """Reads the text of a plan file.

    Args:
      text: as `dumps` writes it.
      name: what to call the text in errors, such as the file's path.

    Raises:
      PlanFileError: not a plan file, of another version, or a field is missing or malformed.
    """
    try:
        document = msgspec.json.decode(text)
    except ValueError as error:
        raise PlanFileError(f"{name} is not JSON ({error}); save the plan again") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise PlanFileError(f"{name} is not a plan file; make one with --plan_out or Plan.save")
    if document.get("version") != VERSION:
        raise PlanFileError(
            f"{name} has plan version {document.get('version')}, this olla_xla reads {VERSION}; "
            "plan again"
        )
    fields = document.get("plan")
    if not isinstance(fields, dict):
        raise PlanFileError(f"{name} has no plan in it; save the plan again")
    known = {f.name for f in dataclasses.fields(Plan)}
    if missing := sorted(known - fields.keys()):
        raise PlanFileError(f"{name} has no field {missing[0]}; save the plan again")
    if unknown := sorted(fields.keys() - known):
        raise PlanFileError(f"{name} has an unknown field {unknown[0]}; save the plan again")
    if fields["time_limit"] is None:
        fields["time_limit"] = math.inf
    try:
        return msgspec.convert(fields, Plan)
    except msgspec.ValidationError as error:
        raise PlanFileError(
            f"{name} has a malformed field ({error}); save the plan again"
        ) from error
