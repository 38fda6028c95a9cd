"""XLA's backends, one Platform and one file each: a new one needs its file and its line here."""

from hlo.backend.cpu import CPU
from hlo.backend.cuda import CUDA
from hlo.backend.platform import Platform
from hlo.backend.tpu import TPU

__all__ = ["PLATFORMS", "is_host", "platform", "platform_of_jax"]

PLATFORMS = {found.name: found for found in (CPU, CUDA, TPU)}
"""By name."""


def platform(name: str) -> Platform:
    """Returns the Platform named "cpu", "cuda" or "tpu". Raises KeyError for other names."""
    return PLATFORMS[name]


def platform_of_jax(name: str) -> Platform:
    """Returns the Platform that JAX (`device.platform`) or XLA calls `name`. Raises KeyError."""
    for backend in PLATFORMS.values():
        if name in (backend.jax_name, backend.name):
            return backend
    raise KeyError(f"no planner knows the platform {name}; there are {', '.join(PLATFORMS)}")


def is_host(jax_name: str) -> bool:
    """Whether devices of a JAX platform, such as "gpu", are this machine's own processors.
    False for platforms without an entry in `PLATFORMS`.
    """
    return any(p.is_host and jax_name in (p.jax_name, p.name) for p in PLATFORMS.values())
