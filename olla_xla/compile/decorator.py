"""`olla_xla.plan`: like `jax.jit`, with less memory."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import jax
import jax.core

from olla_xla.compile import environment, verification
from olla_xla.compile.jax_private import jit_parameters, own_jit
from olla_xla.compile.planned_function import PlannedFunction, PlanSettings, planned_function
from olla_xla.errors import InputError, JitError, OllaError, VersionError
from olla_xla.pieces import in_pieces, on_host
from olla_xla.problem.options import KNEE, SOLVERS, PlanOptions, parse_overhead, parse_positive
from olla_xla.problem.plan import Plan
from olla_xla.version import OLDEST_JAX, TOO_NEW_JAX

if TYPE_CHECKING:
    from olla_xla.pieces import chosen

_logger = logging.getLogger("olla_xla")

_OPTION_NAMES = tuple(inspect.signature(PlanOptions).parameters)
_JIT_NAMES = tuple(name for name in inspect.signature(own_jit).parameters if name != "fun")


class PlanKeywords(TypedDict, total=False):
    """Keyword arguments of `plan`: fields of `PlanOptions`, and arguments of `jax.jit`."""

    # Fields of PlanOptions.
    time_limit: float | None
    step_limit: int | None
    seed: int
    tolerance: float
    in_place: bool
    memory_budget: int | str | None
    max_overhead: float | str | None
    loops: bool
    collectives: bool
    method: str
    gap: float
    early_updates: bool
    placement: str

    # Arguments of jax.jit; `backend` is a field of PlanOptions too.
    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: Any
    compiler_options: dict[str, Any] | None


@overload
def plan(
    fn: Callable[..., Any],
    /,
    *,
    verify: bool | None = None,
    plan: Plan | None = None,
    enabled: bool = True,
    fission: Literal[False] = False,
    host_budget: None = None,
    **options: Unpack[PlanKeywords],
) -> PlannedFunction: ...
@overload
def plan(
    fn: Callable[..., Any],
    /,
    *,
    verify: bool | None = None,
    fission: bool = False,
    host_budget: int | str | None = None,
    **options: Unpack[PlanKeywords],
) -> chosen.ChosenFunction: ...
@overload
def plan(
    *,
    verify: bool | None = None,
    plan: Plan | None = None,
    enabled: bool = True,
    fission: bool = False,
    host_budget: int | str | None = None,
    **options: Unpack[PlanKeywords],
) -> Callable[[Callable[..., Any]], Any]: ...
def plan(
    fn: Any = None,
    /,
    *,
    verify: bool | None = None,
    plan: Plan | None = None,
    enabled: bool = True,
    fission: bool = False,
    host_budget: int | str | None = None,
    **options: Any,
) -> Any:
    """Plans the memory of a JAX function: like `jax.jit`, with less memory.

    Args:
      fn: a plain function, or one made by `jax.jit`, whose donated and static arguments are then
        used, as are those of a planned function that gets other options of ours here. If an
        argument of `jax.jit` is given, or if `fn` is otherwise planned or jitted, it is inlined in
        a new jitted function with these arguments alone. Without `fn`, returns a decorator.
      verify: whether the first call of each planned executable also runs XLA's own on copies of
        the arguments and compares the outputs bit for bit; if they differ, XLA's own is used from
        then on. It costs one more compile, one more run, and for that run the memory of the copies
        and of both results. Functions with side effects are not run twice, hence not verified.
        None: as the environment variable OLLA_XLA_VERIFY says, 1 or 0. If it is not set, on a GPU
        the first plan of each kind (order, bindings, clones, residuals) is verified for each kind
        of card and version of jaxlib, if the memory allows.
      plan: one made before, `olla_xla.Plan.load(path)`, to apply instead of looking for one. It
        fits one program: the same function, shapes, devices, jax and XLA flags.
      enabled: False compiles as `jax.jit` does, and plans nothing: a switch for comparisons.
      fission: with `memory_budget`: operators that make the largest values may run a piece at a
        time, as by `olla_xla.fission`, in the fewest pieces with which a plan meets the budget in
        no more predicted time. Results then differ from those of `jax.jit` by rounding.
      host_budget: the most bytes of host memory, on all devices, that scan residuals may take: they
        are kept, recomputed or spilled (`olla_xla.spill`; rounding may change), with
        `memory_budget` in the least time, else in the least memory within `max_overhead`.
      **options: fields of `PlanOptions` (`time_limit`, `step_limit`, `seed`, `tolerance`,
        `in_place`, `memory_budget`, `max_overhead`, `loops`, `collectives`, `method`, `backend`),
        and `jax.jit`'s own arguments. By default nothing is recomputed that adds predicted time.
        `memory_budget="10GiB"` allows as much recomputation as that takes, `max_overhead=0.05` (or
        "5%") what lowers memory most within 5% more predicted time, "knee" until more saves little.

    Returns:
      A function that behaves as `jax.jit`'s do, with the same results, bit for bit. Each new
      signature is planned when first called or compiled.

    Raises:
      JitError: `fn` cannot be jitted, or an option is unknown. It is an InputError, and a TypeError
        as `jax.jit` raises.
      InputError: an option is of the wrong type.
      LimitError: a limit is not positive.
      BudgetError: when first called or compiled, if the memory budget cannot be met; it names the
        least total that was reached.
      PlanMismatchError: when first called or compiled, if `plan` is of another program.
      VersionError: JAX is too old, or newer than what was tested.

    Examples:
      >>> @olla_xla.plan(time_limit=5, donate_argnums=0)
      ... def step(state, batch): ...
      >>> state, loss = step(state, batch)
      >>> step.lower(state, batch).compile().plan.assigned_bytes
      >>> smaller = olla_xla.plan(train_step, memory_budget="10GiB", donate_argnums=0)
      >>> again = olla_xla.plan(train_step, plan=olla_xla.Plan.load("step.plan"))
    """
    try:
        make = _maker((verify, plan, enabled, fission, host_budget), options)
    except OllaError:
        raise
    except Exception as error:
        make = functools.partial(_without_plan, error, options)
    return make if fn is None else make(fn)


def _without_plan(error: Exception, options: dict[str, Any], function: Any) -> Any:
    """Returns `jax.jit(function)` after a bug in planning, which is logged as a warning.
    Raises `error` if it is an OllaError, or if OLLA_XLA_STRICT=1 or a budget forbids this.
    """
    needed = environment.strict() or options.get("memory_budget") is not None
    if needed or isinstance(error, OllaError):
        raise error
    jitted = own_jit(function, **{n: v for n, v in options.items() if _is_jits(n, v)})
    name, kind = getattr(function, "__name__", "a function"), type(error).__name__
    _logger.warning("%s is not planned, because of a bug: %s: %s", name, kind, error)
    return jitted


def _maker(own: tuple[Any, ...], options: dict[str, Any]) -> Callable[[Any], Any]:
    """Checks the arguments of `plan`; returns the decorator that makes a function a planned one.
    `own` are (verify, plan, enabled, fission, host_budget).
    """
    verify, plan, enabled, fission, host_budget = own
    _check_jax()
    _check_names(options)
    ours = {n: v for n, v in options.items() if not _is_jits(n, v)}
    jit_options = {n: v for n, v in options.items() if n not in ours}
    _check_own(plan, enabled=enabled, fission=fission)
    if isinstance(o := ours.get("max_overhead"), int | float | str) and o != KNEE:
        ours["max_overhead"] = parse_overhead(ours["max_overhead"])
    plan_settings = PlanSettings(PlanOptions(**ours), verification.wanted(verify), plan, enabled)
    make = in_pieces.fission_function if fission else planned_function
    if host_budget is not None:
        most = parse_positive(host_budget, "host_budget")
        make = functools.partial(on_host.HostFunction, most=most, fission=fission)
    given = bool(ours) or verify is not None or plan is not None or not enabled
    new = plan_settings if given or make is not planned_function else None

    def planned(function: Any) -> Any:
        try:
            return make(*_to_jit(function, jit_options, new), plan_settings)
        except Exception as error:
            return _without_plan(error, options, function)

    return planned


def _check_names(options: dict[str, Any]) -> None:
    """Raises JitError for a name that is an option neither of `plan` nor of `jax.jit`."""
    if unknown := [n for n in options if n not in _OPTION_NAMES and n not in _JIT_NAMES]:
        near = difflib.get_close_matches(unknown[0], [*_OPTION_NAMES, *_JIT_NAMES], 1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise JitError(
            f"olla_xla.plan has no option {unknown[0]!r}{meant}; it takes "
            f"{', '.join(_OPTION_NAMES)}, and all options of jax.jit"
        )


def _check_own(plan: Any, **switches: Any) -> None:
    """Raises InputError if `plan` is no Plan, or one of the `switches` is no bool."""
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan={plan!r} is not a Plan; read one with olla_xla.Plan.load(path)")
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r} must be True or False")


def _is_jits(name: str, value: Any) -> bool:
    """Whether an option goes to `jax.jit`, not the planner (`backend`: if it is no solver)."""
    return name in _JIT_NAMES and (name not in _OPTION_NAMES or value not in SOLVERS)


def _check_jax() -> None:
    needed, beyond = (".".join(map(str, v)) for v in (OLDEST_JAX, TOO_NEW_JAX))
    if jax.__version_info__ < OLDEST_JAX:
        raise VersionError(
            f"olla_xla needs jax>={needed}, not {jax.__version__}; run pip install -U jax jaxlib"
        )
    if jax.__version_info__ >= TOO_NEW_JAX and not environment.any_jax():
        raise VersionError(
            f"this olla_xla supports jax<{beyond}, but finds jax {jax.__version__}; pip install -U "
            "olla-xla, or set OLLA_XLA_ANY_JAX=1 to try it anyway"
        )


def _to_jit(
    fn: Any, jit_options: dict[str, Any], given: PlanSettings | None
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns (the function to be jitted, `jax.jit`'s keyword arguments for it).
    A function made by `jax.jit` is unwrapped, with its arguments, unless `jit_options` are given.
    Any other is jitted itself, and inlined, as in `jax.jit(jax.jit(f))`. So is a planned function,
    for programs that set `jax.jit = olla_xla.plan`, unless it is to be planned otherwise: then it
    is unwrapped too. `given` are the settings asked for; None where no option of ours was given.
    """
    kind = type(fn).__name__
    if isinstance(fn, jax.stages.Lowered | jax.stages.Compiled):
        raise JitError(f"olla_xla.plan takes a function, not {kind}; pass the function itself")
    if not callable(fn):
        raise JitError(f"olla_xla.plan takes a function, not {kind}")
    if jit_options:
        return fn, jit_options
    if isinstance(fn, PlannedFunction):
        inlined = given is None or given == fn._plan_settings
        return (fn, {}) if inlined else (fn.__wrapped__, fn.jit_options)
    read = jit_parameters(fn)
    if read is None:
        return fn, {}
    function = getattr(fn, "__wrapped__", None)
    if function is None:
        raise InputError(f"olla_xla finds no function in this {kind}; pass the plain function")
    return function, read
