"""The version of this package, and the versions of JAX that it knows."""

import importlib.metadata
import re

__all__ = ["OLDEST_JAX", "TOO_NEW_JAX", "__version__", "old_jax"]

__version__ = "0.1.0"

OLDEST_JAX, TOO_NEW_JAX = (0, 11, 2), (0, 14)
"""From the first up to the second, which is not tested: XLA's rules are those of its version."""


def old_jax() -> str:
    """What to do where the JAX that is installed is too old to be imported from; or ""."""
    try:
        found = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return ""  # its own ImportError says that
    if tuple(map(int, re.findall(r"\d+", found)[:3])) >= OLDEST_JAX:
        return ""
    needed = ".".join(map(str, OLDEST_JAX))
    return f"olla_xla needs jax>={needed}, this is {found}; pip install -U jax jaxlib"
