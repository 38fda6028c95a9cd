"""What `olla_xla.plan` returns: a jitted function whose executables run planned schedules.
It wraps a jitted function of its own. JAX serves calls of known signatures from C++. For a new one
it calls a Python handler; ours runs before it, and lowers, plans and compiles once. JAX uses the
executable both for `lower(...).compile()` and for the call, so later calls are `jax.jit`'s own.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from hlo.backend import platform_of_jax
from olla_xla.compile import environment as settings
from olla_xla.compile import extensions, gpu_code, loading, stages, together, verification
from olla_xla.compile.events import tell
from olla_xla.compile.foreign import caution
from olla_xla.compile.handlers import raises_of_handlers
from olla_xla.compile.jax_private import (
    devices_of,
    has_descriptions,
    lowering_identity,
    own_jit,
    with_miss_handler,
)
from olla_xla.compile.outcomes import Outcome, failed, require_budget
from olla_xla.compile.plan_event import PlanEvent
from olla_xla.compile.plan_store import is_filled
from olla_xla.compile.planned import compile_given, compile_planned
from olla_xla.compile.shared import Outcomes, Plans, Shared, shared
from olla_xla.compile.signature import device_key, is_to_plan
from olla_xla.errors import CheckError, FallbackError, JitError, OllaError
from olla_xla.problem.function_name import function_name
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.summary import in_a_line
from olla_xla.remat.cost.calibrate import is_measuring

if TYPE_CHECKING:
    from olla_xla.compile.checkpoint_policy import CheckpointPolicy

_logger = logging.getLogger("olla_xla")

_INTERNAL = tuple(str(Path(path).parent) for path in (__file__, jax.__file__))
"""Folders of frames that a warning skips, so that it points at the caller's line."""


_BENCHMARK = "olla_xla does not plan its own benchmarks of this machine"
_DISABLED = "enabled=False"


MEANT = (OllaError, jax.errors.JaxRuntimeError, Warning)
"""What a caller is to see: our own errors, XLA's, and warnings that the program made errors."""


class PlanWarning(UserWarning):
    """Warned once: planning failed, or checks rejected plan or results; XLA's own order runs."""


class PlanSettings(NamedTuple):
    """How a function is to be planned: options, and the other arguments of `olla_xla.plan`."""

    options: PlanOptions
    verify: bool | None = None
    plan: Plan | None = None
    enabled: bool = True


def planned_function(
    function: Callable[..., Any], jit_options: dict[str, Any], plan_settings: PlanSettings
) -> PlannedFunction:
    """Makes a `PlannedFunction`, jitted with `jit_options`; those of equal hashable functions with
    equal settings share state and plans. Raises JitError if `jax.jit` refuses the function.
    """
    function, alike = shared(
        function, (plan_settings, jit_options), functools.partial(_jitted, jit_options)
    )
    return PlannedFunction(function, alike, plan_settings, jit_options)


def _jitted(jit_options: dict[str, Any], function: Callable[..., Any]) -> jax.stages.Wrapped:
    try:
        return own_jit(function, **jit_options)
    except TypeError as error:
        raise JitError(f"jax.jit refuses the function: {error}") from error


class _First(NamedTuple):
    """A first call of a planned executable: copies of its arguments; how results are compared."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    comparison: verification.ResultComparison


class PlannedFunction:
    """What `olla_xla.plan` returns: a jitted function whose memory is planned for each signature.

    Args:
      function: the plain function.
      alike: state shared with other planned functions of it that have the same settings.
      plan_settings: how it is planned.
      jit_options: the arguments that `alike.jitted` was made with.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        alike: Shared,
        plan_settings: PlanSettings,
        jit_options: Mapping[str, Any],
    ) -> None:
        if (
            plan_settings.enabled
            and plan_settings.plan is None
            and not settings.disabled()
            and not is_filled()
        ):
            loading.begin()
        functools.update_wrapper(self, function)
        # Attributes of the function must not hide our methods: it may have a `lower` of its own.
        for name in vars(self).keys() & vars(PlannedFunction).keys():
            if not name.startswith("__"):
                del vars(self)[name]
        self.__wrapped__ = function
        self.__name__: str = function_name(function)
        self._shared, self._jitted = alike, alike.jitted
        self._plan_settings, self._options = plan_settings, plan_settings.options
        # A weak reference avoids a cycle: the function is freed with the planned one, and not in a
        # later garbage collection.
        before_miss = weakref.WeakMethod(self._before_miss)
        self._call = (
            with_miss_handler(self._jitted, before_miss) if plan_settings.enabled else self._jitted
        )
        self._jit_options = dict(jit_options)
        self._compiler_options = sorted((jit_options.get("compiler_options") or {}).items())
        donated = [jit_options.get(name) for name in ("donate_argnums", "donate_argnames")]
        self._static = _numbers(jit_options.get("static_argnums"))
        self._donates = any(isinstance(d, int) or bool(d) for d in donated)
        self._verify = plan_settings.verify if plan_settings.enabled else False
        self._pending = threading.local()
        self._say(caution(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function; for new shapes and types of arguments it is planned first, and its
        first results may be compared with XLA's own, which are returned if they differ (`verify`).
        """
        try:
            if self._verify is False:
                return self._call(*args, **kwargs)
            self._pending.first = None
            outputs = self._call(*args, **kwargs)
        except OllaError as error:
            # The message says all: frames of ours, of JAX and of XLA are left out.
            raise error.with_traceback(None) from error.__cause__
        first: _First | None = self._pending.first
        self._pending.first = None
        return outputs if first is None else self._verified(outputs, first)

    @raises_of_handlers
    def _verified(self, outputs: Any, first: _First) -> Any:
        """Runs XLA's own executable on copies of a first call's arguments. Returns its outputs if
        they differ: then plans of this module are no longer used, traces and executables are
        dropped, and the user is warned. Returns `outputs` if both are equal, or that run failed.
        """
        own = own_jit(functools.partial(self.__wrapped__), **self._jit_options)
        expected = first.comparison.expected(own, first.args, first.kwargs)
        if expected is None:
            return outputs
        difference = self._difference(*expected, outputs, first.comparison)
        if not difference:
            return outputs
        self._shared.refused.add(first.comparison.digest)
        self.clear_cache()
        self._warn(verification.report(self.__name__, difference))
        return expected[0]

    def _difference(
        self, expected: Any, found: Any, comparison: verification.ResultComparison
    ) -> str:
        """Says where outputs differ, here or in another process with the same plan; or "".
        The result of the comparison is stored, if it was not the user who asked for it.
        """
        difference, members = verification.difference(expected, found), comparison.members
        if len(members) > 1:
            topic = f"results of {comparison.digest}"
            difference = together.settled_together(members, topic, self.__name__, difference)
        comparison.settle(difference)
        return difference

    def _before_miss(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], None] | None:
        """Plans and compiles what JAX is about to run for these arguments, if it is to be planned.
        Returns None or, if that failed, a function to call once JAX has run it, which warns.
        """
        try:
            if not is_to_plan(args, kwargs):
                return None
        except Exception as error:
            return self._not_planned(error)
        return self._before_call(self._jitted.trace(*args, **kwargs), args, kwargs)

    @raises_of_handlers
    def _before_call(
        self, traced: jax.stages.Traced, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], None] | None:
        """Lowers and plans a traced call; notes if its first results are to be compared with XLA's.
        Returns None, or a function that warns later that it was not planned. Raises `MEANT`: our
        own errors, XLA's, and warnings made errors.
        """
        lowered = None
        try:
            lowered = traced.lower()
            known = len(self._shared.plans)
            outcome = self._outcome(lowered, device_key(args, kwargs))
            if len(self._shared.plans) > known:
                comparison = verification.due(self._verify, outcome, lowered, self._say)
                if comparison is not None:
                    own_args, own_kwargs = verification.copies((args, kwargs))
                    self._pending.first = _First(own_args, own_kwargs, comparison)
        except Exception as error:
            return self._not_planned(error, None if lowered else traced)
        return None

    def _not_planned(self, error: Exception, unlowered: Any = None) -> Callable[[], None]:
        """Leaves a call to JAX, and returns a function that warns if the call succeeds.
        JAX raises its own error if it cannot lower the call either. It can if only `lower()` fails:
        that builds the user's pytrees with descriptions of arrays as leaves, which some reject. And
        it can where the fault is ours. `unlowered` is what JAX traced, where it cannot be lowered.
        Raises `error` if the caller is to see it; else FallbackError in strict mode or with a
        memory budget.
        """
        if isinstance(error, MEANT):
            raise error
        _logger.debug("it is not planned", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        if settings.strict() or self._options.budget_bytes is not None:
            if unlowered is not None and has_descriptions(unlowered):
                raise error  # as JAX will
            raise FallbackError(f"{self.__name__} is not planned: {reason}") from error
        text = f"olla_xla could not plan {self.__name__}, XLA's schedule is used: {reason}"
        return functools.partial(self._warn, text)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds to an instance as a function does, so that methods can be planned."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Says how copies and pickles are made: anew from the arguments, without executables."""
        return planned_function, (self.__wrapped__, self._jit_options, self._plan_settings)

    def __repr__(self) -> str:
        count = len(self._shared.plans)
        if not self._plan_settings.enabled:
            state = f"not planned: {_DISABLED}"
        elif not count:
            why = self._shared.unplanned
            state = f"XLA's own schedule, not planned: {why}" if why else "nothing planned yet"
        else:
            state = f"{in_a_line(self._shared.plans[-1])}{f'; {count} plans' * (count > 1)}"
        return f"<olla_xla.plan of {self.__name__}: {state}>"

    def trace(self, *args: Any, **kwargs: Any) -> stages.PlannedTraced:
        """Traces the function as `jax.jit`'s does, into a stage that plans once it is compiled."""
        return stages.PlannedTraced(
            self, self._jitted.trace(*args, **kwargs), device_key(args, kwargs)
        )

    def lower(self, *args: Any, **kwargs: Any) -> stages.PlannedLowered:
        """Lowers the function as `jax.jit`'s does, into a stage that plans once it is compiled."""
        return stages.PlannedLowered(
            self, self._jitted.lower(*args, **kwargs), device_key(args, kwargs)
        )

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns shapes and types of the results, as a `jax.jit` function's method does."""
        return self._jitted.eval_shape(*args, **kwargs)

    def as_policy(self, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Lists the scan residuals that the plan keeps or spills, as a policy of `jax.checkpoint`.
        It plans and compiles the signature if that was not done. Residuals are named by
        `checkpoint_name`; those kept that have no name are listed too. CheckError without a plan.

        Examples:
          >>> print(step.as_policy(state, batch))
          jax.checkpoint_policies.save_only_these_names('mlp_up', 'attention_out')
        """
        traced = self._jitted.trace(*args, **kwargs)
        lowered = traced.lower()
        outcome = self._outcome(lowered, device_key(args, kwargs))
        if outcome.plan is None:
            raise CheckError(f"{self.__name__} has no plan: {outcome.reason}")
        return extensions.checkpoint_policy(traced, lowered, outcome.plan)

    def clear_cache(self) -> None:
        """Drops traces and executables of all functions planned alike; `plans` are kept."""
        with self._shared.lock:
            self._jitted.clear_cache()
            self._shared.outcomes.clear()

    def _cache_size(self) -> int:
        """Returns how many signatures JAX has cached for calls; programs count compiles by it."""
        return getattr(self._call, "_cache_size", self._jitted._cache_size)()

    @property
    def jit_options(self) -> dict[str, Any]:
        """The keyword arguments of `jax.jit` that the function was made with."""
        return dict(self._jit_options)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, also for functions planned alike, in the order in which signatures
        were compiled; of XLA's own order where nothing better was found.
        Indexing beyond them raises an IndexError that says why there is no plan.
        """
        why = self._shared.unplanned or "call or compile the function first"
        return Plans(self._shared.plans).named(self.__name__, why)

    @raises_of_handlers
    def _outcome(
        self, lowered: jax.stages.Lowered, device_key: str, **compile_kwargs: Any
    ) -> Outcome:
        """Plans and compiles `lowered`, once for each set of compile arguments.
        If planning fails, JAX compiles it with XLA's schedule, and the user is warned, unless the
        user is to see the error (`_not_planned`). `device_key`: names the arguments' devices.
        """
        try:
            return self._made_once(lowered, device_key, **compile_kwargs)
        except Exception as error:
            warn = self._not_planned(error)
            outcome = failed(lowered.compile(**compile_kwargs), error)
            warn()
            return outcome

    def _made_once(
        self, lowered: jax.stages.Lowered, device_key: str, **compile_kwargs: Any
    ) -> Outcome:
        if settings.disabled():
            return Outcome(lowered.compile(**compile_kwargs), None, False, "OLLA_XLA_DISABLE=1")
        if is_measuring():  # planning waits for these benchmarks, which call jitted functions
            return Outcome(lowered.compile(**compile_kwargs), None, False, _BENCHMARK)
        variant = repr(sorted(compile_kwargs.items()))
        with self._shared.lock:
            known = self._shared.outcomes.setdefault(lowering_identity(lowered), Outcomes())
        # Only this signature's lock is held during the search: others can be planned meanwhile.
        with known.lock:
            outcomes = known.by_variant
            if variant not in outcomes:
                started = time.monotonic()
                outcome = self._compiled(lowered, device_key, **compile_kwargs).described()
                hint = ""
                if outcome.plan is not None:
                    hint = extensions.donation_hint(outcome.compiled, self._static)
                tell(PlanEvent.of(self.__name__, outcome, time.monotonic() - started, hint))
                if outcome.fell_back and self._plan_settings.enabled and settings.strict():
                    raise FallbackError(f"{self.__name__} is not planned: {outcome.reason}")
                outcomes[variant] = outcome
                self._report(outcome, hint)
            return outcomes[variant]

    def _compiled(
        self, lowered: jax.stages.Lowered, device_key: str, **compile_kwargs: Any
    ) -> Outcome:
        """Compiles `lowered`: without a plan, with the one that was given, or with a new one.
        Several processes compile together if the function runs on devices of all of them.
        `device_key`: text that names the arguments' devices.
        """
        if not self._plan_settings.enabled:
            return Outcome(lowered.compile(**compile_kwargs), None, False, _DISABLED)
        members = ()
        if jax.process_count() > 1:
            devices = compile_kwargs.get("device_assignment") or devices_of(lowered)
            members = tuple(sorted({d.process_index for d in devices}))
        options = *self._compiler_options, *(compile_kwargs.get("compiler_options") or {}).items()
        if reason := self._reason_not_to_plan(lowered, members) or _unordered(lowered, options):
            compiled = lowered.compile(**compile_kwargs)
            require_budget(compiled, self._options, reason)
            return Outcome(compiled, None, False, reason)
        environment = f"{device_key} {self._compiler_options}"
        if len(members) > 1:
            compile_kwargs |= {"members": members, "given": self._plan_settings.plan}
            return together.compile_together(
                lowered, self._options, environment=environment, **compile_kwargs
            )
        if self._plan_settings.plan is not None:
            return compile_given(lowered, self._plan_settings.plan, self._options, **compile_kwargs)
        return compile_planned(lowered, self._options, environment=environment, **compile_kwargs)

    def _reason_not_to_plan(self, lowered: jax.stages.Lowered, members: tuple[int, ...]) -> str:
        config: Any = jax.config
        refused = self._shared.refused
        if refused and verification.digest(lowered) in refused:
            return "its planned results differed from XLA's own"
        if jax.process_count() > 1 and not members:
            return "which processes run the function is not known before it is compiled"
        if len(members) > 1 and (reason := together.reason_not_to()):
            return reason
        if config.jax_enable_pgle:
            return "jax_enable_pgle compiles again from profiles; such compiles are not planned"
        if config.jax_debug_nans and self._donates:
            self._say("jax_debug_nans makes JAX ignore donation, so the step takes more memory")
        return ""

    def _report(self, outcome: Outcome, hint: str) -> None:
        if outcome.objection:
            self._warn(f"XLA's own executable of {self.__name__} is used: {outcome.objection}")
        self._shared.unplanned = outcome.reason if outcome.plan is None else ""
        if outcome.plan is not None:
            self._shared.plans.append(outcome.plan)
            self._say(hint)
        elif outcome.error is None:
            if self._plan_settings.enabled:
                self._say(outcome.reason)
        else:
            self._warn(
                f"olla_xla could not plan {self.__name__}, XLA's schedule is used: {outcome.reason}"
            )

    def _warn(self, text: str) -> None:
        """Warns with a PlanWarning; functions planned alike give one such warning in all."""
        if "warned" not in self._shared.said:
            self._shared.said.add("warned")
            warnings.warn(text, PlanWarning, skip_file_prefixes=_INTERNAL)

    def _say(self, text: str) -> None:
        if text and text not in self._shared.said:
            self._shared.said.add(text)
            _logger.warning("%s: %s", self.__name__, text)


def _unordered(lowered: jax.stages.Lowered, options: Iterable[tuple[str, Any]]) -> str:
    """Says by which GPU option memory does not depend on the order; "" by none, or for no GPU."""
    if not any(platform_of_jax(device.platform).lists_thunks for device in devices_of(lowered)):
        return ""
    return gpu_code.without_order(options)


def _numbers(given: Any) -> tuple[int, ...]:
    """Returns `jax.jit`'s argument numbers, given as None, one number or several, as a tuple."""
    return (given,) if isinstance(given, int) else tuple(given or ())
