"""Compiles a function with a planned schedule: one compile, with the planner in its midst.

1. The first time: XLA hands the module over as it has scheduled it (hook.py) and waits; the planner
   runs, and the schedule goes straight back. XLA's own total is the predicted one. Should XLA
   assign another total than predicted, XLA's own order is compiled too, and the better one kept.
2. With a stored plan: the same compile, and the hook only writes the schedule.

The module carries a token made from the plan's key (plan_store.py), which so is part of the key of
JAX's persistent cache. What that serves says in attributes of its instructions which plan it runs,
and is used only if that is the stored one.

The compiles and the choice between them use public API only. `Lowered.compile()` keeps one
executable, the one that a call of the jitted function then runs; `compile(compiler_options={})`
does not. Compiles of one `Lowered` are memoized under the module's text and JAX's trace context,
so each has its own token and a harmless context of its own (`_next_scope`), and `compile()` under
the winner's costs nothing. Were the memo gone, it would compile once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import itertools
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from hlo.module import module_from_bytes
from olla_xla.check.executable import results_digest
from olla_xla.check.graph import lifetime_peak
from olla_xla.compile import objection, plan_store
from olla_xla.compile.accounting import (
    Donation,
    assigned_bytes,
    assignment_proto,
    donation,
    final_module,
    mentioned_bytes,
    scratch_bytes,
    temporary_bytes,
)
from olla_xla.compile.hook import Request, listening
from olla_xla.compile.jax_private import forget_compiles, no_cache_writes
from olla_xla.compile.order import compare_orders
from olla_xla.compile.waiting import waiting
from olla_xla.errors import BudgetError, CheckError, OllaError, PlanMismatchError
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

__all__ = [
    "MEMORY_OPTIMIZED",
    "Captured",
    "Compiled",
    "Donation",
    "Outcome",
    "assigned_bytes",
    "capture",
    "compile_planned",
    "compile_rewritten",
    "compile_without_clones",
    "donation",
    "logger",
    "require_budget",
]

logger = logging.getLogger("olla_xla")

_ATTRIBUTES = "mhlo.frontend_attributes"
_KEY = "olla_xla.request"
_MARKED = re.compile(rb"olla_xla-applied-([0-9a-f]{32})")
MEMORY_OPTIMIZED = {
    "cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
}
"""By platform, the compiler options of XLA's scheduler for memory where it is not the default."""
_NO_HOOK = "XLA did not hand over its schedule; only the cpu and cuda backends are supported"
_NO_GAIN = "no better order was found"
_SMALL = 256 * 2**10  # bytes of temporaries below which a plan is not looked for by default
_SURPRISE = 1e-6  # part of its assigned total by which a prediction may be off
_BUDGET_TRIES = 3  # plans for a budget, each allowing for how far the one before was off


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A compiled function and how it came to its schedule.

    Attributes:
      compiled: JAX's compiled stage, with the plan's schedule or XLA's own.
      plan: describes the schedule in use; None when planning failed.
      planned: True when the schedule in use is not XLA's own.
      reason: why XLA's own schedule is used, or "".
      error: what went wrong in planning, or None.
      objection: what the referee said against the planned executable, with the file that has the
        case in it, or "".
    """

    compiled: jax.stages.Compiled
    plan: Plan | None
    planned: bool
    reason: str = ""
    error: Exception | None = None
    objection: str = ""


def compile_planned(
    lowered: jax.stages.Lowered,
    options: PlanOptions,
    *,
    environment: str,
    store: plan_store.PlanStore | None = None,
    compiler_options: dict[str, Any] | None = None,
    **compile_kwargs: Any,
) -> Outcome:
    """Compiles `lowered` with a planned schedule where that lowers XLA's total.

    Calls of the jitted function that `lowered` came from then run the same executable, unless
    `compiler_options` or other `compile` arguments are given (as in JAX).

    Args:
      lowered: JAX's lowered stage; nothing else may compile it meanwhile.
      options: limits and seed.
      environment: part of the key of reusable plans: names the devices, their runtime and the
        compiler options that `lowered` brings along.
      store: where plans are kept for reuse; the process's own by default.
      compiler_options: as for `Lowered.compile`; other arguments of it in `compile_kwargs`.

    Raises:
      BudgetError: XLA assigns more than the options' memory budget to the best plan.
      Whatever XLA raises compiling its own schedule. Trouble with the plan is in the outcome.
    """
    compiles = _Compiles(lowered, compiler_options, compile_kwargs)
    try:
        outcome = _compile(compiles, options, environment, store, compiler_options)
        outcome = dataclasses.replace(outcome, compiled=compiles.kept(outcome.compiled))
    finally:
        compiles.forget()
    require_budget(outcome.compiled, options, outcome.reason)
    return outcome


def compile_without_clones(lowered: jax.stages.Lowered, plan: Plan) -> jax.stages.Compiled:
    """Compiles `lowered` in a plan's order with nothing computed again, whatever memory it takes.

    Raises:
      PlanMismatchError: the plan was made for another module, or XLA did not keep the order.
    """
    from olla_xla.remat.without_clones import without_clones

    compiles = _Compiles(lowered, None, {})
    try:
        captured = compiles.capture()
        bare = without_clones(captured.module, plan)
        compiled = compiles.apply(bare).compiled
        if difference := _difference(compiled, bare):
            raise PlanMismatchError(difference)
    finally:
        compiles.forget()
    return compiled


def compile_rewritten(
    lowered: jax.stages.Lowered, rewrite: Callable[[bytes], bytes]
) -> jax.stages.Compiled:
    """Compiles `lowered` with the scheduled module rewritten, whatever comes of it.

    Args:
      lowered: JAX's lowered stage; calls of its function never run the executable.
      rewrite: serialized HloModuleProto as XLA scheduled it -> the one to go on with.

    Raises:
      OllaError: the backend has no hook. Whatever `rewrite` or XLA raises.
    """
    compiles = _Compiles(lowered, None, {})
    try:
        return compiles.rewritten(rewrite)
    finally:
        compiles.forget()


def require_budget(compiled: jax.stages.Compiled, options: PlanOptions, reason: str) -> None:
    """Raises BudgetError, with `reason`, if an executable takes more than the options allow."""
    if options.budget_bytes is not None and assigned_bytes(compiled) > options.budget_bytes:
        raise BudgetError(options.budget_bytes, assigned_bytes(compiled), reason)


def _compile(
    compiles: _Compiles,
    options: PlanOptions,
    environment: str,
    store: plan_store.PlanStore | None,
    compiler_options: dict[str, Any] | None,
) -> Outcome:
    """The best executable, planned or XLA's own; trouble with the plan is in the outcome."""
    try:
        key = plan_store.plan_key(compiles.text, environment, compiler_options, options)
        store = store or plan_store.process_store()
        plan = store.load(key)
        if plan is not None:
            with contextlib.suppress(PlanMismatchError):
                return _known(compiles, plan, key)
            logger.info("%s: the stored plan no longer fits; planning again", plan.module)
        outcome = _fresh(compiles, options, key)
        if outcome.plan is not None and not outcome.objection:
            store.save(key, outcome.plan)
        return outcome
    except BudgetError:
        raise
    except Exception as error:
        return _failed(compiles.own(), error)


def _failed(compiled: jax.stages.Compiled, error: Exception) -> Outcome:
    """XLA's own executable, and what went wrong in planning."""
    logger.debug("planning failed", exc_info=error)
    reason = str(error) or type(error).__name__
    if not isinstance(error, OllaError):
        reason = f"{type(error).__name__}: {reason}"
    return Outcome(compiled, None, False, reason, error)


def _known(compiles: _Compiles, plan: Plan, key: str) -> Outcome:
    """The executable of a stored plan.

    Raises:
      PlanMismatchError: the module is not the plan's.
    """
    if plan.predicted_bytes >= plan.xla_predicted_bytes:
        # A stored plan without a gain describes XLA's order already.
        logger.info("%s: %s", plan.module, _NO_GAIN)
        return Outcome(compiles.own(key), plan, False, _NO_GAIN)
    return _chosen(compiles, plan, compiles.apply(plan, key))


@dataclasses.dataclass(eq=False)
class _Work:
    """What the planner did while XLA waited.

    Attributes:
      captured: the module as XLA scheduled it; None if it was never handed over.
      plan: the plan. written: whether it went back to XLA. objects: what the referee said.
      error: why there is no plan.
      small: whether the module makes so little that no plan was looked for.
    """

    captured: Captured | None = None
    plan: Plan | None = None
    written: bool = False
    objects: str = ""
    error: Exception | None = None
    small: bool = False


def _load_planner() -> None:
    """Loads the planner's imports and compiled loops; trouble with it shows where it is used."""
    try:
        importlib.import_module("olla_xla.planner.warm_up").loaded()
    except Exception as error:
        logger.debug("loading the planner failed", exc_info=error)


def _small_plan(captured: Captured, compiled: jax.stages.Compiled) -> Plan:
    """XLA's own order of a module that has next to no temporaries."""
    view, total = module_from_bytes(captured.module), assigned_bytes(compiled)
    return Plan(
        module=view.name,
        fingerprint=view.fingerprint,
        target=captured.platform,
        order=view.order,
        offsets={},
        xla_bytes=total,
        xla_predicted_bytes=total,
        predicted_bytes=total,
        peak_bytes=0,
        least_peak_bytes=total,
        lower_bound_bytes=total - temporary_bytes(compiled),
        assigned_bytes=total,
        status="xla",
    )


def _fresh(compiles: _Compiles, options: PlanOptions, key: str) -> Outcome:
    """Plans in the midst of one compile; plans again for less where that takes more than allowed.

    Raises:
      BudgetError: the budget cannot be met.
    """
    work, started = _Work(), time.monotonic()
    # Not a daemon: a process must not end amid compiled loops being loaded.
    loading = threading.Thread(target=_load_planner, name="olla_xla loading")
    if mentioned_bytes(compiles.text) > _SMALL:
        loading.start()

    def answer(platform: str, module: bytes) -> bytes | None:
        taken = time.monotonic() - started
        work.captured = Captured(platform, module, compiles.more(platform), taken)
        if options.is_default and scratch_bytes(module_from_bytes(module)) <= _SMALL:
            work.small = True
            return None
        with waiting(compiles.name):  # What is loaded, or compiled once, is no search.
            loading.join() if loading.ident else _load_planner()
        try:
            work.plan = _plan(compiles.name, work.captured, options, options)
            if work.plan.predicted_bytes >= work.plan.xla_predicted_bytes:
                return None
            planned, work.objects = compiles.write(module, work.plan)
        except BudgetError:
            raise
        except Exception as error:
            work.error = error
            return None
        work.written = not work.objects
        return planned if work.written else None

    compiled = compiles.handed_over(key, answer)
    plan, captured = work.plan, work.captured
    if work.small and captured is not None:
        logger.info("the step's temporaries take less than %s bytes", f"{_SMALL:,}")
        return Outcome(compiled, _small_plan(captured, compiled), False, _NO_GAIN)
    if work.error is not None or plan is None or captured is None:
        return _failed(compiled, work.error or OllaError(_NO_HOOK))
    if work.objects:
        logger.warning("%s: XLA's own schedule is used: %s", plan.module, work.objects)
        plan = _xla_plan(plan, captured, assigned_bytes(compiled))
        return Outcome(compiled, plan, False, work.objects, objection=work.objects)
    if not work.written:
        logger.info("%s: %s", plan.module, _NO_GAIN)
        plan = _xla_plan(plan, captured, assigned_bytes(compiled))
        return Outcome(compiled, plan, False, _NO_GAIN)
    outcome = _chosen(compiles, plan, compiles.judged(compiled, plan), captured)
    return _fitted(compiles, options, captured, outcome)


def _plan(name: str, captured: Captured, options: PlanOptions, attempt: PlanOptions) -> Plan:
    """A plan of the captured module within the limits of an attempt at the options.

    Raises:
      BudgetError: the budget cannot be met; it names the options' own.
    """
    from olla_xla import planner  # Loads numba and the solvers; not needed until here.

    try:
        with waiting(name) as progress:
            plan = planner.plan_module(
                captured.module,
                attempt,
                target=captured.platform,
                more=captured.more,
                progress=progress,
                schedule_seconds=captured.seconds,
            )
    except BudgetError as error:
        if attempt is options or options.budget_bytes is None:
            raise
        raise BudgetError(options.budget_bytes, error.least_bytes, error.reason) from error
    return dataclasses.replace(plan, results=results_digest(captured.module))


def _fitted(
    compiles: _Compiles, options: PlanOptions, captured: Captured, outcome: Outcome
) -> Outcome:
    """The outcome, planned anew for less while XLA assigns more than the budget after all."""
    budget = options.budget_bytes
    for _ in range(_BUDGET_TRIES - 1):
        plan = outcome.plan
        if budget is None or plan is None or not outcome.planned or not options.recomputes:
            break
        excess = assigned_bytes(outcome.compiled) - budget
        if excess <= 0:
            break
        less = min(plan.predicted_bytes - 1, budget) - excess
        attempt = dataclasses.replace(options, memory_budget=max(less, 1))
        plan = _plan(compiles.name, captured, options, attempt)
        outcome = _chosen(compiles, plan, compiles.apply(plan), captured)
    return outcome


def _chosen(
    compiles: _Compiles, plan: Plan, applied: _Applied, captured: Captured | None = None
) -> Outcome:
    """The planned executable, or XLA's own where the planned one is to be rejected.

    XLA's own total is predicted, so it is compiled where predictions prove wrong.
    """
    compiled, reason, objects = applied
    assigned = assigned_bytes(compiled)
    known = plan.assigned_bytes == assigned  # by an earlier compile of the same plan
    if not reason and not known and abs(assigned - plan.predicted_bytes) > _SURPRISE * assigned:
        logger.info(
            "%s: XLA assigned %s bytes, predicted were %s; compiling XLA's own order",
            plan.module,
            *(f"{b:,}" for b in (assigned, plan.predicted_bytes)),
        )
        own = assigned_bytes(compiles.own())
        plan = dataclasses.replace(plan, xla_bytes=own)
        if assigned >= own:
            reason = f"XLA assigned {assigned:,} bytes to the plan, {own:,} to its own order"
    if not reason:
        plan = dataclasses.replace(plan, assigned_bytes=assigned)
        logger.info(
            "%s: %s bytes planned, %s by XLA alone, bound %s",
            plan.module,
            *(f"{b:,}" for b in (assigned, plan.xla_bytes, plan.lower_bound_bytes)),
        )
        return Outcome(compiled, plan, True)
    logger.warning("%s: XLA's own schedule is used: %s", plan.module, reason)
    captured = captured or compiles.capture()
    compiled = compiles.own()
    kept = _xla_plan(plan, captured, assigned_bytes(compiled))
    return Outcome(compiled, kept, False, reason, objection=reason if objects else "")


def _xla_plan(plan: Plan, captured: Captured, assigned: int) -> Plan:
    """A plan that is not used, rewritten to describe XLA's own order and its assigned total."""
    from olla_xla import planner

    order = planner.module_order(captured.module)
    if plan.order == order and not plan.aliases and not plan.clones:
        return dataclasses.replace(plan, xla_bytes=assigned, assigned_bytes=assigned)
    entry = planner.graphs(captured.module, captured.platform)[-1]
    peak = lifetime_peak(entry, range(len(entry.operators)))
    return dataclasses.replace(
        plan,
        order=order,
        aliases={},
        clones=(),
        added_seconds=0.0,
        least_added_seconds=0.0,
        added_moved_bytes=0,
        offsets={},
        xla_bytes=assigned,
        predicted_bytes=plan.xla_predicted_bytes,
        peak_bytes=peak,
        assigned_bytes=assigned,
        status="optimal" if peak <= plan.lower_bound_bytes else "xla",
        source="xla",
    )


def _difference(compiled: jax.stages.Compiled, plan: Plan) -> str:
    """What keeps the executable's order from being the plan's, or ""."""
    try:
        compare_orders(plan, module_from_bytes(final_module(compiled)))
    except CheckError as error:
        return str(error)
    return ""


@dataclasses.dataclass(frozen=True)
class Captured:
    """A function as XLA scheduled it.

    Attributes:
      platform: it was compiled for. module: as XLA scheduled it.
      more: gives other orders of XLA's, as `planner.module_order` does, for part of the time that
        a compile takes; None where XLA has no other scheduler.
      seconds: what XLA took to get there, or None.
    """

    platform: str
    module: bytes
    more: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Compiled(Captured):
    """XLA's own compile of a function.

    Attributes:
      assigned_bytes: XLA's total.
      final: the executable's module. assignment: its BufferAssignmentProto, or b"".
    """

    assigned_bytes: int = 0
    final: bytes = b""
    assignment: bytes = b""


def capture(lowered: jax.stages.Lowered) -> Compiled:
    """Compiles a lowered function with XLA's own schedule and copies the module out.

    Raises:
      OllaError: the backend has no hook. Whatever else XLA raises.
    """
    compiles = _Compiles(lowered, None, {})
    captured, compiled = compiles.captured()
    return Compiled(
        captured.platform,
        captured.module,
        captured.more,
        assigned_bytes=assigned_bytes(compiled),
        final=final_module(compiled),
        assignment=assignment_proto(compiled),
    )


_SCOPES = itertools.cycle(itertools.product(("allow", "warn", "raise"), ("standard", "strict")))
"""Values of two settings that matter in tracing only, hence not to a compile."""


def _next_scope() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Makes contexts under which JAX memoizes compiles apart from all recent ones."""
    config: Any = jax.config
    current = (config.jax_numpy_rank_promotion, config.jax_numpy_dtype_promotion)
    rank, dtype = next(scope for scope in _SCOPES if scope != current)

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with jax.numpy_rank_promotion(rank), jax.numpy_dtype_promotion(dtype):
            yield

    return scope


class _Token:
    """Marks the module of one compile, which so has an entry of its own in JAX's memo.

    Attributes:
      lasting: whether JAX's persistent cache may keep the executable: the token means the same in
        another process. bytes: the token. scope: makes the JAX context to compile in.
    """

    def __init__(self, key: str = "") -> None:
        self.lasting = bool(key)
        text = f"olla_xla-plan-{key}" if key else f"olla_xla-capture-{uuid.uuid4().hex}"
        self.bytes = text.encode()
        self.scope = _next_scope()


def _mark_of(compiled: jax.stages.Compiled) -> str:
    """The digest of the plan that an executable runs, or ""."""
    found = _MARKED.search(final_module(compiled))
    return found.group(1).decode() if found else ""


class _Applied(NamedTuple):
    """An executable with a plan; why it is to be rejected, or ""; whether the referee says so."""

    compiled: jax.stages.Compiled
    reason: str
    objects: bool


class _Compiles:
    """The compiles of one lowered stage; see the module's docstring."""

    def __init__(
        self,
        lowered: jax.stages.Lowered,
        compiler_options: dict[str, Any] | None,
        compile_kwargs: dict[str, Any],
    ) -> None:
        self._lowered = lowered
        self._kwargs = {**compile_kwargs, "compiler_options": compiler_options}
        self._tokens: set[bytes] = set()
        self._made: dict[int, tuple[_Token, Any]] = {}
        """By an executable's id: its token, and the executable, so that the id stays its own."""
        self._own: jax.stages.Compiled | None = None
        self._case: objection.Case | None = None

    @property
    def name(self) -> str:
        """The module's, for messages."""
        module = self._lowered.compiler_ir("stablehlo")
        attributes = {} if module is None else module.operation.attributes
        return str(attributes["sym_name"]).strip('"') if "sym_name" in attributes else "a step"

    @property
    def text(self) -> str:
        """The module as StableHLO."""
        return self._lowered.as_text()

    # Compiles.

    def handed_over(
        self, key: str, answer: Callable[[str, bytes], bytes | None]
    ) -> jax.stages.Compiled:
        """Compiles under the token of a key, with XLA's schedule shown to `answer`."""
        asked: list[str] = []

        def shown(platform: str, module: bytes) -> bytes | None:
            asked.append(platform)
            return answer(platform, module)

        compiled = self._compiled(_Token(key), shown)
        if not asked:  # JAX's persistent cache had an executable, of a plan that is not known.
            compiled = self._compiled(_Token(), shown)
        if not asked:
            raise OllaError(_NO_HOOK)
        return compiled

    def captured(self) -> tuple[Captured, jax.stages.Compiled]:
        """Compiles with XLA's own schedule, and copies that out."""
        found: list[tuple[str, bytes]] = []
        compiled = self._compiled(_Token(), lambda *seen: found.append(seen))
        if not found:
            raise OllaError(_NO_HOOK)
        platform, module = found[-1]
        self._own = compiled
        return Captured(platform, module, self.more(platform)), compiled

    def capture(self) -> Captured:
        """XLA's own schedule; the compile ends with it."""
        found: list[tuple[str, bytes]] = []
        self._scheduled({}, found)
        if not found:
            raise OllaError(_NO_HOOK)
        return Captured(*found[-1], self.more(found[-1][0]))

    def more(self, platform: str) -> Callable[[], Mapping[str, tuple[str, ...]]] | None:
        """Gives the orders of XLA's scheduler for memory, where the platform has one."""
        other = MEMORY_OPTIMIZED.get(platform)
        return None if other is None else functools.partial(self._orders_with, other)

    def _orders_with(self, scheduler: dict[str, str]) -> Mapping[str, tuple[str, ...]]:
        from olla_xla import planner

        found: list[tuple[str, bytes]] = []
        self._scheduled(scheduler, found)
        if not found:
            logger.info("XLA's scheduler for memory made no schedule")
        return planner.module_order(found[-1][1]) if found else {}

    def _scheduled(self, more_options: dict[str, str], found: list[tuple[str, bytes]]) -> None:
        """Compiles as far as the schedule."""
        token = _Token()
        request = Request(token.bytes, lambda *seen: found.append(seen), last=True)
        options = {**(self._kwargs["compiler_options"] or {}), **more_options}
        with self._under(token), contextlib.suppress(jax.errors.JaxRuntimeError):
            with listening(request):
                self._lowered.compile(**{**self._kwargs, "compiler_options": options})

    def apply(self, plan: Plan, key: str = "") -> _Applied:
        """Compiles with the plan's schedule.

        Args:
          plan: to apply. key: that it is stored under, or "".

        Raises:
          PlanMismatchError: the module XLA scheduled is not the plan's.
        """
        objects = ""

        def answer(_: str, module: bytes) -> bytes | None:
            nonlocal objects
            planned, objects = self.write(module, plan)
            return None if objects else planned

        digest = plan_store.plan_digest(plan)
        compiled = self._compiled(_Token(key or digest), answer)
        if key and not objects and _mark_of(compiled) != digest:
            # JAX's persistent cache had an executable of another plan for the same key.
            compiled = self._compiled(_Token(digest), answer)
        return _Applied(compiled, objects, True) if objects else self.judged(compiled, plan)

    def write(self, module: bytes, plan: Plan) -> tuple[bytes, str]:
        """A scheduled module with a plan in it, and what the referee says against it, or "".

        It is asked before XLA, which may abort over a module that is wrong.

        Raises:
          PlanMismatchError: the module is not the plan's.
        """
        from olla_xla import planner

        mark = f"olla_xla-applied-{plan_store.plan_digest(plan)}"
        planned = planner.apply_plan(module, plan, mark)
        self._case = objection.Case(
            target=plan.target, results=plan.results, scheduled=module, planned=planned
        )
        return planned, self._objection(self._case, plan)

    def judged(self, compiled: jax.stages.Compiled, plan: Plan) -> _Applied:
        """An executable with a plan, after the referee and the check of its order."""
        reason = _difference(compiled, plan)
        if reason:
            return _Applied(compiled, reason, False)
        case = self._case or objection.Case(target=plan.target, results=plan.results)
        final, assignment = final_module(compiled), assignment_proto(compiled)
        case = dataclasses.replace(case, final=final, assignment=assignment)
        objects = self._objection(case, plan)
        return _Applied(compiled, objects, bool(objects))

    def _objection(self, case: objection.Case, plan: Plan) -> str:
        """What the referee says against a case, and where the case is kept; or ""."""
        try:
            case.check()
        except CheckError as error:
            case = dataclasses.replace(case, stablehlo=self.text)
            try:
                where = f"the case is in {objection.save(case, plan, error)}"
            except OSError as trouble:
                where = f"the case could not be written: {trouble}"
            return f"the referee objects: {error}; {where}"
        return ""

    def rewritten(self, rewrite: Callable[[bytes], bytes]) -> jax.stages.Compiled:
        """Compiles with the scheduled module as `rewrite` makes it."""
        seen: list[str] = []

        def answer(platform: str, module: bytes) -> bytes:
            seen.append(platform)
            return rewrite(module)

        compiled = self._compiled(_Token(), answer)
        if not seen:
            raise OllaError(_NO_HOOK)
        return compiled

    def own(self, key: str = "") -> jax.stages.Compiled:
        """XLA's own executable.

        Args:
          key: under which JAX's persistent cache may have it, or "".
        """
        if self._own is None and key:
            compiled = self._compiled(_Token(key), lambda *_: None)
            self._own = None if _mark_of(compiled) else compiled
        if self._own is None:
            self._own = self._compiled(_Token(), lambda *_: None)
        return self._own

    def kept(self, compiled: jax.stages.Compiled) -> jax.stages.Compiled:
        """The executable as the one that calls of the jitted function run; nothing follows it."""
        token, _ = self._made[id(compiled)]
        with self._under(token):
            return self._lowered.compile(**self._kwargs)

    def _compiled(
        self, token: _Token, answer: Callable[[str, bytes], bytes | None]
    ) -> jax.stages.Compiled:
        """Compiles under a token, without making the executable the one that calls run."""
        options = self._kwargs["compiler_options"] or {}
        with self._under(token), listening(Request(token.bytes, answer)):
            compiled = self._lowered.compile(**{**self._kwargs, "compiler_options": options})
        self._made[id(compiled)] = (token, compiled)
        return compiled

    @contextlib.contextmanager
    def _under(self, token: _Token) -> Iterator[None]:
        """What is compiled inside has the token in its module and its own entry in JAX's memo."""
        with self._marked(token.bytes), token.scope():
            with contextlib.nullcontext() if token.lasting else no_cache_writes():
                yield

    def forget(self) -> None:
        """Frees the executables that were compiled but are not in use."""
        for token in list(self._tokens):
            with self._marked(token):
                forget_compiles(self._lowered)

    @contextlib.contextmanager
    def _marked(self, token: bytes) -> Iterator[None]:
        """The module carries the token inside."""
        from jax.extend.mlir import ir

        module = self._lowered.compiler_ir("stablehlo")
        if module is None:
            raise OllaError("the lowered function has no StableHLO module")
        attributes = module.operation.attributes
        self._tokens.add(token)
        before = attributes[_ATTRIBUTES] if _ATTRIBUTES in attributes else None
        entries = {} if before is None else {a.name: a.attr for a in ir.DictAttr(before)}
        value = ir.StringAttr.get(token.decode(), context=module.context)
        attributes[_ATTRIBUTES] = ir.DictAttr.get({**entries, _KEY: value}, context=module.context)
        try:
            yield
        finally:
            if before is None:
                del attributes[_ATTRIBUTES]
            else:
                attributes[_ATTRIBUTES] = before
