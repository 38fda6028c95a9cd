"""JAX's plugins for targets that are not here: which are installed."""

import importlib.util

_MODULES = {"tpu": ("libtpu",)}


def has(plugin: str) -> bool:
    """Whether a plugin, by the name of the extra that installs it, is here."""
    modules = _MODULES.get(plugin, ("jax_plugins", f"jax_plugins.xla_{plugin}"))
    return all(importlib.util.find_spec(name) for name in modules)
