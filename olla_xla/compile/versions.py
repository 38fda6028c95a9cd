"""The versions that a plan and an executable depend on."""

import importlib.metadata

import jax

from olla_xla.version import __version__


def versions() -> dict[str, str]:
    """Name -> version of JAX, jaxlib and this package."""
    jaxlib = importlib.metadata.version("jaxlib")
    return {"jax": jax.__version__, "jaxlib": jaxlib, "olla-xla": __version__}
