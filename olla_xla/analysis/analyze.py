"""`olla_xla.analyze`: compiles a step, and reports what its memory is used for."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hlo.backend import PLATFORMS, is_host, platform_of_jax
from hlo.gc_pause import without_collection
from hlo.module import module_from_bytes
from olla_xla.analysis.analysis import Analysis, Executable, analyze_module
from olla_xla.analysis.compiled_leaves import device_count, leaves
from olla_xla.analysis.donation import DonationOutcome
from olla_xla.analysis.leaves import Leaf
from olla_xla.analysis.ran_again import RanAgain, ran_again
from olla_xla.analysis.remedies import JittedFunction, Plannable, remedy
from olla_xla.compile import outcomes
from olla_xla.compile.assignment import read_assignment
from olla_xla.compile.decorator import plan
from olla_xla.compile.jax_private import device_bytes, jit_parameters, own_jit
from olla_xla.compile.planned import compile_planned
from olla_xla.compile.planned_function import PlannedFunction, PlanWarning
from olla_xla.compile.refused import is_refusal, refused_executable
from olla_xla.errors import InputError, OllaError
from olla_xla.problem.function_name import function_name
from olla_xla.problem.options import PlanOptions
from olla_xla.targets.target import Target, target


def analyze(
    fn: Callable[..., Any],
    *args: Any,
    target: str | Target | None = None,
    plan: bool | dict[str, Any] = False,
    title: str = "",
    advice: bool | dict[str, Any] = False,
    **kwargs: Any,
) -> Analysis:
    """Reports what is in memory at the peak of a function, and why.

    The function is compiled and not run, so its arguments may be shapes.

    Args:
      fn: jitted, planned by `olla_xla.plan` (then both orders are analysed), or a plain function.
      *args, **kwargs: its arguments, arrays or `jax.ShapeDtypeStruct`s.
      target: what to compile for: a name ("cpu", "h100") or `olla_xla.targets.Target`; by default
        where the arguments are.
      plan: whether to plan it too, with `olla_xla.plan`'s options if a dict.
      title: of tables and reports; by default the function's name.
      advice: whether to try what would help, unless a plan saves much: a plan, one with
        recomputation, donation, pieces (`olla_xla.fission`), else `jax.checkpoint`. Each takes one
        more compile, or a few. If it is a dict, it has `olla_xla.plan`'s options for these plans,
        unless the function is planned, whose own options then count.

    Raises:
      InputError: the function cannot be jitted, or the target is not known.
      OllaError: planning was asked for and failed.

    Examples:
      >>> analysis = olla_xla.analyze(train_step, state, batch, target="h100")
      >>> print(analysis)
      >>> analysis.xla.by_category(), analysis.donation.trouble
    """
    where = _target(target)
    if where is not None:
        args, kwargs = where.place((args, kwargs))
    own, planned = _functions(fn, plan)
    step = _compiled(own, args, kwargs, where)
    platform, executable = step.platform, step.executable
    best = None
    if planned is not None:
        best = _compiled(planned, args, kwargs, where).executable
    name = function_name(fn)
    analysis = analyze_module(
        executable,
        platform,
        title=title or (name if where is None else f"{name}, {where.name}"),
        planned=best,
        plan=None if planned is None else planned.plans[-1],
        leaves=step.leaves,
        available_bytes=step.available_bytes,
        devices=step.devices,
        ran_again=step.ran_again,
    )
    if advice is False:
        return analysis
    options = PlanOptions(**advice) if isinstance(advice, dict) else PlanOptions()
    options = options if planned is None else planned._options
    program = _program(own, args, kwargs, step, analysis)
    view, bound = analysis.views[-1], analysis.lower_bound_bytes
    tried = remedy(program, executable.module, view, options, analysis.plan, bound)
    return dataclasses.replace(analysis, remedy=tried)


def _program(fn: Any, args: Any, kwargs: Any, step: _CompiledStep, found: Analysis) -> Plannable:
    """Wraps the analysed function so that ways to save memory can be tried on it.
    Those are plans, and for functions of `jax.jit` donation (of arguments in `found`) and pieces.
    """
    function, options = getattr(fn, "__wrapped__", None), jit_parameters(fn)
    if function is None or options is None:  # of a library that takes more than arrays
        return _WrappedLowered(jax_stage(fn.lower(*args, **kwargs)), step.compiler_options)
    options |= {"compiler_options": step.compiler_options} if step.compiler_options else {}
    rows = () if found.donation is None else found.donation.trouble
    paths = {row.path for row in rows if row.outcome is DonationOutcome.POSSIBLE}
    taken = () if step.leaves is None else step.leaves[0]
    return JittedFunction(function, options, args, kwargs, [x for x in taken if x.path in paths])


class _WrappedLowered(NamedTuple):
    """A lowered function that another library wraps, so that only plans can be tried on it.
    `compiler_options`: XLA's, with which it is compiled.
    """

    lowered: jax.stages.Lowered
    compiler_options: dict[str, Any]

    def planned(self, options: PlanOptions) -> outcomes.Outcome:
        """Compiles the function with a plan by `options`; calls of the function do not use it."""
        return compile_planned(
            self.lowered, options, environment="", compiler_options=self.compiler_options
        )


def _target(given: str | Target | None) -> Target | None:
    return target(given) if isinstance(given, str) else given


def _functions(fn: Any, wanted: bool | dict[str, Any]) -> tuple[Any, PlannedFunction | None]:
    """Returns (the function under `jax.jit`, it planned, or None if it is not to be planned).
    `wanted`: whether to plan it, or options of the plan; a planned function stays as it is. Raises
    InputError if `fn` is no function.
    """
    options = wanted if isinstance(wanted, dict) else {}
    if isinstance(fn, PlannedFunction):
        return own_jit(fn.__wrapped__, **fn.jit_options), fn
    if not callable(fn):
        raise InputError(f"olla_xla.analyze takes a function, not {type(fn).__name__}")
    jitted = fn if hasattr(fn, "lower") else own_jit(fn)
    planned = None if wanted is False else plan(jitted, **options)
    return jitted, planned


class _CompiledStep(NamedTuple):
    """A compiled function.

    Attributes:
      platform: its name, by which memory rules are found. executable: what it runs, or would run
        if that fitted. leaves: what it takes and returns; None where XLA refused it.
      available_bytes: the device's memory, where XLA refused it; else None.
      devices: that run it. compiler_options: that it was compiled with.
      ran_again: what XLA's own rematerialization added, unless it is planned.
    """

    platform: str
    executable: Executable
    leaves: tuple[list[Leaf], list[Leaf]] | None
    available_bytes: int | None = None
    devices: int = 1
    compiler_options: dict[str, Any] = {}
    ran_again: RanAgain | None = None


def _compiled(fn: Any, args: Any, kwargs: Any, where: Target | None) -> _CompiledStep:
    """Compiles a function for target `where`, or where its arguments are if None.
    If XLA refuses it for its memory, the result has no leaves, but the bytes that are available.
    Raises OllaError if it was to be planned, and planning failed.
    """
    with warnings.catch_warnings():
        # The donation audit reports these with names and reasons.
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        lowered = jax_stage(fn.lower(*args, **kwargs))
    platform = _platform((args, kwargs), where)
    options: dict[str, Any] = {}
    with warnings.catch_warnings():
        if PLATFORMS[platform].autotunes and is_host(jax.default_backend()):
            options["xla_gpu_autotune_level"] = 0  # no card to tune on
        warnings.simplefilter("ignore", PlanWarning)  # raised below
        try:
            compiled = lowered.compile(compiler_options=options or None)
        except jax.errors.JaxRuntimeError as error:
            if not is_refusal(error, platform):
                raise
            refused = refused_executable(lowered, platform, options)
            available = device_bytes(lowered)
            return _CompiledStep(
                platform, Executable(*refused), None, available, compiler_options=options
            )
        if getattr(compiled, "plan", True) is None:
            raise OllaError(f"planning failed: {compiled.reason}")
    static = (jit_parameters(fn) or {}).get("static_argnums") or ()
    with without_collection():
        module, assignment = read_assignment(compiled, platform)
        parts = leaves(compiled, module_from_bytes(module), static)
    count = device_count(compiled)
    again = None
    if not hasattr(compiled, "plan"):
        again = ran_again(lowered, compiled, platform, options)
    return _CompiledStep(
        platform, Executable(module, assignment), parts, None, count, options, again
    )


def _platform(args: Any, where: Target | None) -> str:
    """The platform that a function is compiled for: the target's, its arguments', or JAX's own."""
    if where is not None:
        return where.platform
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    devices = [d for s in shardings if s is not None for d in s.device_set]
    return platform_of_jax((devices or jax.devices())[0].platform).name


def jax_stage(stage: Any) -> Any:
    """The `jax.stages.Lowered` in another library's wrapper; our own and JAX's are returned as is.
    Libraries that split objects into arrays and the rest (Flax's nnx, equinox) wrap the result of
    `lower()`; the wrappers have only some of JAX's attributes. Raises InputError if there is none.
    """
    ours = stage if isinstance(stage, jax.stages.Lowered) else getattr(stage, "lowered", None)
    if not isinstance(ours, jax.stages.Lowered):
        kind = f"{type(stage).__module__}.{type(stage).__qualname__}"
        raise InputError(f"lower() gave a {kind}, not a jax.stages.Lowered; use jax.jit")
    return ours
