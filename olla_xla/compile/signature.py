"""A call: whether it is one to plan, and the devices that its plan is for."""

import contextlib
from typing import Any

import jax

from olla_xla.compile import environment
from olla_xla.compile.jax_private import under_trace


def is_to_plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is to be planned: not while JAX traces, and not if planning or jit is off."""
    config: Any = jax.config
    if config.jax_no_tracing or config.jax_disable_jit or under_trace(args, kwargs):
        return False
    return not environment.disabled()


def device_key(args: Any, kwargs: Any) -> str:
    """Returns text that names the devices of a call's arguments (JAX's first one if they have
    none): number, kinds and runtime.
    """
    devices: set[Any] = set()
    for leaf in jax.tree.leaves((args, kwargs)):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, jax.sharding.Sharding):  # those of tracers are abstract
            # An abstract mesh has none; they are known only once it is compiled.
            with contextlib.suppress(ValueError):
                devices |= sharding.device_set
    devices = devices or {jax.local_devices()[0]}
    kinds = {(d.platform, d.device_kind, d.client.platform_version) for d in devices}
    return repr((len(devices), sorted(kinds)))
