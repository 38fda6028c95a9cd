"""Tries other ways than an order to lower a step's memory: recomputation, donation, pieces.

Each is compiled as its name says, by what a user would call, and its total is XLA's own.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from olla_xla.analysis import checkpointed
from olla_xla.analysis.leaves import Leaf, to_donate
from olla_xla.analysis.memory_view import MemoryView
from olla_xla.analysis.remedy import Remedy, Trial, by_hand, helps, most_used
from olla_xla.compile.accounting import assigned_bytes
from olla_xla.compile.outcomes import Outcome, error_text
from olla_xla.compile.planned_function import PlanSettings, planned_function
from olla_xla.compile.signature import device_key
from olla_xla.errors import InputError, OllaError
from olla_xla.memory.module_state import scheduled_module
from olla_xla.memory.own_jit import own_jit
from olla_xla.pieces import in_pieces, transform
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan

_logger = logging.getLogger("olla_xla")

_LITTLE = 0.1
"""Other remedies are tried where an order saves a smaller part of XLA's total. Pieces must save as
much, by their estimate, to be compiled."""

_OVERHEADS = (0.2, 0.5)
"""Overheads allowed to recomputation, as parts of the step's predicted time, tried until one helps.
With 0.2 most steps save much; 0.5 is more than recomputing everything takes."""

_NOTHING = 2**16
"""Bytes of a step below which nothing is tried: they are printed as 0.0 MB."""

_TIME_AT_MOST = 1.0
"""The most predicted time that pieces may add, as a part of the step's."""

_FEWER = (1.0, 0.5, 0.0)
"""Parts of the pieces that would just do if time grew with their number, tried one after another,
as operators take time to start, however small they are; 0: no more."""


class Plannable(Protocol):
    """Protocol of something that can be compiled with a plan, such as a jitted function."""

    def planned(self, options: PlanOptions) -> Outcome:
        """Compiles the program with a plan by `options`; returns the Outcome."""
        ...


@dataclasses.dataclass(frozen=True)
class JittedFunction:
    """A function with its `jax.jit` options and arguments, on which remedies are tried.

    Attributes:
      function: the plain function. jit_options: what it is jitted with.
      args, kwargs: its arguments, on the devices that it is compiled for.
      leaves: arrays in them that could be donated, and are not.
    """

    function: Callable[..., Any]
    jit_options: Mapping[str, Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    leaves: Sequence[Leaf] = ()

    def planned(self, options: PlanOptions) -> Outcome:
        """Compiles as `olla_xla.plan` does, without reports and listeners; returns the Outcome."""
        planned = planned_function(self.function, dict(self.jit_options), PlanSettings(options))
        lowered = planned.lower(*self.args, **self.kwargs).stage
        return planned._compiled(lowered, device_key(tuple(self.args), dict(self.kwargs)))

    def total(self, options: PlanOptions | None) -> int:
        """Compiles the function, with a plan if `options` are given; returns XLA's total bytes.
        Raises OllaError if planning fails.
        """
        if options is not None:
            return assigned_bytes(_succeeded(self.planned(options)).compiled)
        jitted = own_jit(self.function, **self.jit_options)
        return assigned_bytes(jitted.lower(*self.args, **self.kwargs).compile())

    def with_donation(self) -> JittedFunction:
        """Returns a copy of this function that also donates each argument with arrays in `leaves`.
        Donation is by argument: other arrays of such an argument are donated too.
        """
        options = dict(self.jit_options)
        numbers = options.pop("donate_argnums", None) or ()
        names = options.pop("donate_argnames", None) or ()
        numbers = {numbers} if isinstance(numbers, int) else set(numbers)
        names = {names} if isinstance(names, str) else set(names)
        numbers |= {leaf.argnum for leaf in self.leaves if leaf.argnum is not None}
        keywords = [leaf.path for leaf in self.leaves if leaf.argnum is None]
        names |= {path.split(".")[0].split("[")[0] for path in keywords}
        given = {"donate_argnums": tuple(sorted(numbers)), "donate_argnames": tuple(sorted(names))}
        more = {name: value for name, value in given.items() if value}
        return dataclasses.replace(self, jit_options=options | more, leaves=())


def remedy(
    program: Plannable,
    module: bytes,
    view: MemoryView,
    options: PlanOptions,
    plan: Plan | None = None,
    bound: int = 0,
) -> Remedy | None:
    """Tries what would lower a step's memory, unless its plan saves much already.

    Args:
      program: a `JittedFunction`, for all remedies; of anything else only plans are tried.
      module: the step's, serialized. view: the step's memory. options: for plans that are tried.
      plan: the one in use, or None. bound: no order takes fewer bytes.

    Returns:
      A Remedy with XLA's total for each that was tried, and what was not; None without any trial
      where the plan saves much, or the step takes little.
    """
    total = view.total_bytes
    if plan is not None:
        total = plan.total_bytes
        if total < (1 - _LITTLE) * plan.xla_bytes:
            return None
    if total < _NOTHING:
        return None
    what, size, is_state = most_used(view)
    tried = _Trials(program, dataclasses.replace(options, method="search"), total, plan)
    if not options.recomputes:
        if plan is None and helps(bound, total):
            tried.add("olla_xla.plan", lambda: tried.planned(None))
        for overhead in _OVERHEADS[: 1 if is_state else None]:
            least = min([total, *(trial.bytes for trial in tried.found)])
            tried.add(f"max_overhead={overhead:g}", lambda o=overhead: tried.planned(o))
            if tried.found and tried.found[-1].allowed and helps(tried.found[-1].bytes, least):
                if plan is None and tried.found[-1].added <= 0 and len(tried.found) == 1:
                    tried.add("olla_xla.plan", lambda: tried.planned(None))
                break
    if isinstance(program, JittedFunction):
        if program.leaves:
            tried.add("donation", tried.donated)
        tried.add("olla_xla.fission", tried.in_pieces)
    left = [] if isinstance(program, JittedFunction) else ["donation and olla_xla.fission"]
    if not is_state:
        some = any(helps(trial.bytes, total) for trial in tried.found)
        count = len(tried.found) + len(tried.failed)
        if isinstance(program, JittedFunction) and not some:
            tried.add("jax.checkpoint", tried.checkpointed)
        if len(tried.found) + len(tried.failed) == count:
            left = [f"{by_hand(scheduled_module(module))} by hand", *left]
    trials = tuple(sorted(tried.found, key=lambda trial: trial.bytes))
    return Remedy(what, size, is_state, total, trials, (*tried.failed, *left))


class _Trials:
    """The ways to save memory tried on one step.
    `found`: Trials, XLA's totals with each. `failed`: for others, what failed and why, a line each.
    """

    def __init__(
        self, program: Plannable, options: PlanOptions, total: int, plan: Plan | None
    ) -> None:
        self._program, self._options, self._total = program, options, total
        self._in_use = None if plan is None else self._options
        self.found: list[Trial] = []
        self.failed: list[str] = []

    def add(self, what: str, attempt: Callable[[], Trial | None]) -> None:
        """Runs `attempt`, which compiles the step in one way (`what`); adds its Trial to `found`.
        If it raises, adds a line to `failed`; if it returns None, nothing.
        """
        _logger.info("trying %s", what)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Some donated buffers were not usable")
                trial = attempt()
        except Exception as error:
            _logger.debug("%s was not tried", what, exc_info=error)
            text = error_text(error).splitlines()[0]
            self.failed.append(f"{what}, which fails ({text[:120]})")
            return
        _logger.info(
            "%s: %s", what, "no gain" if trial is None else f"{trial.bytes / 2**20:,.1f} MB"
        )
        self.found += [] if trial is None else [trial]

    def planned(self, overhead: float | None) -> Trial:
        """Compiles the step with a plan; returns its Trial. Raises OllaError if planning fails.
        `overhead`: the most time that recomputation may add, as a fraction; None: the default.
        """
        options = dataclasses.replace(self._options, max_overhead=overhead)
        outcome = _succeeded(self._program.planned(options))
        added = 0.0 if outcome.plan is None else outcome.plan.overhead
        total = assigned_bytes(outcome.compiled)
        return Trial(_call(options), total, added, overhead or 0.0)

    def donated(self) -> Trial:
        """Compiles the step, planned if it was, with all that can be donated; returns its Trial."""
        program = self._program
        assert isinstance(program, JittedFunction)
        total = program.with_donation().total(self._in_use)
        done = f"if the caller no longer needs {'it' if len(program.leaves) == 1 else 'them'}"
        return Trial(to_donate(program.leaves), total, notes=(done,))

    @functools.cached_property
    def _own_seconds(self) -> float:
        """Predicted seconds of a step without any remedy; compiles it at the first access."""
        program = self._program
        assert isinstance(program, JittedFunction)
        jitted = own_jit(program.function, **program.jit_options)
        return in_pieces.compiled_cost(jitted.lower(*program.args, **program.kwargs))[1]

    def checkpointed(self) -> Trial | None:
        """Compiles the step with `jax.checkpoint` around scans' bodies, their segments or the loss.
        Returns the Trial of the first that helps, else of the least total; None if it has neither.
        """
        program = self._program
        assert isinstance(program, JittedFunction)
        trials: list[Trial] = []
        for where, put, policy in (
            ("each scan's body", checkpointed.checkpointed_scans, "nothing_saveable"),
            ("segments of each scan", checkpointed.checkpointed_segments, "nothing_saveable"),
            ("the loss", checkpointed.checkpointed_loss, "dots_with_no_batch_dims_saveable"),
        ):
            # JAX would not trace the same function again.
            anew = functools.wraps(program.function)(lambda *a, **k: program.function(*a, **k))
            with put(policy) as wrapped:
                jitted = own_jit(anew, **program.jit_options)
                lowered = jitted.lower(*program.args, **program.kwargs)
            if not wrapped:
                continue
            total, seconds = in_pieces.compiled_cost(lowered)
            setting = f"jax.checkpoint around {where} ({policy})"
            added = seconds / self._own_seconds - 1
            trials.append(Trial(setting, total, added, math.inf, ("other rounding",)))
            if helps(total, self._total):
                break
        return min(trials, key=lambda trial: trial.bytes, default=None)

    def in_pieces(self) -> Trial | None:
        """Compiles the step with its largest values made a piece at a time (`olla_xla.fission`).

        If cutting the step does not help, the function that it differentiates is cut; if neither
        does, a line is added to `failed`. If pieces add more than the step's own time, fewer are
        tried. Returns the Trial; None if there is none within that time.
        """
        cuts = [self._cut(None, of_loss=False)]
        if isinstance(cuts[0], str):
            cuts.append(self._cut(None, of_loss=True))
        cut = cuts[-1]
        if isinstance(cut, str):
            self.failed.append(f"olla_xla.fission, which {cuts[0]}")
            return None
        for part in _FEWER:
            trial, units = cut[0](self._own_seconds), cut[1]
            if trial.added <= _TIME_AT_MOST:
                return trial
            fewer = min(int(part * trial.pieces * _TIME_AT_MOST / trial.added), units)
            cut = self._cut(fewer, of_loss=len(cuts) > 1) if fewer > 1 else ""
            if isinstance(cut, str):
                break
        return None

    def _cut(
        self, pieces: int | None, *, of_loss: bool
    ) -> tuple[Callable[[float], Trial], int] | str:
        """Compiles the step, or with `of_loss` the function that it differentiates, in pieces.
        Its largest values are made a piece at a time, in `pieces`; None: fission chooses how many.
        Returns (function: predicted seconds of the uncut step -> Trial; the most pieces), or a text
        that says why pieces do not help.
        """
        program = self._program
        assert isinstance(program, JittedFunction)
        cuts: list[transform.FissionPlan] = []

        def cut_into(function: Callable[..., Any]) -> Callable[..., Any]:
            return transform.in_pieces(function, pieces, cuts.append)

        @functools.wraps(program.function)
        def with_loss_cut(*args: Any, **kwargs: Any) -> Any:
            with checkpointed.wrapped_loss(cut_into):
                return program.function(*args, **kwargs)

        function = with_loss_cut if of_loss else cut_into(program.function)
        jitted = own_jit(function, **program.jit_options)
        try:
            traced = jitted.trace(*program.args, **program.kwargs)
        except InputError:
            cuts.clear()
        if not cuts:
            return "finds nothing to cut"
        cut = cuts[-1]
        if cut.peak_before - cut.peak_after < _LITTLE * self._total:
            return "would save little memory by fission's own estimate"
        total, seconds = in_pieces.compiled_cost(traced.lower())
        if self._in_use is not None:
            total = dataclasses.replace(program, function=function).total(self._in_use)
        region = max(cut.regions, key=lambda r: r.value_bytes)
        of = f"{region.value} at {region.value_line} in {cut.pieces} pieces"
        given = "" if pieces is None else f"(pieces={pieces})"
        setting = f"olla_xla.fission{given}{' around the loss' * of_loss}"

        def trial(before: float) -> Trial:
            added, notes = seconds / before - 1, (of, "other rounding")
            return Trial(setting, total, added, _TIME_AT_MOST, notes, cut.pieces)

        return trial, max(r.units for r in cut.regions)


def _succeeded(outcome: Outcome) -> Outcome:
    """Returns the outcome of planning as it is; raises OllaError if planning failed."""
    if outcome.error is not None or outcome.fell_back:
        raise OllaError(outcome.reason)
    return outcome


def _call(options: PlanOptions) -> str:
    """The Python call that plans with these options, such as "olla_xla.plan(max_overhead=0.2)"."""
    given = [
        f"{field.name}={value:g}" if isinstance(value, float) else f"{field.name}={value!r}"
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != field.default
    ]
    return f"olla_xla.plan({', '.join(sorted(given))})" if given else "olla_xla.plan"
