"""One program, planned in several ways, run and compared with `jax.jit` bit for bit.

For a device that is not here it is compiled, checked and weighed, and not run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import olla_xla
from benchmarks.random_programs import callbacks
from benchmarks.random_programs.spec import Case, Program, Settings
from benchmarks.random_programs.training import Built, build
from benchmarks.refused import collected
from olla_xla import targets
from olla_xla.check.executable import check_executable, check_rewrite
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.plan_store import process_store
from olla_xla.errors import BudgetError, CheckError
from olla_xla.memory.module_state import scheduled_module
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.remat.loops.residual_choices import ResidualChoices
from olla_xla.tools.capture import capture

FAILURES = ("wrong", "refused", "larger", "failed", "crashed")
"""Kinds of outcomes that must not be."""

_STEPS = 2
_LIMITS = (
    r"no order found beats XLA's$",
    r"XLA assigned [\d,]+ bytes to the plan, [\d,]+ to its own order$",
    r"XLA would not leave results in the memory that out_shardings asks for$",
)
"""Reasons that name a limit of ours: the plan was made, and XLA's own order is as good."""
_REFUSALS = re.compile(r"olla_xla's check failed")
"""What is said, as a reason or in the log, where a referee stops what the planner made."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one plan.

    Attributes:
      kind: identical, compiled (for another target than "cpu", and not run), wrong, refused (a
        referee stopped the plan, or a rewrite that it had tried), larger, failed (to plan, without
        a reason that names a limit), budget (it cannot be met), unsteady (jit itself gives other
        bits each time) or invalid (jit itself fails).
      planned: whether another order than XLA's was run. reason: why not, or what differs.
      xla_bytes, bytes: the totals of jit and of the plan. seconds: to plan and compile.
      bindings, clones, stacks: results bound to operands, operators computed again, and scan
        residuals recomputed, in the plan.
    """

    kind: str
    planned: bool = False
    reason: str = ""
    xla_bytes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    bindings: int = 0
    clones: int = 0
    stacks: int = 0


@dataclasses.dataclass(frozen=True)
class _Results:
    """Results of the steps: path -> (type, shape, bytes); and what host callbacks saw."""

    leaves: dict[str, tuple[str, tuple[int, ...], bytes]]
    seen: callbacks.Seen


class Reference:
    """A program as `jax.jit` runs it.

    Attributes:
      is_run: whether it is run; for another target than "cpu" there are no results.
    """

    def __init__(self, program: Program, target: str = "cpu") -> None:
        self.program = program
        self.is_run = target == "cpu"
        with self.types(), _quiet():
            self.built, lowered = _lowered(program, target)
            self._compiled = lowered.compile()
            self.results = self.run(self._compiled)
        self.bytes = assigned_bytes(self._compiled)

    def run(self, compiled: Any) -> _Results:
        """The results of an executable of the program, where it can be run."""
        return _run(compiled, self.built) if self.is_run else _Results({}, callbacks.seen())

    def is_steady(self) -> bool:
        """Whether it gives the same bits again."""
        with self.types(), _quiet():
            return self.run(self._compiled) == self.results

    def types(self) -> contextlib.AbstractContextManager[None]:
        """A context that enables or disables JAX's 64-bit types, as the program says."""
        return jax.enable_x64(self.program.x64)


def check_case(case: Case) -> list[Outcome]:
    """One outcome for each plan of the case; they share the reference.

    Of a case without plans one outcome, of all choices of scan residuals to recompute (`stacks` is
    their number): each goes through the check; nothing is planned or run.
    """
    if not case.plans:
        return [_check_choices(case)]
    try:
        reference = Reference(case.program, case.target)
    except Exception as error:
        return [Outcome("invalid", reason=_said(error))] * len(case.plans)
    return [check(reference, one) for one in case.plans]


def _lowered(program: Program, target: str) -> tuple[Built, jax.stages.Lowered]:
    """A program for a target, with its arguments there, and its lowered stage."""
    built = build(program)
    if target != "cpu":
        built = built._replace(arguments=targets.target(target).place(built.arguments))
    return built, jax.jit(built.step, **built.jit_options).lower(*built.arguments)


def _check_choices(case: Case) -> Outcome:
    try:
        with jax.enable_x64(case.program.x64), _quiet():
            module = capture(_lowered(case.program, case.target)[1]).module
    except Exception as error:
        return Outcome("invalid", reason=_said(error))
    name, kind = "cpu", jax.devices()[0].device_kind
    if case.target != "cpu":
        chip = targets.target(case.target)
        name, kind = chip.platform, chip.kind
    number = 0
    try:
        cost = CostModel(device(name, kind), name)
        choices = ResidualChoices(scheduled_module(module), name, cost)
        for number in range(len(choices)):
            changed = choices.choice(number).module.data
            check_rewrite(module, changed, name, loops=True)
            check_executable(changed, name)
    except CheckError as error:
        return Outcome("refused", reason=f"choice {number}: {error}")
    except Exception as error:
        return Outcome("failed", reason=f"choice {number}: {_said(error)}")
    return Outcome("compiled", stacks=len(choices))


def check(reference: Reference, settings: Settings) -> Outcome:
    """Plans, runs and compares one program."""
    with reference.types(), collected() as refused:
        outcome = _checked(reference, settings)
    if outcome.kind in ("wrong", "unsteady"):
        return outcome
    if _REFUSALS.search(outcome.reason):
        return dataclasses.replace(outcome, kind="refused")
    if refused:
        return dataclasses.replace(outcome, kind="refused", reason=refused[0])
    return outcome


def _checked(reference: Reference, settings: Settings) -> Outcome:
    built, started = reference.built, time.monotonic()
    options: dict[str, Any] = dataclasses.asdict(settings)
    budget = options.pop("budget")
    if budget is not None:
        options["memory_budget"] = max(int(budget * reference.bytes), 1)
    process_store().clear()
    with _quiet() as caught:
        try:
            planned = olla_xla.plan(built.step, **built.jit_options, **options)
            compiled: Any = planned.lower(*built.arguments).compile()
        except BudgetError as error:
            return Outcome("failed" if budget is None else "budget", reason=str(error))
        except Exception as error:
            return Outcome("failed", reason=_said(error))
        warned = [str(w.message) for w in caught if issubclass(w.category, olla_xla.PlanWarning)]
        plan = compiled.plan if compiled.planned else None
        outcome = Outcome(
            kind="identical" if reference.is_run else "compiled",
            planned=compiled.planned,
            reason=compiled.reason or (plan.placement_note if plan else ""),
            xla_bytes=reference.bytes,
            bytes=assigned_bytes(compiled),
            seconds=time.monotonic() - started,
            bindings=sum(map(len, plan.aliases.values())) if plan else 0,
            clones=len(plan.clones) if plan else 0,
            stacks=plan.recomputed_residuals if plan else 0,
        )
        try:
            results = reference.run(compiled)
        except Exception as error:
            return dataclasses.replace(outcome, kind="failed", reason=_said(error))
    return _judged(outcome, reference, results, warned)


def forget() -> None:
    """Drops executables and plans of this process."""
    process_store().clear()
    jax.clear_caches()


def _judged(
    outcome: Outcome, reference: Reference, results: _Results, warned: list[str]
) -> Outcome:
    if difference := _difference(reference.results, results):
        kind = "wrong" if reference.is_steady() else "unsteady"
        return dataclasses.replace(outcome, kind=kind, reason=difference)
    if outcome.bytes > outcome.xla_bytes:
        return dataclasses.replace(outcome, kind="larger")
    if not outcome.planned and not any(re.match(limit, outcome.reason) for limit in _LIMITS):
        return dataclasses.replace(outcome, kind="failed", reason=outcome.reason or "no reason")
    unexpected = [w for w in warned if outcome.planned or not w.endswith(f": {outcome.reason}")]
    if unexpected:
        return dataclasses.replace(outcome, kind="failed", reason=unexpected[0])
    return outcome


def _run(compiled: Any, built: Built) -> _Results:
    """Two steps from fresh copies of the arguments, the state of the first in the second."""
    callbacks.watch()
    params, state, batch = _fresh(built.arguments)
    leaves: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for step in range(_STEPS):
        params, state, results = compiled(params, state, batch)
        for path, leaf in jax.tree.leaves_with_path((params, state, results)):
            leaves[f"step {step}{jax.tree_util.keystr(path)}"] = _bits(leaf)
        batch = _fresh(built.arguments[2])
    return _Results(leaves, callbacks.seen())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _fresh(tree: Any) -> Any:
    def copy(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.array(jax.random.key_data(leaf), copy=True))
        return jnp.array(leaf, copy=True)

    return jax.tree.map(copy, tree)


def _bits(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    name = str(leaf.dtype)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    if name in ("int4", "uint4"):
        array = array.astype(np.int8)
    return name, array.shape, array.tobytes()


def _difference(expected: _Results, found: _Results) -> str:
    """Which results differ, or ""."""
    wrong = [path for path, leaf in expected.leaves.items() if found.leaves.get(path) != leaf]
    if wrong:
        return f"{len(wrong)} of {len(expected.leaves)} results differ, first {wrong[0]}"
    kinds = ("ordered io", "ordered debug", "other")
    for name, ours, theirs in zip(kinds, found.seen, expected.seen, strict=True):
        if ours != theirs:
            return f"{name} callbacks saw {len(ours)} values, in jit {len(theirs)}, or others"
    return ""


def _quiet() -> Any:
    """Records all warnings: JAX says of each donated argument that it could not use it."""

    class _Catch(warnings.catch_warnings):
        def __enter__(self) -> Any:
            found = super().__enter__()
            warnings.simplefilter("always")
            return found

    return _Catch(record=True)
