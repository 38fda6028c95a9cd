"""The private JAX attributes olla_xla reads, each with what happens when it is missing."""

from __future__ import annotations

import contextlib
import importlib
import logging
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

import olla_xla.targets as targets
from hlo.backend import PLATFORMS, is_host
from olla_xla.errors import InputError
from olla_xla.memory.own_jit import own_jit

__all__ = [
    "device_bytes",
    "device_kind",
    "devices_of",
    "distributed_client",
    "forget_compiles",
    "jit_parameters",
    "keep_executable",
    "lowering_identity",
    "own_module",
    "platform_of",
    "no_cache_writes",
    "plain_jit",
    "trace_state",
    "with_miss_handler",
]

_logger = logging.getLogger("olla_xla")

plain_jit = own_jit
"""JAX's own, where a program has said `jax.jit = olla_xla.plan`, to plan all that it jits."""

_Jitted: Any = type(plain_jit(lambda: None))
"""The class of functions that `jax.jit` makes, whatever else offers `lower` and `trace`."""


def jit_parameters(fn: Any) -> dict[str, Any] | None:
    """The keyword arguments a function was made with, read from `fn._jit_info`; None if not by jit.

    JAX offers no public way to read a jitted function's donated and static arguments back. What
    `pjit` made (by another reading of shardings), or another library, is a function like any other.

    Raises:
      InputError: jit made it, and the attribute is missing (another JAX).
    """
    if not isinstance(fn, _Jitted):
        return None
    info: Any = getattr(fn, "_jit_info", None)
    try:
        if info.use_resource_env:
            return None
        in_shardings = _with_layouts(info, "in")
        out_shardings = _with_layouts(info, "out")
        parameters: dict[str, Any] = {}
        for kind in ("static", "donate"):
            pair = {n: getattr(info, n) for n in (f"{kind}_argnums", f"{kind}_argnames")}
            # Where one of the two is given alone, jit infers the other one, maybe differently.
            parameters |= pair if any(pair.values()) else {}
        return parameters | {
            "in_shardings": in_shardings,
            "out_shardings": out_shardings,
            "keep_unused": info.keep_unused,
            "inline": info.inline,
            **({"device": info.device} if info.device is not None else {}),
            **({"backend": info.backend} if info.backend is not None else {}),
            **(
                {"compiler_options": dict(info.compiler_options_kvs)}
                if info.compiler_options_kvs
                else {}
            ),
        }
    except AttributeError as error:
        raise InputError(
            f"cannot read jit's arguments from {type(fn).__name__} on JAX {jax.__version__}; "
            "pass the plain function and jit's arguments to olla_xla.plan"
        ) from error


def _with_layouts(info: Any, side: str) -> Any:
    """The in_shardings or out_shardings tree as given to jit, layouts put back in Formats."""
    from jax.experimental.layout import Format

    shardings = getattr(info, f"{side}_shardings_leaves")
    layouts = getattr(info, f"{side}_layouts_leaves")
    if any(layout is not None for layout in layouts):
        shardings = [
            sharding if layout is None else Format(layout, sharding)
            for layout, sharding in zip(layouts, shardings, strict=True)
        ]
    return jax.tree.unflatten(getattr(info, f"{side}_shardings_treedef"), shardings)


def lowering_identity(lowered: jax.stages.Lowered) -> Hashable:
    """The object that `jitted.lower(*args)` and the call `jitted(*args)` share.

    Without `lowered._lowering` it is the StableHLO module: as good, unless one module is compiled
    for several devices; then only the first is planned for calls.
    """
    return getattr(lowered, "_lowering", None) or lowered.compiler_ir("stablehlo")


def device_kind(lowered: jax.stages.Lowered) -> str:
    """JAX's name of the devices that `lowered` is for.

    "" where it has none, or another JAX another attribute: a GPU is then priced as an H100.
    """
    return next((device.device_kind for device in devices_of(lowered)), "")


def device_bytes(lowered: jax.stages.Lowered) -> int | None:
    """What a device that `lowered` is for has for a step; None where that is not known.

    Devices that are here say it themselves; of those that are compiled for alone it is known by
    their name.
    """
    device = next(iter(devices_of(lowered)), None)
    if device is None or is_host(device.platform):
        return None
    try:
        return (device.memory_stats() or {})["bytes_limit"]
    except (KeyError, jax.errors.JaxRuntimeError):  # the latter of a device that is not here
        cards = (targets.card(n) for n, p in targets.TARGETS.items() if not PLATFORMS[p].is_host)
        return next((c.memory_bytes for c in cards if c.kind == device.device_kind), None)


def devices_of(lowered: jax.stages.Lowered) -> tuple[Any, ...]:
    """The devices that a lowered function is for, from `lowered._lowering._device_list`.

    () where only its compile will say.

    A function that is lowered for an abstract mesh has none; JAX has no public way to ask.
    """
    devices = getattr(getattr(lowered, "_lowering", None), "_device_list", None)
    return () if devices is None else tuple(devices)


def platform_of(compiled: Any) -> str:
    """JAX's name of the platform that an executable is for; "" where nothing says it.

    By the shardings of what it takes and returns. Public are trees of them, which a user's own
    pytrees refuse to hold where they look at what they are given.
    """
    executable = getattr(compiled, "_executable", None)
    found = [getattr(executable, f"_{part}_shardings", ()) for part in ("in", "out")]
    devices = (d for s in jax.tree.leaves(found) for d in s.device_set)
    device = next(devices, None) or getattr(compiled, "device", None)
    return "" if device is None else device.platform


def own_module(private: str, public: str) -> Any:
    """A module of JAX's where it lies, or, where another JAX has it elsewhere, by its public name.

    The public names are all in `jax.extend`, whose import adds to JAX's configuration: what was
    compiled before it is compiled once more when it is next called.

    Raises:
      ImportError: JAX has neither.
    """
    try:
        return importlib.import_module(private)
    except ImportError:
        return importlib.import_module(public)


def trace_state() -> Any:
    """What tells one trace from another, and from none."""
    return own_module("jax._src.core", "jax.extend.core").get_opaque_trace_state()


def distributed_client() -> Any:
    """The client of JAX's distributed runtime, which JAX itself shares binaries through; or None.

    `jax.distributed` is public, but not the key-value store that it sets up.
    """
    try:
        return importlib.import_module("jax._src.distributed").global_state.client
    except (ImportError, AttributeError):
        return None


def forget_compiles(lowered: jax.stages.Lowered) -> None:
    """Drops JAX's memo of the compiles of `lowered`; executables in use stay.

    There is no public way to drop it for one program. Without it the executable that lost to the
    other takes memory for its code (50 MB for a ResNet-50 on CPU) as long as the program exists.
    """
    try:
        pxla = importlib.import_module("jax._src.interpreters.pxla")
        pxla._cached_compilation.evict_weakref(lowered.compiler_ir("stablehlo"))
    except (ImportError, AttributeError, TypeError):
        _logger.info("JAX %s keeps executables that are not used", jax.__version__)


def keep_executable(lowered: jax.stages.Lowered, compiled: jax.stages.Compiled) -> bool:
    """Makes a compile of `lowered` the one that calls of its function run; whether that worked.

    There is no public way but to compile once more, which JAX's memo of compiles makes cheap, where
    it has not dropped the executable meanwhile.
    """
    try:
        lowering: Any = lowered._lowering
        executable: Any = compiled._executable
    except AttributeError:
        return False
    if not hasattr(lowering, "_executable"):
        return False
    lowering._executable = executable
    return True


def no_cache_writes() -> contextlib.AbstractContextManager[Any]:
    """Within it this thread writes nothing to JAX's persistent compilation cache.

    JAX's setting is public, but its thread-local form is not. Without it a compile under a token
    that is used once leaves an entry on disk that nothing will read.
    """
    try:
        config = importlib.import_module("jax._src.config")
        return config.persistent_cache_min_compile_time_secs(float("inf"))
    except (ImportError, AttributeError):
        _logger.info("JAX %s may cache executables that are not used", jax.__version__)
        return contextlib.nullcontext()


def with_miss_handler(
    jitted: Any,
    handler: weakref.WeakMethod[
        Callable[[tuple[Any, ...], dict[str, Any]], Callable[[], None] | None]
    ],
) -> Any:
    """`jitted`, calling `handler(args, kwargs)` before JAX traces, lowers or compiles for a call.

    What the handler returns is called after that, if JAX raised nothing. The caller keeps what
    `handler` is a method of, through the call.

    A jitted function's pickling state names the Python function that C++ calls when it has no
    executable for a signature; a copy is made with another one. Where JAX has no such state the
    handler runs before every call: the same results, at the cost of lowering's look-up each time.
    """
    try:
        state = jitted.__getstate__()
        jax_miss = state["cache_miss"]
        kind: Any = type(jitted)
        copy = kind.__new__(kind)

        copy.__setstate__({**state, "cache_miss": _between(handler, jax_miss)})
        if hasattr(jitted, "_fun"):
            copy._fun = jitted._fun  # what JAX runs again to say where a NaN came up
        return copy
    except (AttributeError, KeyError, TypeError, RuntimeError):
        _logger.warning("JAX %s: every call is looked up in Python, slowly", jax.__version__)

        return _between(handler, jitted)


def _between(handler: weakref.WeakMethod[Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, with the handler before it, and after it what the handler returns."""

    def called(*args: Any, **kwargs: Any) -> Any:
        method = handler()
        then = None if method is None else method(args, kwargs)
        result = call(*args, **kwargs)
        if then is not None:
            then()
        return result

    return called
