"""The private JAX attributes that olla_xla reads, each with a fallback for when it is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.core

from hlo.backend import is_host
from olla_xla.compile import extensions
from olla_xla.errors import InputError, OllaError
from olla_xla.memory.own_jit import own_jit

_logger = logging.getLogger("olla_xla")

_Jitted: Any = type(own_jit(lambda: None))
"""The class of functions that `jax.jit` makes; other objects may have `lower` and `trace` too."""


def jit_parameters(fn: Any) -> dict[str, Any] | None:
    """Returns the keyword arguments of `jax.jit` for a jitted function; None for any other.
    They are read from `fn._jit_info`: JAX has no public way to read donated and static arguments
    back. Functions made by `pjit`, which reads shardings otherwise, or by another library give
    None. Raises InputError if jit made it, and the attribute is missing (another JAX).
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
            # If only one of the two is given, jit infers the other, perhaps differently.
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
            f"with JAX {jax.__version__}, jit's options cannot be read from a {type(fn).__name__}; "
            "pass the plain function and jit's options to olla_xla.plan"
        ) from error


def _with_layouts(info: Any, side: str) -> Any:
    """Returns a jitted function's in or out shardings, as a pytree with Formats for layouts."""
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
    """Returns an object that is the same for `jitted.lower(*args)` and the call `jitted(*args)`.
    Without `lowered._lowering` it is the StableHLO module. If that is compiled for several devices,
    only the first compile is then planned for calls.
    """
    return getattr(lowered, "_lowering", None) or lowered.compiler_ir("stablehlo")


def device_kind(lowered: jax.stages.Lowered) -> str:
    """Returns JAX's name of the kind of device that `lowered` is for, such as a GPU's product name.
    "" where it has none, or JAX has changed the attribute: a GPU's costs are then those of an H100.
    """
    return next((device.device_kind for device in devices_of(lowered)), "")


def device_bytes(lowered: jax.stages.Lowered, part: float = 1.0) -> int | None:
    """Returns the bytes a step may use on one device that `lowered` is for; None where that is not
    known, and for a CPU. A device that is present reports them; for a compile-only device they are
    `part` of the memory that is known for its kind.
    """
    device = next(iter(devices_of(lowered)), None)
    if device is None or is_host(device.platform):
        return None
    try:
        return (device.memory_stats() or {})["bytes_limit"]
    except (KeyError, jax.errors.JaxRuntimeError):  # the latter for a compile-only device
        memory = extensions.memory_of_kind(device.device_kind)
        return None if memory is None else int(part * memory)


def options_of(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """Returns the compiler options that the function was jitted with; {} where JAX gives none."""
    return dict(getattr(getattr(lowered, "_lowering", None), "_compiler_options_kvs", ()))


def devices_of(lowered: jax.stages.Lowered) -> tuple[Any, ...]:
    """Returns the devices that a lowered function is for, from `lowered._lowering._device_list`: ()
    if they are known only once it is compiled, as for an abstract mesh. JAX has no public way to
    ask.
    """
    devices = getattr(getattr(lowered, "_lowering", None), "_device_list", None)
    return () if devices is None else tuple(devices)


def platform_of(compiled: Any) -> str:
    """Returns JAX's name of an executable's platform, such as "cpu"; "" where it is not known.
    It is read from the shardings of arguments and results. The public attributes are pytrees of
    these, which fails with user-defined pytree nodes that check their leaves.
    """
    executable = getattr(compiled, "_executable", None)
    shardings = [getattr(executable, f"_{part}_shardings", ()) for part in ("in", "out")]
    devices = (d for s in jax.tree.leaves(shardings) for d in s.device_set)
    device = next(devices, None) or getattr(compiled, "device", None)
    return "" if device is None else device.platform


def kept_arguments(compiled: jax.stages.Compiled) -> list[int] | None:
    """Lists the numbers of the argument leaves that an executable takes, in ascending order.
    JAX drops unused ones. None where JAX has changed the attribute `_executable._kept_var_idx`.
    """
    kept = getattr(getattr(compiled, "_executable", None), "_kept_var_idx", None)
    return None if kept is None else sorted(kept)


def own_module(private: str, public: str) -> Any:
    """Imports a module of JAX by its private name or, if JAX has moved it, by its public name.
    The public names are all in `jax.extend`, whose import adds to JAX's configuration: functions
    that were compiled before are then compiled again at their next call. Raises ImportError.
    """
    try:
        return importlib.import_module(private)
    except ImportError:
        return importlib.import_module(public)


def under_trace(args: Any, kwargs: Any) -> bool:
    """Whether JAX traces another function now (jit, grad, vmap), by its arguments or state."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
        return True
    trace_state = own_module("jax._src.core", "jax.extend.core").get_opaque_trace_state
    with jax.core.eval_context():
        top = trace_state()
    return trace_state() != top


def distributed_client() -> Any:
    """Returns the client of JAX's distributed runtime, which has a key-value store; None without.
    `jax.distributed` is public, but not the key-value store that it sets up.
    """
    try:
        return importlib.import_module("jax._src.distributed").global_state.client
    except (ImportError, AttributeError):
        return None


def forget_compiles(lowered: jax.stages.Lowered) -> None:
    """Drops JAX's memo of the compiles of `lowered`, if JAX has it still; executables in use stay.
    There is no public way to drop it for one program. Otherwise an executable that is not chosen
    keeps memory for its code (50 MB for a ResNet-50 on CPU) as long as the program exists.
    """
    try:
        pxla = importlib.import_module("jax._src.interpreters.pxla")
        pxla._cached_compilation.evict_weakref(lowered.compiler_ir("stablehlo"))
    except (ImportError, AttributeError, TypeError):
        _logger.info("JAX %s keeps executables in memory that are not used", jax.__version__)


def keep_executable(lowered: jax.stages.Lowered, compiled: jax.stages.Compiled) -> bool:
    """Makes calls of the jitted function behind `lowered` run `compiled`; False if it cannot.
    It sets a private attribute of JAX, and compiles nothing. The only public way is to compile
    again, which JAX's memo of compiles makes cheap unless it has dropped the executable meanwhile.
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


def loaded_again(compiled: jax.stages.Compiled, executable: bytes) -> jax.stages.Compiled:
    """Loads a serialized executable; returns a compiled stage like `compiled` that runs it.
    JAX's `serialize_executable` is public, but refuses functions that close over arrays.
    `compiled`: has the executable's arguments, results and devices. `executable`: as `serialize` of
    a loaded executable gives it. Raises OllaError: this JAX has no such stages, or the function
    calls Python on the host; jax.errors.JaxRuntimeError: XLA cannot load it.
    """
    try:
        inner: Any = compiled
        stage, parameters = inner._executable._unloaded_executable, inner._params
        calls_python = stage.host_callbacks or stage.ordered_effects or stage.unordered_effects
        client, devices = stage.backend, stage.device_list
    except AttributeError as error:
        raise OllaError(f"JAX {jax.__version__} cannot reload an executable") from error
    if calls_python:
        raise OllaError("the function calls back to Python while it runs")
    loaded = client.deserialize_executable(executable, executable_devices=devices)
    kept = dataclasses.replace(stage, xla_executable=loaded).load()
    return jax.stages.Compiled(
        kept, parameters.const_args, compiled.args_info, compiled.out_tree, parameters.no_kwargs
    )


def no_cache_writes() -> contextlib.AbstractContextManager[Any]:
    """Context manager: in this thread JAX writes nothing to its persistent compilation cache.
    JAX's setting is public, but its thread-local form is not. Without it a compile under a token (a
    text put into the module) that is used once leaves an entry on disk that is never read.
    """
    try:
        config = importlib.import_module("jax._src.config")
        return config.persistent_cache_min_compile_time_secs(float("inf"))
    except (ImportError, AttributeError):
        _logger.info("JAX %s may write unused executables to its persistent cache", jax.__version__)
        return contextlib.nullcontext()


def with_miss_handler(
    jitted: Any,
    handler: weakref.WeakMethod[
        Callable[[tuple[Any, ...], dict[str, Any]], Callable[[], None] | None]
    ],
) -> Any:
    """Returns a copy of `jitted` that calls `handler(args, kwargs)` before JAX compiles for a call.
    What the handler returns is called after the call, if JAX raised nothing. The caller must keep
    the object that `handler` is a method of alive during the call.
    A jitted function's pickling state has the Python function that C++ calls when it has no
    executable for a signature; a copy is made with another function there. If JAX has no such
    state, the handler runs before every call: the same results, but each call looks up its
    lowering.
    """
    try:
        state = jitted.__getstate__()
        jax_miss = state["cache_miss"]
        kind: Any = type(jitted)
        copy = kind.__new__(kind)

        copy.__setstate__({**state, "cache_miss": _between(handler, jax_miss)})
        if hasattr(jitted, "_fun"):
            copy._fun = jitted._fun  # which JAX runs again to locate a NaN
        return copy
    except (AttributeError, KeyError, TypeError, RuntimeError):
        _logger.warning("with JAX %s planned calls have more overhead than jit's", jax.__version__)

        return _between(handler, jitted)


def _between(handler: weakref.WeakMethod[Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls the handler (while its object lives) with (args, kwargs), then
    `call`, then what the handler returned, if anything; it returns the result of `call`.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        method = handler()
        then = None if method is None else method(args, kwargs)
        result = call(*args, **kwargs)
        if then is not None:
            then()
        return result

    return called


def has_descriptions(traced: Any) -> bool:
    """Whether JAX can make `traced.args_info`; the user's pytrees may reject its leaves."""
    try:
        return traced.args_info is not None
    except Exception:
        return False
