"""The two-phase XLA hook: capture XLA's schedule, plan outside the compiler, write the plan's.

XLA calls `_Hook` on its compile threads, for every module of the process. A module is ours when it
carries a token, a module-level frontend attribute that survives to POST_SCHEDULER; all others are
left alone.

1. Capture: compile with a token no other module has. The hook copies the scheduled module out and
   changes nothing, so the executable is XLA's own: the fallback, and the total to beat.
2. Plan: `planner.plan_module`, on this thread, no compiler running.
3. Apply: compile with a token made from the plan's digest. The hook writes the schedule. The token
   is part of the module, hence of JAX's persistent cache key: an executable with a plan is never
   served for one without, or for another plan.

Both compiles and the choice between them use public API only. `Lowered.compile()` keeps one
executable, the one that a call of the jitted function then runs; `compile(compiler_options={})`
does not. Compiles of one `Lowered` are memoized under the module's text and JAX's trace context,
so each phase has its own token and a harmless context of its own (`_next_scope`), and `compile()`
under the winner's costs nothing. Were the memo gone, it would compile once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from hlo.module import module_from_bytes
from olla_xla import cache, objection
from olla_xla.accounting import (
    Donation,
    assigned_bytes,
    assignment_proto,
    donation,
    final_module,
)
from olla_xla.check import lifetime_peak
from olla_xla.errors import BudgetError, CheckError, OllaError, PlanMismatchError
from olla_xla.jax_private import forget_compiles, no_cache_writes
from olla_xla.options import PlanOptions
from olla_xla.problem import Plan
from olla_xla.referee import results_digest

__all__ = [
    "MEMORY_OPTIMIZED",
    "Captured",
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
_TOKEN = re.compile(rb"olla_xla-(?:capture|plan)-[0-9a-f]{32}")
_FORWARDING = re.compile(r"(bitcast|get-tuple-element)(\.\d+)*\.remat\d*$")
"""Clones that compute nothing; XLA may do without them."""
_PLATFORMS = ("cpu", "cuda")
MEMORY_OPTIMIZED = {
    "cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
}
"""By platform, the compiler options of XLA's scheduler for memory where it is not the default."""
_NO_HOOK = "XLA did not hand over its schedule; only the cpu and cuda backends are supported"
_NO_GAIN = "no better order was found"
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


@dataclasses.dataclass(eq=False)
class _Request:
    """One compile that the hook takes part in.

    Attributes:
      token: marks the module. transform: (platform, module) -> module or None for no change.
      last: whether the compile ends there, with an error from XLA.
      error: what `transform` raised on the compile thread.
    """

    token: bytes
    transform: Callable[[str, bytes], bytes | None]
    last: bool = False
    error: Exception | None = None


class _Seen(Exception):
    """Ends a compile of which no more is wanted than its schedule."""


class _Hook:
    """XLA's one entry point into olla_xla, registered only while a request is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: tuple[_Request, ...] = ()
        self._platforms: tuple[str, ...] = ()

    @contextlib.contextmanager
    def listening(self, request: _Request) -> Iterator[None]:
        """Serves `request` inside; raises what went wrong on the compile thread, at the end."""
        with self._lock:
            self._requests += (request,)
            self._register()
        try:
            yield
        finally:
            with self._lock:
                self._requests = tuple(r for r in self._requests if r is not request)
                if not self._requests:
                    self._clear()
        if request.error is not None:
            raise request.error

    def _register(self) -> None:
        from jax.extend import xla  # Absent in a JAX too old for us, which `plan` says better.

        for platform in _PLATFORMS:
            if platform in self._platforms:
                continue
            # A platform without its plugin cannot be registered, and cannot compile either.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                xla.register_hlo_module_transformation(
                    functools.partial(self._callback, platform),
                    name="olla_xla",
                    stage=xla.PipelineStage.POST_SCHEDULER,
                    platforms=(platform,),
                )
                self._platforms += (platform,)

    def _clear(self) -> None:
        from jax.extend import xla

        stage = xla.PipelineStage.POST_SCHEDULER
        for platform in self._platforms:
            xla.clear_hlo_module_transformation("olla_xla", stage=stage, platforms=(platform,))
        self._platforms = ()

    def _callback(self, platform: str, module: bytes) -> bytes | None:
        """Runs on XLA's compile threads. Takes no lock: `_register` may wait for XLA with ours."""
        found = _TOKEN.search(module)
        if found is None:
            return None
        requests = [r for r in self._requests if r.token == found.group()]
        if not requests:
            return None
        try:
            result = requests[0].transform(platform, module)
        except Exception as error:  # Out of the callback it would fail the user's compile.
            for request in requests:
                request.error = error
            return None
        if requests[0].last:
            raise _Seen
        return result


_hook = _Hook()


def compile_planned(
    lowered: jax.stages.Lowered,
    options: PlanOptions,
    *,
    environment: str,
    store: cache.PlanStore | None = None,
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
    outcome = _compile(compiles, options, environment, store, compiler_options)
    require_budget(outcome.compiled, options, outcome.reason)
    return outcome


def compile_without_clones(lowered: jax.stages.Lowered, plan: Plan) -> jax.stages.Compiled:
    """Compiles `lowered` in a plan's order with nothing computed again, whatever memory it takes.

    Raises:
      PlanMismatchError: the plan was made for another module, or XLA did not keep the order.
    """
    from olla_xla.remat.bare import without_clones

    compiles = _Compiles(lowered, None, {})
    try:
        captured = compiles.capture()
        bare = without_clones(captured.module, plan)
        compiled = compiles.apply(bare, keep=False).compiled
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
    store: cache.PlanStore | None,
    compiler_options: dict[str, Any] | None,
) -> Outcome:
    """The best executable, planned or XLA's own; trouble with the plan is in the outcome."""
    try:
        key = cache.plan_key(compiles.text, environment, compiler_options, options)
        return _plan_and_choose(compiles, options, key, store or cache.process_store())
    except BudgetError:
        raise
    except Exception as error:
        logger.debug("planning failed", exc_info=error)
        reason = str(error) or type(error).__name__
        if not isinstance(error, OllaError):
            reason = f"{type(error).__name__}: {reason}"
        return Outcome(compiles.unplanned(), None, False, reason, error)
    finally:
        compiles.forget()


def _plan_and_choose(
    compiles: _Compiles, options: PlanOptions, key: str, store: cache.PlanStore
) -> Outcome:
    plan = store.load(key)
    if plan is not None:
        with contextlib.suppress(PlanMismatchError):
            return _choose(compiles, plan, None)
        logger.info("%s: the stored plan no longer fits; planning again", plan.module)
    captured = compiles.capture()
    outcome = _fitted(compiles, options, captured)
    if outcome.plan is not None and not outcome.objection:
        store.save(key, outcome.plan)
    return outcome


def _fitted(compiles: _Compiles, options: PlanOptions, captured: Captured) -> Outcome:
    """Plans and compiles; again, for less, where XLA assigns more than the budget after all."""
    from olla_xla import planner  # Loads numba and the solvers; not needed until here.

    budget = options.budget_bytes
    attempt = options
    outcome: Outcome | None = None
    for _ in range(_BUDGET_TRIES):
        try:
            plan = planner.plan_module(
                captured.module,
                attempt,
                target=captured.platform,
                xla_bytes=captured.assigned_bytes,
                more=captured.more,
                progress=functools.partial(logger.debug, "%s"),
            )
            plan = dataclasses.replace(plan, results=results_digest(captured.module))
        except BudgetError as error:
            if budget is None or attempt is options:
                raise
            raise BudgetError(budget, error.least_bytes, error.reason) from error
        outcome = _choose(compiles, plan, captured)
        if budget is None:
            break
        excess = assigned_bytes(outcome.compiled) - budget
        if excess <= 0 or not outcome.planned or not options.recomputes:
            break
        less = min(plan.predicted_bytes - 1, budget) - excess
        attempt = dataclasses.replace(options, memory_budget=max(less, 1))
    assert outcome is not None
    return outcome


def _choose(compiles: _Compiles, plan: Plan, captured: Captured | None) -> Outcome:
    """The planned executable if XLA assigns it fewer bytes than its own, else XLA's own."""
    if plan.predicted_bytes >= plan.xla_predicted_bytes:
        # A stored plan without a gain describes XLA's order already.
        kept = plan if captured is None else _xla_plan(plan, captured)
        logger.info("%s: %s", plan.module, _NO_GAIN)
        return Outcome(compiles.unplanned(), kept, False, _NO_GAIN)
    compiled, reason, objects = compiles.apply(plan)
    if not reason:
        plan = dataclasses.replace(plan, assigned_bytes=assigned_bytes(compiled))
        logger.info(
            "%s: %s bytes planned, %s by XLA alone, bound %s",
            plan.module,
            *(f"{b:,}" for b in (plan.assigned_bytes, plan.xla_bytes, plan.lower_bound_bytes)),
        )
        return Outcome(compiled, plan, True)
    logger.warning("%s: XLA's own schedule is used: %s", plan.module, reason)
    captured = captured or compiles.capture()
    kept = _xla_plan(plan, captured)
    return Outcome(compiles.unplanned(), kept, False, reason, objection=reason if objects else "")


def _xla_plan(plan: Plan, captured: Captured) -> Plan:
    """A plan that is not used, rewritten to describe XLA's own order."""
    from olla_xla import planner

    order = planner.module_order(captured.module)
    if plan.order == order and not plan.aliases and not plan.clones:
        return dataclasses.replace(plan, assigned_bytes=captured.assigned_bytes)
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
        predicted_bytes=plan.xla_predicted_bytes,
        peak_bytes=peak,
        assigned_bytes=captured.assigned_bytes,
        status="optimal" if peak <= plan.lower_bound_bytes else "xla",
        source="xla",
    )


def _rejection(compiled: jax.stages.Compiled, plan: Plan) -> str:
    """Why XLA's own executable is to be preferred, or ""."""
    reason = _difference(compiled, plan)
    assigned = assigned_bytes(compiled)
    if not reason and assigned >= plan.xla_bytes:
        reason = f"XLA assigned {assigned:,} bytes to the plan, {plan.xla_bytes:,} to its own order"
    return reason


def _difference(compiled: jax.stages.Compiled, plan: Plan) -> str:
    """What keeps the executable's order from being the plan's, or "".

    Passes after the hook may add, drop or replace instructions (GPU: copies, async pairs); those
    in both that do any work must stand in the same order.
    """
    from olla_xla.check_assignment import IDLE

    view = module_from_bytes(final_module(compiled))
    schedules = {c.name: c.schedule for c in view.control_computations if c.schedule is not None}
    actual = {name: tuple(i.name for i in order) for name, order in schedules.items()}
    idle = {i.name for order in schedules.values() for i in order if i.opcode in IDLE}
    common = plan.order.keys() & actual.keys()
    if not common:
        return "the executable has none of the plan's computations"
    names = {name for order in actual.values() for name in order}
    # A clone that was read for dropped outputs alone (hlo.trim) is in no order.
    ordered = {name for order in plan.order.values() for name in order}
    clones = [clone for clone, *_ in plan.clones if clone in ordered]
    made = [clone for clone in clones if not _FORWARDING.match(clone)]
    if lost := [clone for clone in made if clone not in names]:
        return f"{len(lost)} of {len(made)} clones are not in the executable ({lost[0]})"
    for name in sorted(common):
        planned_names, actual_names = set(plan.order[name]), set(actual[name])
        ours = [i for i in plan.order[name] if i in actual_names and i not in idle]
        theirs = [i for i in actual[name] if i in planned_names and i not in idle]
        if ours != theirs:
            place = next(k for k, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            return f"the executable runs {theirs[place]} where the plan of {name} has {ours[place]}"
        if 2 * len(planned_names & actual_names) < len(planned_names):
            return f"most instructions of the plan of {name} are not in the executable"
    return ""


@dataclasses.dataclass(frozen=True)
class Captured:
    """XLA's own compile of a function.

    Attributes:
      platform: it was compiled for. module: as XLA scheduled it. assigned_bytes: XLA's total.
      final: the executable's module. assignment: its BufferAssignmentProto, or b"".
      more: gives other orders of XLA's, as `planner.module_order` does, for part of the time that
        a compile takes; None where XLA has no other scheduler.
    """

    platform: str
    module: bytes
    assigned_bytes: int
    final: bytes
    assignment: bytes
    more: Callable[[], Mapping[str, tuple[str, ...]]] | None = None


def capture(lowered: jax.stages.Lowered) -> Captured:
    """Compiles a lowered function with XLA's own schedule and copies the module out.

    Raises:
      OllaError: the backend has no hook. Whatever else XLA raises.
    """
    return _Compiles(lowered, None, {}).capture()


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
        self._xla_scope = _next_scope()
        self._captured_token = b""
        self._tokens: set[bytes] = set()

    @property
    def text(self) -> str:
        """The module as StableHLO."""
        return self._lowered.as_text()

    def capture(self) -> Captured:
        """Compiles with XLA's own schedule and copies it out."""
        found: list[tuple[str, bytes]] = []
        token = f"olla_xla-capture-{uuid.uuid4().hex}"
        request = _Request(token.encode(), lambda platform, m: found.append((platform, m)))
        with self._marked(request.token), self._xla_scope(), no_cache_writes():
            with _hook.listening(request):
                compiled = self._unkept()
        self._captured_token = request.token
        if not found:
            raise OllaError(_NO_HOOK)
        platform, module = found[-1]
        other = MEMORY_OPTIMIZED.get(platform)
        more = None if other is None else functools.partial(self._orders_with, other)
        return Captured(
            platform,
            module,
            assigned_bytes(compiled),
            final_module(compiled),
            assignment_proto(compiled),
            more,
        )

    def _orders_with(self, scheduler: dict[str, str]) -> Mapping[str, tuple[str, ...]]:
        """The orders of XLA's scheduler for memory; the compile ends with the schedule."""
        from olla_xla import planner

        found: list[tuple[str, bytes]] = []
        token = f"olla_xla-capture-{uuid.uuid4().hex}"
        request = _Request(token.encode(), lambda *seen: found.append(seen), last=True)
        options = {**(self._kwargs["compiler_options"] or {}), **scheduler}
        with self._marked(request.token), _next_scope()(), no_cache_writes():
            with _hook.listening(request), contextlib.suppress(jax.errors.JaxRuntimeError):
                self._lowered.compile(**{**self._kwargs, "compiler_options": options})
        if not found:
            logger.info("XLA's scheduler for memory made no schedule")
        return planner.module_order(found[-1][1]) if found else {}

    def apply(self, plan: Plan, *, keep: bool = True) -> _Applied:
        """Compiles with the plan's schedule; keeps the executable unless it is to be rejected.

        Args:
          plan: to apply. keep: whether calls of the jitted function are to run the executable.

        Raises:
          PlanMismatchError: the module XLA scheduled is not the plan's.
        """
        from olla_xla import planner

        token = f"olla_xla-plan-{cache.plan_digest(plan)}"
        case = objection.Case(target=plan.target, results=plan.results)
        objects = ""

        def transform(_: str, module: bytes) -> bytes | None:
            nonlocal case, objects
            planned = planner.apply_plan(module, plan)
            case = dataclasses.replace(case, scheduled=module, planned=planned)
            objects = self._objection(case, plan)  # before XLA, which may abort over such a module
            return None if objects else planned

        request = _Request(token.encode(), transform)
        with self._marked(request.token), _next_scope()(), _hook.listening(request):
            compiled = self._unkept()
            reason = "" if objects else _rejection(compiled, plan)
            if not reason and not objects:
                final, assignment = final_module(compiled), assignment_proto(compiled)
                case = dataclasses.replace(case, final=final, assignment=assignment)
                objects = self._objection(case, plan)
            if keep and not reason and not objects:
                compiled = self._lowered.compile(**self._kwargs)
        return _Applied(compiled, reason or objects, bool(objects))

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

        def transform(platform: str, module: bytes) -> bytes:
            seen.append(platform)
            return rewrite(module)

        request = _Request(f"olla_xla-capture-{uuid.uuid4().hex}".encode(), transform)
        with self._marked(request.token), _next_scope()(), no_cache_writes():
            with _hook.listening(request):
                compiled = self._unkept()
        if not seen:
            raise OllaError(_NO_HOOK)
        return compiled

    def unplanned(self) -> jax.stages.Compiled:
        """XLA's own executable: the captured one, or compiled now."""
        with contextlib.ExitStack() as stack:
            if self._captured_token:
                stack.enter_context(self._marked(self._captured_token))
                stack.enter_context(no_cache_writes())
            stack.enter_context(self._xla_scope())
            return self._lowered.compile(**self._kwargs)

    def forget(self) -> None:
        """Frees the executables that were compiled but are not in use."""
        for token in list(self._tokens):
            with self._marked(token):
                forget_compiles(self._lowered)

    def _unkept(self) -> jax.stages.Compiled:
        """Compiles without making the executable the one that calls run."""
        options = self._kwargs["compiler_options"] or {}
        return self._lowered.compile(**{**self._kwargs, "compiler_options": options})

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
