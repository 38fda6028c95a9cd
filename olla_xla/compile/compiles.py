"""Compiles of one lowered stage: with XLA's own schedule, with a plan's, or up to the schedule.

`Lowered.compile()` keeps one executable, which calls of the jitted function then run;
`compile(compiler_options={})` keeps none. So a stage is compiled with the latter, each time under a
token of its own (tokens.py). A last `compile()` under the chosen token finds it in JAX's memo.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from hlo.backend import PLATFORMS, platform
from hlo.late import late
from hlo.module import module_from_bytes
from hlo.rewrite.handed_back import loses_memories
from hlo.text import is_text_digest, module_digest, module_text, text_digest, text_of
from olla_xla.compile import loading, plan_store
from olla_xla.compile.accounting import Final, assignment_proto, final_module
from olla_xla.compile.captured import Captured
from olla_xla.compile.gpu_limits import Ran, worse
from olla_xla.compile.hook import CompileRequest, listening
from olla_xla.compile.jax_private import (
    device_bytes,
    device_kind,
    forget_compiles,
    keep_executable,
    no_cache_writes,
)
from olla_xla.compile.meanwhile import meanwhile
from olla_xla.compile.order import order_difference
from olla_xla.compile.stablehlo import StableHlo
from olla_xla.compile.tokens import Token, mark_in, mark_of, marked, plan_mark
from olla_xla.errors import CheckError, OllaError, ResultsError
from olla_xla.problem.plan import Plan
from olla_xla.remat.cost.devices import device
from olla_xla.remat.cost.roofline import CostModel
from olla_xla.version import __version__

if TYPE_CHECKING:
    from olla_xla.check import executable as referee
    from olla_xla.compile import gpu_code, objection
else:
    referee = late("olla_xla.check.executable")  # for what is changed alone
    gpu_code = late("olla_xla.compile.gpu_code")
    objection = late("olla_xla.compile.objection")

_logger = logging.getLogger("olla_xla")

NO_HOOK = "XLA did not hand over its schedule; only the cpu, cuda and tpu backends are supported"


class Applied(NamedTuple):
    """An executable compiled with a plan, and whether it may be used.

    Attributes:
      reason: why it is to be rejected, or "". objects: whether the referee rejected it.
      results: of the plan (`Plan.results`); "" where not known.
      digest: of the accepted executable; "" if rejected. is_known: whether it was accepted before.
    """

    compiled: jax.stages.Compiled
    reason: str
    objects: bool
    results: str = ""
    digest: str = ""
    is_known: bool = False


class Compiles:
    """Compiles one lowered stage in several ways; nothing else may compile it meanwhile.

    Attributes:
      stablehlo: the stage's module.
    """

    def __init__(
        self,
        lowered: jax.stages.Lowered,
        compiler_options: dict[str, Any] | None,
        compile_kwargs: dict[str, Any],
    ) -> None:
        # The stage of a planned function would plan when compiled: JAX's own stage is taken.
        self._lowered: jax.stages.Lowered = getattr(lowered, "stage", lowered)
        self.stablehlo = StableHlo(self._lowered)
        self._kwargs = {**compile_kwargs, "compiler_options": compiler_options}
        self._tokens: set[bytes] = set()
        self._made: dict[int, tuple[Token, Any]] = {}
        """An executable's id -> its token, and the executable, which keeps the id from reuse."""
        self._own: jax.stages.Compiled | None = None
        self._case: objection.Case | None = None
        self._accepted: referee.Accepted | None = None
        """The planned module, once the referee has accepted it."""
        self._text: Future[str] | None = None
        """XLA's text of a planned module that only changes the order, made during the compile."""
        self._kernels: Mapping[str, referee.KernelMemory] = {}
        """Memory patterns of kernels in the last executable that the referee checked."""
        self._results: Future[str] | None = None
        """For any other plan: the digest of the results of the module that XLA scheduled."""

    @property
    def name(self) -> str:
        """The name of the function's module, for messages."""
        return self.stablehlo.name

    def handed_over(
        self, key: str, answer: Callable[[str, bytes], bytes | None]
    ) -> jax.stages.Compiled:
        """Compiles the function; XLA hands its scheduled module to `answer`, which may replace it.

        Args:
          key: under which JAX's persistent cache may have the executable, or "".
          answer: gets the platform's name and the module as XLA scheduled it, serialized.

        Raises OllaError if XLA hands over no module on this backend.
        """
        asked: list[str] = []

        def shown(platform: str, module: bytes) -> bytes | None:
            asked.append(platform)
            return answer(platform, module)

        compiled = self._compiled(Token(key), shown)
        if not asked:  # JAX's persistent cache had an executable, of an unknown plan.
            compiled = self._compiled(Token(), shown)
        if not asked:
            raise OllaError(NO_HOOK)
        return compiled

    def captured(self) -> tuple[Captured, jax.stages.Compiled]:
        """Compiles with XLA's own schedule; returns the scheduled module and the executable."""
        found: list[tuple[str, bytes]] = []
        compiled = self._compiled(Token(), lambda *seen: found.append(seen))
        if not found:
            raise OllaError(NO_HOOK)
        platform, module = found[-1]
        self._own = compiled
        return self.taken(platform, module), compiled

    def capture(self) -> Captured:
        """The module with XLA's own schedule; the compile is ended after the scheduler."""
        found: list[tuple[str, bytes]] = []
        self._scheduled({}, found)
        if not found:
            raise OllaError(NO_HOOK)
        return self.taken(*found[-1])

    def taken(self, platform: str, module: bytes, seconds: float | None = None) -> Captured:
        """A `Captured` of a scheduled module; `seconds`: that XLA took to schedule it, or None."""
        kind, size = device_kind(self._lowered), device_bytes(self._lowered)
        return Captured(platform, module, self.alternative_orders(platform), seconds, kind, size)

    def alternative_orders(
        self, platform: str
    ) -> Callable[[], Mapping[str, tuple[str, ...]]] | None:
        """A function that compiles for the orders of XLA's memory scheduler; None without one."""
        other = PLATFORMS[platform].memory_scheduler
        return None if other is None else functools.partial(self._orders_with, dict(other))

    def _orders_with(self, scheduler: dict[str, str]) -> Mapping[str, tuple[str, ...]]:
        found: list[tuple[str, bytes]] = []
        self._scheduled(scheduler, found)
        if not found:
            _logger.info("XLA's memory-minimizing scheduler made no schedule")
        return module_from_bytes(found[-1][1]).order if found else {}

    def _scheduled(self, more_options: dict[str, str], found: list[tuple[str, bytes]]) -> None:
        """Compiles up to the schedule, which is added to `found`."""
        token = Token()
        request = CompileRequest(token.bytes, lambda *seen: found.append(seen), last=True)
        options = {**(self._kwargs["compiler_options"] or {}), **more_options}
        with self._under(token), contextlib.suppress(jax.errors.JaxRuntimeError):
            with listening(request):
                self._lowered.compile(**{**self._kwargs, "compiler_options": options})

    def apply(self, plan: Plan, key: str = "", accepted: Sequence[str] = ()) -> Applied:
        """Compiles with the plan's schedule, and checks the executable.

        Args:
          plan: the plan to apply. key: under which it is stored, or "".
          accepted: digests of executables of this plan that the referee has accepted before.

        Raises:
          PlanMismatchError: the module XLA scheduled is not the plan's.
        """
        objects = ""

        def answer(_: str, module: bytes) -> bytes | None:
            nonlocal objects
            planned, objects = self.write(module, plan)
            return None if objects else planned

        self._case = self._accepted = self._text = self._results = None
        digest = plan_store.plan_digest(plan)
        compiled = self._compiled(Token(key or digest), answer)
        if objects:
            return Applied(compiled, objects, True)
        final = Final.of(compiled)
        if key and mark_in(final.proto) != digest:
            # JAX's persistent cache had an executable of another plan for the same key.
            compiled = self._compiled(Token(digest), answer)
            if objects:
                return Applied(compiled, objects, True)
            final = Final.of(compiled)
        known = _accepted_digest(final.proto, digest)
        if known not in accepted and self._case is None and not _says_results(plan, final):
            # An executable of JAX's cache, and nothing is known to check its results against.
            compiled = self._compiled(Token(), answer)
            if objects:
                return Applied(compiled, objects, True)
            final = Final.of(compiled)
            known = _accepted_digest(final.proto, digest)
        if known in accepted:
            return Applied(compiled, "", False, plan.results, known, True)
        return self.judged(compiled, plan, final)

    def write(self, module: bytes, plan: Plan) -> tuple[bytes, str]:
        """Applies a plan to a scheduled module, and has the referee check the result.

        The referee runs before XLA goes on, since XLA may abort on an invalid module.

        Returns:
          (the planned module, serialized; why it is not to be used, or "").

        Raises:
          PlanMismatchError: the module is not the plan's.
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
        """Checks the executable of a plan: its order, the referee's checks, and a GPU's limits.

        Args:
          compiled, plan: the executable and its plan. final: its module, if already read.
        """
        final = final or Final.of(compiled)
        lists_thunks = platform(plan.target).lists_thunks
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
            ran, cost = Ran(final.proto, case.gpu), self._cost(plan)
            reason = worse(plan, ran, self._own_ran, cost, as_it_is=accepted is not None)
            if reason:
                return Applied(compiled, reason, False, results)
        digest = _accepted_digest(final.proto, plan_store.plan_digest(plan))
        return Applied(compiled, "", False, results, digest)

    def _cost(self, plan: Plan) -> CostModel:
        """The cost model of the devices that the stage is compiled for."""
        return CostModel(device(plan.target, device_kind(self._lowered)), plan.target)

    def _own_ran(self) -> Ran:
        """The module and executable of XLA's own order on a GPU."""
        own = self.own()
        return Ran(final_module(own), gpu_code.read_or_say(gpu_code.serialized_executable(own)))

    def _expected(self, final: Final, plan: Plan) -> tuple[str, referee.Accepted | None]:
        """The digest of a plan's results; and the planned module, if it runs unchanged."""
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
        """The digest of the results of XLA's own executable.

        After scheduling XLA changes the code of some fusions, in its own module as in a planned
        one. Where an executable differs from the scheduled module, both executables must agree.
        """
        own = final_module(self.own())
        return referee.results_digest(own, plan.target, loops=_by_elements(plan))

    def _objection(self, case: objection.Case, plan: Plan) -> str:
        """The referee's objection to a case, and where the case is saved; or ""."""
        try:
            self._accepted, self._kernels = case.check()
        except CheckError as error:
            return self._saved(case, plan, error)
        return ""

    def _saved(self, case: objection.Case, plan: Plan, error: CheckError) -> str:
        """Saves a case; returns the referee's objection to it, and the path."""
        case = dataclasses.replace(case, stablehlo=self.stablehlo.text)
        try:
            where = f"details are in {objection.save(case, plan, error)}"
        except (OSError, RuntimeError) as trouble:
            where = f"details could not be written: {trouble}"
        return f"olla_xla's check failed: {error}; {where}"

    def _other_kernels(self, case: objection.Case, plan: Plan) -> str:
        """The referee's objection to kernels whose memory pattern is not that of XLA's own order.

        The plan has the patterns of XLA's order by simulation; where they differ, XLA's own
        executable is compiled and decides. "" if there is no objection.
        """
        doubtful = referee.differing(self._kernels, plan.kernels)
        if not doubtful:
            return ""
        if not platform(plan.target).keeps_arrays:  # rounding was not seen to depend on memory
            _logger.info(
                "%s: kernels share buffers in another way than planned: %s",
                plan.module,
                ", ".join(doubtful),
            )
            return ""
        _logger.info("%s: XLA's order is compiled to check %s", plan.module, ", ".join(doubtful))
        own = self.own()
        kernels = referee.check_executable(
            Final.of(own).proto,
            plan.target,
            assignment=assignment_proto(own, plan.target),
        )
        found = {name: memory.found for name, memory in kernels.items()}
        found = {**found, **_copied(found, plan)}
        doubtful = [name for name in doubtful if self._kernels[name].found != found.get(name)]
        if not doubtful:
            return ""
        error = CheckError(
            f"{doubtful[0]} shares buffers in another way than in XLA's own order, so it may round "
            "differently"
        )
        return self._saved(case, plan, error)

    def own(self, key: str = "") -> jax.stages.Compiled:
        """The function's executable with XLA's own schedule; compiled at the first call, then kept.

        Args:
          key: under which JAX's persistent cache may have it, or "".
        """
        if self._own is None and key:
            compiled = self._compiled(Token(key), lambda *_: None)
            self._own = None if mark_of(compiled) else compiled
        if self._own is None:
            self._own = self._compiled(Token(), lambda *_: None)
        return self._own

    def kept(self, compiled: jax.stages.Compiled) -> jax.stages.Compiled:
        """Makes JAX run this executable at later calls of the jitted function; returns it.

        Call it after all other compiles of this object: JAX keeps the executable from then on.
        """
        plain = self._kwargs == {"compiler_options": None}
        kept = plain and keep_executable(self._lowered, compiled)
        if kept or id(compiled) not in self._made:  # the latter where it was loaded again
            return compiled
        token, _ = self._made[id(compiled)]
        with self._under(token):
            return self._lowered.compile(**self._kwargs)

    def _compiled(
        self, token: Token, answer: Callable[[str, bytes], bytes | None]
    ) -> jax.stages.Compiled:
        """Compiles under a token, without making the executable the one that calls run."""
        options = self._kwargs["compiler_options"] or {}
        with self._under(token), listening(CompileRequest(token.bytes, answer)):
            compiled = self._lowered.compile(**{**self._kwargs, "compiler_options": options})
        self._made[id(compiled)] = (token, compiled)
        return compiled

    @contextlib.contextmanager
    def _under(self, token: Token) -> Iterator[None]:
        """Compiles inside have the token in their module, and their own entry in JAX's memo."""
        self._tokens.add(token.bytes)
        with marked(self._lowered, token.bytes), token.scope():
            with contextlib.nullcontext() if token.lasting else no_cache_writes():
                yield

    def forget(self) -> None:
        """Makes JAX forget the executables compiled here; those in use stay."""
        for token in list(self._tokens):
            with marked(self._lowered, token):
                forget_compiles(self._lowered)


def _by_elements(plan: Plan) -> bool:
    """Whether loops are compared element by element, since the plan or XLA changes them."""
    return bool(plan.loops or plan.sunk or plan.joined) or platform(plan.target).changes_loops


def _accepted_digest(final: bytes, plan: str) -> str:
    """Names an executable of a plan: version of the referee, the plan's digest, the module's."""
    return f"{__version__} {plan} {module_digest(final)}"


def _says_results(plan: Plan, final: Final) -> bool:
    """Whether a stored plan has a digest to check an executable's results against."""
    if is_text_digest(plan.results):
        return text_digest(text_of(final.module)) == plan.results
    return bool(plan.results)


def _copied(found: Mapping[str, tuple[int, ...]], plan: Plan) -> dict[str, tuple[int, ...]]:
    """The memory patterns that a plan's clones must have: those of their originals."""
    return {c: found[original] for c, original, *_ in plan.clones if original in found}
