"""Compiles of one lowered stage with a plan, and checks of its executable."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from hlo import gc_pause
from hlo.backend import platform
from hlo.module import module_from_bytes
from hlo.rewrite.handed_back import loses_memories
from hlo.text import is_text_digest, module_digest, module_text, text_digest, text_of
from olla_xla.check import executable as referee
from olla_xla.compile import gpu_code, loading, objection, plan_store, rematerialization
from olla_xla.compile.accounting import Final, assigned_bytes, assignment_proto, final_module
from olla_xla.compile.gpu_limits import Ran, worse
from olla_xla.compile.jax_private import device_kind
from olla_xla.compile.order import order_difference
from olla_xla.compile.stage_compiles import StageCompiles
from olla_xla.compile.tokens import Token, mark_in, plan_mark
from olla_xla.errors import CheckError, ResultsError
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.version import __version__

_logger = logging.getLogger("olla_xla")


class Applied(NamedTuple):
    """An executable compiled with a plan, and whether the checks allow to use it.

    Attributes:
      compiled: has XLA's own order if the checker rejected the planned module before the compile.
      reason: why it is to be rejected, or "". objects: whether the checker of modules rejected it.
      results: digest of what the plan computes (`Plan.results`); "" where not known.
      digest: of the accepted executable; "" if rejected. is_known: whether it was accepted before.
      is_quiet: whether XLA's rematerialization was off (`Plan.without_rematerialization`).
    """

    compiled: jax.stages.Compiled
    reason: str
    objects: bool
    results: str = ""
    digest: str = ""
    is_known: bool = False
    is_quiet: bool = False


class Compiles(StageCompiles):
    """Compiles a lowered stage with XLA's own schedule or with plans, and checks executables."""

    _case: objection.Case | None = None
    _accepted: referee.Accepted | None = None
    """The planned module, once the referee has accepted it."""
    _text: Future[str] | None = None
    """XLA's text of a planned module that only changes the order, made during the compile."""
    _kernels: Mapping[str, referee.KernelMemory] = types.MappingProxyType({})
    """Memory patterns of kernels in the last executable that the referee checked."""
    _results: Future[str] | None = None
    """For any other plan: the digest of the results of the module that XLA scheduled."""

    def apply(self, plan: Plan, key: str = "", accepted: Sequence[str] = ()) -> Applied:
        """Compiles the stage with the plan applied inside XLA's compile; checks the executable
        unless its digest is in `accepted`, those accepted before. If our checker rejects the
        planned module, XLA keeps its own order, and `reason` in the result is set.
        Raises PlanMismatchError if the module that XLA scheduled is not the plan's. `key`: under
        which the plan is stored, or "".
        """
        objects = ""

        def answer(_: str, module: bytes) -> bytes | None:
            nonlocal objects
            planned, objects = self.write(module, plan)
            return None if objects else planned

        self._case = self._accepted = self._text = self._results = None
        self._key, digest = key, plan_store.plan_digest(plan)
        quiet = plan.without_rematerialization
        compiled = self._compiled(Token(key or digest), answer, quiet=quiet)
        if objects:
            return Applied(compiled, objects, True)
        final = Final.of(compiled)
        if key and mark_in(final.proto) != digest:
            # JAX's persistent cache had an executable of another plan for the same key.
            compiled = self._compiled(Token(digest), answer, quiet=quiet)
            if objects:
                return Applied(compiled, objects, True)
            final = Final.of(compiled)
        known = _accepted_digest(final.proto, digest)
        if known not in accepted and self._case is None and not _says_results(plan, final):
            # An executable of JAX's cache, and nothing is known to check its results against.
            compiled = self._compiled(Token(), answer, quiet=quiet)
            if objects:
                return Applied(compiled, objects, True)
            final = Final.of(compiled)
            known = _accepted_digest(final.proto, digest)
        if known in accepted:
            return Applied(compiled, "", False, plan.results, known, True, quiet)
        return self.judged(compiled, plan, final)

    def write(self, module: bytes, plan: Plan) -> tuple[bytes, str]:
        """Applies a plan to a serialized scheduled module, and has the referee check the result.
        The referee, our checker of modules, runs before XLA goes on: XLA may abort on a bad one.
        Returns (planned module, serialized; why it is not to be used, or ""). If it is to be used,
        keeps both modules, and starts a thread that computes what the executable must equal.
        Raises PlanMismatchError if the module is not the plan's.
        """
        began = time.monotonic()
        mark = plan_mark(plan_store.plan_digest(plan))
        view = module_from_bytes(module)  # a reference keeps the cached parse alive
        if loses_memories(module):
            return module, "XLA would not leave results in the memory that out_shardings asks for"
        planned = loading.planner().apply_plan(module, plan, mark)
        self._case = objection.Case(
            target=plan.target,
            results="",
            scheduled=module,
            planned=planned,
            donated=view.donated,
        )
        self._accepted = self._text = self._results = None
        objects = self._objection(self._case, plan)
        if self._accepted is not None and self._accepted.is_reordered:
            self._text = meanwhile(began, module_text, planned)
        elif not objects:
            digest = functools.partial(referee.results_digest, loops=_by_elements(plan))
            self._results = meanwhile(began, digest, module, plan.target)
        return planned, objects

    def judged(
        self, compiled: jax.stages.Compiled, plan: Plan, final: Final | None = None
    ) -> Applied:
        """Checks a plan's executable: its order unless it is the accepted module unchanged, what it
        computes (by the referee, our checker of modules), which arrays of kernels share memory, and
        on a GPU its time and loads; `reason` in the result says what fails.
        If XLA's rematerialization changed it needlessly, the plan is compiled again without that.
        `final`: the executable's module, if already read.
        """
        final = final or Final.of(compiled)
        lists_thunks = platform(plan.target).lists_thunks
        quiet = plan.without_rematerialization
        if quiet and (reason := self.too_large(compiled, assigned_bytes(compiled))):
            return Applied(compiled, reason, False)
        may_act = lists_thunks and not quiet and b".remat" in final.proto
        acts = may_act and rematerialization.acts_on(final.proto, plan)
        if acts and not self.too_large(compiled, plan.predicted_bytes):
            other = dataclasses.replace(plan, without_rematerialization=True)
            applied = self.apply(other, self._key)
            total = assigned_bytes(applied.compiled)
            if not applied.reason and (
                total <= assigned_bytes(compiled) or total <= assigned_bytes(self.own())
            ):
                return applied
        results, accepted = self._expected(final, plan)
        if accepted is None and (reason := order_difference(plan, final.proto)):
            return Applied(compiled, reason, False, results)
        case = dataclasses.replace(
            self._case or objection.Case(target=plan.target, results=""),
            results="" if is_text_digest(results) else results,
            final=final.proto,
            assignment=assignment_proto(compiled, plan.target),
            executable=gpu_code.serialized_executable(compiled) if lists_thunks else b"",
        )
        if case.gpu is not None and (reason := gpu_code.reason_without_order(case.gpu)):
            return Applied(compiled, reason, False, results)
        objects = ""
        try:
            self._kernels = case.check(accepted).kernels
        except ResultsError:
            results = self._own_results(plan)
            objects = self._objection(case.with_results(results), plan)
        except CheckError as error:
            objects = self._saved(case, plan, error)
        if objects := objects or self._other_kernels(case, plan):
            return Applied(compiled, objects, True, results)
        if lists_thunks:
            ran, cost = Ran(final.proto, case.gpu), self.cost(plan)
            reason = worse(plan, ran, self._own_ran, cost, as_it_is=accepted is not None)
            if reason:
                return Applied(compiled, reason, False, results)
        digest = _accepted_digest(final.proto, plan_store.plan_digest(plan))
        return Applied(compiled, "", False, results, digest, is_quiet=quiet)

    def ran_again(self, compiled: jax.stages.Compiled, plan: Plan) -> str:
        """Says in words what XLA's rematerialization added to an executable, or ""; `plan` names
        the instructions that were there before.
        """
        return rematerialization.added_work(final_module(compiled), plan, self.cost(plan))

    def cost(self, plan: Plan) -> CostModel:
        """Returns the cost model, which predicts seconds, of the devices that the stage is for;
        `plan` names their platform.
        """
        return CostModel(device(plan.target, device_kind(self._lowered)), plan.target)

    def _own_ran(self) -> Ran:
        """Compiles with XLA's own order for a GPU; returns the executable's module and code."""
        own = self.own()
        return Ran(final_module(own), gpu_code.read_or_say(gpu_code.serialized_executable(own)))

    def _expected(self, final: Final, plan: Plan) -> tuple[str, referee.Accepted | None]:
        """Returns (digest of the results that a plan's executable must have, accepted module).
        The latter is the planned module that the referee, our checker, accepted, if XLA runs it
        unchanged; the digest is then of its text. Else None. `final`: the executable's module.
        """
        if self._results is not None:
            return self._results.result(), None
        if self._text is None or self._case is None:
            return plan.results, None
        text = text_of(final.module)
        if text == self._text.result():
            return text_digest(text), self._accepted
        digest = referee.results_digest(self._case.scheduled, plan.target, loops=_by_elements(plan))
        return digest, None

    def _own_results(self, plan: Plan) -> str:
        """Compiles XLA's own order; returns the checker's digest of what it computes.
        After scheduling XLA changes the code of some fusions, in its own module as in a planned
        one. Where an executable differs from the scheduled module, both executables must agree.
        """
        own = final_module(self.own())
        return referee.results_digest(own, plan.target, loops=_by_elements(plan))

    def _objection(self, case: objection.Case, plan: Plan) -> str:
        """Has the checker check a case (a plan's modules and executable) and notes what it accepts;
        if it objects, saves the case to a file. Returns the checker's message with the path; or "".
        """
        try:
            self._accepted, self._kernels = case.check()
        except CheckError as error:
            return self._saved(case, plan, error)
        return ""

    def _saved(self, case: objection.Case, plan: Plan, error: CheckError) -> str:
        """Saves a case, a plan's modules and executable that the checker rejected, with the
        StableHLO, to a file. Returns a message with the checker's `error` and the file's path, or
        why it could not be written.
        """
        case = dataclasses.replace(case, stablehlo=self.stablehlo.text)
        try:
            where = f"details are in {objection.save(case, plan, error)}"
        except (OSError, RuntimeError) as trouble:
            where = f"details could not be written: {trouble}"
        return f"olla_xla's check failed: {error}; {where}"

    def _other_kernels(self, case: objection.Case, plan: Plan) -> str:
        """Says which kernel (an instruction whose rounding may depend on which of its operands and
        results share memory) has others that do so than in XLA's order; "" if none has, or where
        rounding is not known to depend on that. The plan has these patterns by simulation; where
        they differ, XLA's own executable decides. The message names the file with `case`.
        """
        doubtful = referee.differing(self._kernels, plan.kernels)
        if not doubtful:
            return ""
        if not platform(plan.target).keeps_arrays:  # rounding was not seen to depend on memory
            _logger.info(
                "%s: operands and results of these kernels do not share buffers as planned: %s",
                plan.module,
                ", ".join(doubtful),
            )
            return ""
        _logger.info("%s: compiling XLA's order to compare %s", plan.module, ", ".join(doubtful))
        own = self.own()
        kernels = referee.check_executable(
            Final.of(own).proto,
            plan.target,
            assignment=assignment_proto(own, plan.target),
        )
        patterns = {name: memory.found for name, memory in kernels.items()}
        patterns = {**patterns, **_copied(patterns, plan)}
        doubtful = [name for name in doubtful if self._kernels[name].found != patterns.get(name)]
        if not doubtful:
            return ""
        error = CheckError(
            f"operands and results of kernel {doubtful[0]} share other buffers than in XLA's own "
            "order, so the kernel may round differently"
        )
        return self._saved(case, plan, error)


def _by_elements(plan: Plan) -> bool:
    """Whether the checker must compare while loops by the elements they compute, not as a whole,
    since the plan or XLA changes loops.
    """
    return bool(plan.loops or plan.sunk or plan.joined) or platform(plan.target).changes_loops


def _accepted_digest(final: bytes, plan: str) -> str:
    """Names an accepted executable by our version and the digests of its plan and final module."""
    return f"{__version__} {plan} {module_digest(final)}"


def _says_results(plan: Plan, final: Final) -> bool:
    """Whether `plan.results`, a digest, can be used to check what this executable computes."""
    if is_text_digest(plan.results):
        return text_digest(text_of(final.module)) == plan.results
    return bool(plan.results)


def _copied(found: Mapping[str, tuple[int, ...]], plan: Plan) -> dict[str, tuple[int, ...]]:
    """Returns memory patterns of the clones of kernels that a plan adds: those of the kernels in
    `found`. A pattern has for each array of a kernel, operands first, the number of the first one
    in the same memory.
    """
    return {c: found[original] for c, original, *_ in plan.clones if original in found}


_HEAD_START, _HEAD_START_PART = 0.02, 0.2
"""Seconds, and part of the time that writing a plan took, for the caller to free what it made and
get back into XLA, before the other thread's work takes the GIL."""


def meanwhile(began: float, find: Callable[..., str], *arguments: Any) -> Future[str]:
    """Calls `find(*arguments)` in a thread, after a short wait in which the caller returns to XLA;
    returns the future result. Garbage collection is off during the wait, which grows with the time
    since `began`, when the caller began (monotonic clock).
    """
    head_start = max(_HEAD_START, _HEAD_START_PART * (time.monotonic() - began))

    def found() -> str:
        try:
            time.sleep(head_start)
        finally:
            gc_pause.release()
        return find(*arguments)

    pool = ThreadPoolExecutor(1, "olla_xla referee")
    gc_pause.hold()
    try:
        return pool.submit(found)
    except BaseException:
        gc_pause.release()
        raise
    finally:
        pool.shutdown(wait=False)
